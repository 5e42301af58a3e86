"""Privacy distillation (FedPD, Algorithm 2): federated averaging of the distiller and a classifier.

Each round a part of the clients trains both for some passes over its data and the server averages them.
Clients run side by side in threads, each in plain torch on one core, so that the numbers do not depend on how
many threads there are. What protects their updates, if anything, is in protection.py.
"""

import copy
import math
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.engine.data import ClientData
from fedpriv.errors import UserError
from fedpriv.models.parts import normalises_batches
from fedpriv.ranks.group import ALONE, Ranks
from fedpriv.session.screen import Notes
from fedpriv.stages.fedpd.protection import Open, State
from fedpriv.stages.fedpd.vae import Distiller


def distil(
    protection: Open,
    distiller: Distiller,
    classifier: nn.Module,
    data: ClientData,
    workers: int,
    ranks: Ranks = ALONE,
) -> dict[str, Any]:
    """Train both in place; a small history for the record."""
    recipe = protection.recipe
    parts = [protection.part(data.owned[k, :size], k) for k, size in enumerate(data.size.tolist())]
    threads, history, sent = torch.get_num_threads(), [], 0
    notes = Notes("distilling: round", recipe.rounds)
    if distiller.low.device.type == "cpu":
        torch.set_num_threads(1)
    try:
        with warnings.catch_warnings(), ThreadPoolExecutor(workers) as pool:
            warnings.filterwarnings("ignore", message=".*Full backward hook.*")  # of gradients of samples
            for number in range(recipe.rounds):
                chosen = protection.participants[number].tolist()
                jobs = [
                    pool.submit(_train, protection, distiller, classifier, data, parts[k], number, k)
                    for k in ranks.share(chosen)
                ]
                trained = [each for share in ranks.all_of([job.result() for job in jobs]) for each in share]
                protection.merge((distiller, classifier), [(t[0], t[1]) for t in trained], number)
                weights = protection.setting.sizes[chosen].tolist()
                loss = sum(w * t[2] for w, t in zip(weights, trained, strict=True)) / max(1, sum(weights))
                history.append(loss)
                sent += len(chosen) * sum(4 * _numbers(n) for n in (distiller, classifier))
                notes.show(number + 1, f"classifier's loss on features {loss:.3f}")
    finally:
        torch.set_num_threads(threads)
    if not all(bool(t.isfinite().all()) for n in (distiller, classifier) for t in n.state_dict().values()):
        raise UserError(
            "stage=fedpd: the distillation diverged to values that are not numbers; lower stage.lr"
        )
    return {"feature_loss": history, "uplink_bytes": sent}


def samples_used(size: int, fraction: float) -> int:
    """How many of a client's samples distil."""
    return math.ceil(fraction * size)


def _train(
    protection: Open,
    distiller: Distiller,
    classifier: nn.Module,
    data: ClientData,
    samples: Tensor,
    number: int,
    client: int,
) -> tuple[State, State, float]:
    """One client's passes; what it sends back, and its mean loss on features."""
    own_g, own_a = copy.deepcopy(distiller), copy.deepcopy(classifier)
    step = protection.step(own_g, own_a, number, client)
    # A batch of one has no statistics to normalise with.
    least = 2 if normalises_batches(own_a) else 0
    batches = protection.batches(samples, number, client)
    losses = [step(batch, *data.take(batch)) for batch in batches if len(batch) >= least]
    loss = float(torch.stack(losses).mean()) if losses else 0.0
    return own_g.state_dict(), own_a.state_dict(), loss


def _numbers(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())
