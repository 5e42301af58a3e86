"""What protects the two networks' updates while they are distilled: nothing, or what protects the training.

Samples (a variant that clips single samples, ldp): a client's steps are DP-SGD on Poisson batches, which
may be empty (private_step.py).

Clients (a variant whose server adds the noise, cdp): clients join a round by Poisson sampling, the update of
both networks is clipped to `clip`, and their sum over the expected number gets noise z * clip / expected.

Noise is calibrated to an epsilon of its own, over the participations a client really has. All that is random
follows from the guard's source and the numbers of round, client and sample: nobody's absence changes what
others draw.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedpriv.device import there
from fedpriv.engine.batches import steps_per_epoch
from fedpriv.errors import UserError
from fedpriv.mechanisms.base import group_charges
from fedpriv.mechanisms.client_level import clip
from fedpriv.parts.declarations import MechanismFacts
from fedpriv.privacy.calibrate import noise_multiplier
from fedpriv.privacy.events import Charge, SampledGaussian
from fedpriv.randomness.source import Source
from fedpriv.rounds.setting import Setting
from fedpriv.stages.fedpd.losses import Distillation, Step
from fedpriv.stages.fedpd.private_step import PrivateStep
from fedpriv.stages.fedpd.vae import Distiller

State = dict[str, Tensor]
States = tuple[State, State]  # of the distiller and the classifier


@dataclass(frozen=True)
class Open:
    """No protection: updates go out as they are and are averaged by size."""

    recipe: Distillation
    sizes: tuple[int, ...]  # samples each client distils with
    source: Source = field(repr=False)  # of all that is random

    private = False

    def charges(self) -> tuple[Charge, ...]:
        """What distilling costs, one for all clients or one for each."""
        return ((),)

    def facts(self) -> dict[str, Any]:
        return {}

    def clients(self, number: int) -> list[int]:
        """Who takes part in a round: a fixed number, known to everybody."""
        count = len(self.sizes)
        order = self.source.of("sampling", number).permutation(count)
        return sorted(order[: max(1, round(self.recipe.sample_rate * count))].tolist())

    def part(self, owned: Tensor, client: int) -> Tensor:
        """The samples a client distils with, of those it owns: the same ones every round."""
        order = self.source.of("part", client).permutation(len(owned))
        return owned[order[: self.sizes[client]].to(owned.device)]

    def step(self, distiller: Distiller, classifier: nn.Module, number: int, client: int) -> Step:
        return Step(self.recipe, distiller, classifier, self._steps(number, client))

    def _steps(self, number: int, client: int) -> Source:
        return self.source.of("steps", number, client)

    def batches(self, samples: Tensor, number: int, client: int) -> Iterator[Tensor]:
        """Passes over shuffled samples."""
        for epoch in range(self.recipe.local_epochs):
            order = self.source.of("batches", number, client, epoch).permutation(len(samples))
            yield from samples[order.to(samples.device)].split(self.recipe.batch_size)

    def merge(
        self, networks: Sequence[nn.Module], trained: Sequence[States], chosen: list[int], number: int
    ) -> None:
        """Every participant's networks become the next ones, in place."""
        weights = [self.sizes[k] for k in chosen]
        for network, states in zip(networks, zip(*trained, strict=True), strict=True):
            network.load_state_dict(_mean(states, weights))


@dataclass(frozen=True)
class OfSamples(Open):
    clip: float
    noise: tuple[float, ...]  # multiplier of each client
    numbers: int  # parameters of both networks

    private = True

    @property
    def per_epoch(self) -> Tensor:
        return steps_per_epoch(torch.tensor(self.sizes), self.recipe.batch_size)  # [K]

    def participations(self) -> np.ndarray:
        drawn = [k for number in range(self.recipe.rounds) for k in self.clients(number)]
        return np.bincount(drawn, minlength=len(self.sizes))

    def charges(self) -> tuple[Charge, ...]:
        steps = self.per_epoch * self.recipe.local_epochs * torch.as_tensor(self.participations())
        rows = zip(self.per_epoch.tolist(), self.noise, steps.tolist(), strict=True)
        return tuple((SampledGaussian(1 / n, sigma, t, self.numbers),) if t else () for n, sigma, t in rows)

    def facts(self) -> dict[str, Any]:
        return {"clip_norm": self.clip, "noise_multiplier_least": min(self.noise)}

    def part(self, owned: Tensor, client: int) -> Tensor:
        """Each sample is drawn on its own; `sizes` is the expected number."""
        drawn = self.source.of("part", client).below(self.recipe.data_fraction, owned, 1)[:, 0]
        return owned[drawn.to(owned.device)]

    def step(self, distiller: Distiller, classifier: nn.Module, number: int, client: int) -> Step:
        std = self.noise[client] * self.clip
        steps = self._steps(number, client)
        return PrivateStep(self.recipe, distiller, classifier, steps, clip=self.clip, std=std)

    def batches(self, samples: Tensor, number: int, client: int) -> Iterator[Tensor]:
        """Poisson batches, which may be empty."""
        steps = int(self.per_epoch[client])
        draws, count = self.source.of("batches", number, client), steps * self.recipe.local_epochs
        taken = draws.below(1 / steps, samples, count)  # [N, T], on the CPU, where their numbers are known
        places = there(taken.T.nonzero()[:, 1], samples.device)
        yield from samples[places].split(taken.sum(0).tolist())


