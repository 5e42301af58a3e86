"""What protects the two networks' updates while they are distilled: what protects the training, or nothing.

The distillation is a federated run of its own, with a `Setting` of its own and the mechanism of the training
in it: dp=ldp where single samples are clipped (private_step.py is its step), dp=cdp where the server adds the
noise, else none. Noise is calibrated to an epsilon of its own. All that is random follows from one source and
the numbers of round, client and sample: nobody's absence changes what others draw.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedpriv.accelerator import there
from fedpriv.aggregators.mean import Mean
from fedpriv.engine import batches
from fedpriv.engine.dropout import sample_names
from fedpriv.engine.layout import Layout
from fedpriv.errors import UserError
from fedpriv.mechanisms.base import Mechanism, NoPrivacy
from fedpriv.mechanisms.cdp import CDP
from fedpriv.mechanisms.ldp import LDP
from fedpriv.parts.declarations import MechanismFacts, Wiring
from fedpriv.privacy.events import Charge, SampledGaussian
from fedpriv.privacy.ledger import Ledger
from fedpriv.randomness.source import Source
from fedpriv.rounds.setting import Round, Setting
from fedpriv.stages.fedpd.losses import Distillation, Step
from fedpriv.stages.fedpd.private_step import PrivateStep
from fedpriv.stages.fedpd.vae import Distiller

State = dict[str, Tensor]
States = tuple[State, State]  # of the distiller and the classifier


@dataclass(frozen=True)
class Open:
    """No protection: updates go out as they are and are averaged by size."""

    recipe: Distillation
    setting: Setting  # of the distillation: its rounds, its steps, its budgets
    source: Source = field(repr=False)  # of all that is random

    private = False

    @cached_property
    def mechanism(self) -> Mechanism:
        return NoPrivacy()

    @cached_property
    def _planned(self) -> tuple[Ledger, list[np.ndarray]]:
        """What is random about the rounds is known beforehand; who cannot pay for another stays out."""
        setting, participation = self.setting, self.mechanism.facts.participation
        guarantee = self.mechanism.setup(setting, Wiring(participation=participation))
        ledger, rounds = Ledger(guarantee, setting.budgets, setting.delta, setting.accountant), []
        for number in range(setting.rounds):
            draw = self.source.of("sampling", number)
            clients, _ = participation.clients(number, ledger.eligible(), setting, draw)
            ledger.charge(participation.charged(clients, setting), clients)
            rounds.append(clients)
        return ledger, rounds

    @property
    def ledger(self) -> Ledger:
        """Of the distillation alone, as it stands at its end."""
        return self._planned[0]

    @property
    def participants(self) -> list[np.ndarray]:
        """The clients of every round."""
        return self._planned[1]

    def options(self) -> tuple[object, ...]:
        """All that decides a distillation besides data, networks and the source."""
        setting = self.setting
        return (
            type(self).__name__,
            self.recipe,
            setting.sizes.tolist(),
            setting.budgets.tolist(),
            setting.delta,
        )

    def charges(self) -> tuple[Charge, ...]:
        """What distilling costs each client."""
        return ((),)

    def facts(self) -> dict[str, Any]:
        return {}

    def part(self, owned: Tensor, client: int) -> Tensor:
        """The samples a client distils with, of those it owns: the same ones every round."""
        order = self.source.of("part", client).permutation(len(owned))
        return owned[order[: int(self.setting.sizes[client])].to(owned.device)]

    def step(self, distiller: Distiller, classifier: nn.Module, number: int, client: int) -> Step:
        return Step(self.recipe, distiller, classifier, self._steps(number, client))

    def _steps(self, number: int, client: int) -> Source:
        return self.source.of("steps", number, client)

    def batches(self, samples: Tensor, number: int, client: int) -> Iterator[Tensor]:
        """Passes over shuffled samples."""
        for epoch in range(self.recipe.local_epochs):
            order = self.source.of("batches", number, client, epoch).permutation(len(samples))
            yield from samples[order.to(samples.device)].split(self.recipe.batch_size)

    def merge(self, networks: Sequence[nn.Module], trained: Sequence[States], number: int) -> None:
        """The networks of a round's participants become the next ones, in place."""
        weights = self.setting.sizes[self.participants[number]].tolist()
        if trained:
            for network, states in zip(networks, zip(*trained, strict=True), strict=True):
                network.load_state_dict(_mean(states, weights))


@dataclass(frozen=True)
class Protected(Open):
    clip: float

    private = True

    def options(self) -> tuple[object, ...]:
        return (*super().options(), self.clip, self.ledger.guarantee.noise.tolist())

    def charges(self) -> tuple[Charge, ...]:
        guarantee, found = self.ledger.guarantee, []
        assert guarantee.provable is not None
        for kind, count in zip(guarantee.kinds, self.ledger.participations, strict=True):
            found.append(tuple(_times(event, int(count)) for event in guarantee.provable[kind] if count))
        return tuple(found)

    def facts(self) -> dict[str, Any]:
        return {"clip_norm": self.clip, "noise_multiplier_least": float(self.ledger.guarantee.noise.min())}


