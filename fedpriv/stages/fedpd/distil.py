"""Privacy distillation (FedPD, Algorithm 2): federated averaging of the distiller and a classifier.

Each round a part of the clients trains both for some passes over its data and the server averages them by
size. Clients run side by side in threads, each in plain torch on one core, so that the numbers do not depend
on how many threads there are. Nothing here is private: updates go out as they are, and the ledger says so.
"""

import copy
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.engine.work import Samples
from fedpriv.errors import UserError
from fedpriv.rng import generator, numpy_generator, seed_for
from fedpriv.screen import Notes
from fedpriv.stages.fedpd.losses import Recipe, Step
from fedpriv.stages.fedpd.vae import Distiller

State = dict[str, Tensor]


def distil(
    recipe: Recipe, distiller: Distiller, classifier: nn.Module, data: Samples, seed: int, workers: int
) -> dict[str, Any]:
    """Train both in place; a small history for the record."""
    clients = len(data.size)
    parts = [_part(data, k, recipe.data_fraction, seed) for k in range(clients)]
    each_round = max(1, round(recipe.sample_rate * clients))
    threads, history, sent = torch.get_num_threads(), [], 0
    notes = Notes("distilling: round", recipe.rounds)
    if distiller.low.device.type == "cpu":
        torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(workers) as pool:
            for number in range(recipe.rounds):
                rng = numpy_generator(seed, "distil sampling", number)
                chosen = sorted(rng.choice(clients, each_round, replace=False).tolist())
                jobs = [
                    pool.submit(_train, recipe, distiller, classifier, data, parts[k], seed, number, k)
                    for k in chosen
                ]
                trained = [job.result() for job in jobs]
                weights = [len(parts[k]) for k in chosen]
                for network, states in zip((distiller, classifier), zip(*trained, strict=True), strict=False):
                    network.load_state_dict(_mean(states, weights))
                loss = sum(w * t[2] for w, t in zip(weights, trained, strict=True)) / sum(weights)
                history.append(loss)
                sent += each_round * sum(4 * _numbers(n) for n in (distiller, classifier))
                notes.show(number + 1, f"classifier's loss on features {loss:.3f}")
    finally:
        torch.set_num_threads(threads)
    if not all(bool(t.isfinite().all()) for n in (distiller, classifier) for t in n.state_dict().values()):
        raise UserError(
            "stage=fedpd: the distillation diverged to values that are not numbers; lower stage.lr"
        )
    return {"feature_loss": history, "uplink_bytes": sent}


def _part(data: Samples, client: int, fraction: float, seed: int) -> Tensor:
    """The samples a client distils with: the same ones every round."""
    size = int(data.size[client])
    order = torch.randperm(size, generator=generator(seed, "distil data", client))
    return data.owned[client, order[: math.ceil(fraction * size)].to(data.owned.device)]


def _train(
    recipe: Recipe,
    distiller: Distiller,
    classifier: nn.Module,
    data: Samples,
    samples: Tensor,
    seed: int,
    number: int,
    client: int,
) -> tuple[State, State, float]:
    """One client's passes; what it sends back, and its mean loss on features."""
    own_g, own_a = copy.deepcopy(distiller), copy.deepcopy(classifier)
    step = Step(recipe, own_g, own_a, seed_for(seed, "distil step", number, client))
    order = generator(seed, "distil batches", number, client)
    # A batch of one has no statistics to normalise with.
    least = 2 if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in own_a.modules()) else 1
    losses = []
    for _ in range(recipe.local_epochs):
        shuffled = samples[torch.randperm(len(samples), generator=order).to(samples.device)]
        for batch in shuffled.split(recipe.batch_size):
            if len(batch) >= least:
                losses.append(step(*data.take(batch)))
    loss = float(torch.stack(losses).mean()) if losses else 0.0
    return own_g.state_dict(), own_a.state_dict(), loss


def _mean(states: Sequence[State], weights: Sequence[int]) -> State:
    """Weighted by size; counters, which are whole numbers, as the first client has them."""
    total = sum(weights)
    result = {}
    for name, first in states[0].items():
        if first.is_floating_point():
            result[name] = sum(
                (s[name] * (w / total) for s, w in zip(states[1:], weights[1:], strict=True)),
                start=first * (weights[0] / total),
            )
        else:
            result[name] = first
    return result


def _numbers(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())