@dataclass(frozen=True)
class OfClients(Open):
    clip: float
    noise: float  # multiplier
    numbers: int  # parameters of both networks

    private = True

    def charges(self) -> tuple[Charge, ...]:
        return ((SampledGaussian(self.recipe.sample_rate, self.noise, self.recipe.rounds, self.numbers),),)

    def facts(self) -> dict[str, Any]:
        return {"clip_norm": self.clip, "noise_multiplier_least": self.noise}

    def clients(self, number: int) -> list[int]:
        everybody = np.arange(len(self.sizes))
        drawn = self.source.of("sampling").below(self.recipe.sample_rate, everybody, 1, number)[:, 0]
        return [int(k) for k in everybody[drawn.numpy()]]

    def merge(
        self, networks: Sequence[nn.Module], trained: Sequence[States], chosen: list[int], number: int
    ) -> None:
        names = [[name for name, _ in network.named_parameters()] for network in networks]
        parameters = [p for network in networks for p in network.parameters()]
        start = parameters_to_vector(parameters).detach()  # [P]
        total, expected = torch.zeros_like(start), self.recipe.sample_rate * len(self.sizes)
        for states in trained:
            sent = [s[n].flatten() for s, own in zip(states, names, strict=True) for n in own]
            total += clip((torch.cat(sent) - start)[None], self.clip)[0][0]
        total += self.noise * self.clip * self.source.of("server").normal(start, number)
        vector_to_parameters(start + total / expected, parameters)


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


def guard(
    recipe: Distillation,
    sizes: tuple[int, ...],
    *,
    public: Source,
    private: Source,
    protects: MechanismFacts,
    setting: Setting,
    epsilon: float | None,
    clip: float,
    numbers: int,
) -> Open:
    """What fits the run's DP variant, with noise for `epsilon` (None: the training's) at the run's delta.

    What is sent without protection draws from the `public` source, which other runs share.
    """
    targets = setting.budgets if epsilon is None else np.full(setting.clients, epsilon)
    if protects.per_sample:
        if recipe.entropy == "variance":
            raise UserError(
                "stage.entropy=variance: a variance over a batch mixes samples, so gradients cannot be "
                "clipped one sample at a time as this dp_variant does; use stage.entropy=mse"
            )
        without = OfSamples(recipe, sizes, private, clip, (0.0,) * len(sizes), numbers)
        counts = without.participations().tolist()
        kinds, rows = group_charges(
            list(zip(without.per_epoch.tolist(), counts, targets.tolist(), strict=True))
        )
        found = [
            _calibrated(1 / steps, steps * recipe.local_epochs, count, target, setting, numbers)
            for steps, count, target in rows
        ]
        return replace(without, noise=tuple(found[kind] for kind in kinds))
    if protects.weights == "bounded":
        noise = _calibrated(recipe.sample_rate, 1, recipe.rounds, float(targets.min()), setting, numbers)
        return OfClients(recipe, sizes, private, clip, noise, numbers)
    return Open(recipe, sizes, public)


def _calibrated(rate: float, steps: int, count: int, epsilon: float, setting: Setting, numbers: int) -> float:
    return noise_multiplier(
        lambda sigma: (SampledGaussian(rate, sigma, steps, numbers),),
        epsilon=epsilon,
        delta=setting.delta,
        count=count,
        accountant=setting.accountant,
    )