@dataclass(frozen=True)
class OfSamples(Protected):
    """A client's steps are DP-SGD on Poisson batches, which may be empty."""

    @cached_property
    def mechanism(self) -> Mechanism:
        return LDP(clip_norm=self.clip)

    def part(self, owned: Tensor, client: int) -> Tensor:
        """Each sample is drawn on its own; `setting.sizes` has the expected number."""
        drawn = self.source.of("part", client).below(self.recipe.data_fraction, owned, 1)[:, 0]
        return owned[drawn.to(owned.device)]

    def step(self, distiller: Distiller, classifier: nn.Module, number: int, client: int) -> Step:
        std = float(self.ledger.guarantee.noise[client]) * self.clip
        steps = self._steps(number, client)
        return PrivateStep(self.recipe, distiller, classifier, steps, clip=self.clip, std=std)

    def batches(self, samples: Tensor, number: int, client: int) -> Iterator[Tensor]:
        rate = torch.tensor([1.0 / self.setting.epochs_steps[client]], dtype=torch.float64)
        steps = torch.tensor([self.setting.steps[client]])
        names = sample_names(torch.tensor([client]), samples[None].cpu())
        draws = self.source.of("batches", number)
        plan = batches.poisson(torch.tensor([len(samples)]), rate, steps, names, draws)
        places = there(plan.index[0], samples.device)  # all batches at once: no batch waits for its numbers
        for index, size in zip(places, plan.size[0].tolist(), strict=True):
            yield samples[index[:size]]


@dataclass(frozen=True)
class OfClients(Protected):
    """The update of both networks is clipped as a whole, and the server adds noise to the mean."""

    @cached_property
    def mechanism(self) -> Mechanism:
        return CDP(clip_norm=self.clip)

    def merge(self, networks: Sequence[nn.Module], trained: Sequence[States], number: int) -> None:
        names = [[name for name, _ in network.named_parameters()] for network in networks]
        parameters = [p for network in networks for p in network.parameters()]
        start = parameters_to_vector(parameters).detach()  # [P]
        sent = [
            torch.cat([s[n].flatten() for s, own in zip(states, names, strict=True) for n in own])
            for states in trained
        ]
        moved = torch.stack(sent) - start if sent else start.new_zeros(0, len(start))  # [C, P]
        round_ = self._round(number, start)
        mean = Mean()
        private = self.mechanism.client(moved, round_, self.source.of("clients", number))
        aggregate = mean(private, round_) if len(private) else torch.zeros_like(start)
        largest, draw = mean.largest_weight(round_), self.source.of("server", number)
        vector_to_parameters(start + self.mechanism.server(aggregate, round_, largest, draw), parameters)

    def _round(self, number: int, start: Tensor) -> Round:
        setting, noise = self.setting, self.ledger.guarantee.noise
        expected = setting.sample_rate * setting.clients
        return setting.round(
            number, self.participants[number], expected, True, lr=self.recipe.lr, noise=noise, start=start
        )


def _times(event: object, count: int) -> SampledGaussian:
    assert isinstance(event, SampledGaussian)
    return replace(event, steps=event.steps * count)


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


def setting_of(
    recipe: Distillation,
    sizes: Sequence[int],
    networks: Sequence[nn.Module],
    training: Setting,
    epsilon: float | None = None,
) -> Setting:
    """The distillation as a run: its clients distil with `sizes` samples and have the training's budgets, or
    `epsilon` each."""
    owned = torch.tensor(sizes)
    once = batches.steps_per_epoch(owned, recipe.batch_size).numpy()
    named: dict[str, Tensor] = {
        f"{n}.{name}": p for n, network in enumerate(networks) for name, p in network.named_parameters()
    }
    return replace(
        training,
        rounds=recipe.rounds,
        sample_rate=recipe.sample_rate,
        batch_size=recipe.batch_size,
        sizes=owned.numpy(),
        steps=once * recipe.local_epochs,
        epochs_steps=once,
        layout=Layout(named),
        budgets=training.budgets if epsilon is None else np.full(training.clients, epsilon),
        schedule=None,
    )


def protection_of(
    recipe: Distillation,
    setting: Setting,
    protects: MechanismFacts,
    *,
    public: Source,
    private: Source,
    clip: float,
) -> Open:
    """What fits the run's DP variant. What is sent without protection draws from the `public` source, which
    other runs share."""
    if protects.per_sample:
        if recipe.entropy == "variance":
            raise UserError(
                "stage.entropy=variance: a variance over a batch mixes samples, so gradients cannot be "
                "clipped one sample at a time as this dp_variant does; use stage.entropy=mse"
            )
        return OfSamples(recipe, setting, private, clip)
    if protects.weights == "bounded":
        return OfClients(recipe, setting, private, clip)
    return Open(recipe, setting, public)
