"""Mechanisms as a user could write them: one that keeps its promise, and some that do not."""

import numpy as np
import torch
from torch import Tensor

from fedpriv.mechanisms.base import Mechanism
from fedpriv.mechanisms.participation import Poisson
from fedpriv.parts.declarations import MechanismFacts
from fedpriv.privacy.events import SampledGaussian
from fedpriv.privacy.ledger import Guarantee
from fedpriv.randomness.source import Source
from fedpriv.rounds.setting import Round, Setting


class Cubed(Mechanism):
    """Updates clipped to one, noise on the server: sound."""

    facts = MechanismFacts(unit="client", replaces=False, participation=Poisson(), weights="bounded")
    length, noise = 1.0, 1.0  # of what is right

    def calibrate(self, setting: Setting) -> Guarantee:
        self.z = 4.0
        charge = (SampledGaussian(setting.sample_rate, self.z),)
        return Guarantee(
            unit="client",
            relation="add or remove one client",
            sampler="Poisson",
            noise=np.full(setting.clients, self.z),
            kinds=np.zeros(setting.clients, dtype=np.int64),
            claimed=[charge],
            provable=[charge],
        )

    def client(self, messages: Tensor, round_: Round, source: Source) -> Tensor:
        sound = messages.masked_fill(~messages.norm(dim=1, keepdim=True).isfinite(), 0)
        return sound * (self.length / sound.norm(dim=1, keepdim=True).clamp(min=self.length))

    def server(self, aggregate: Tensor, round_: Round, largest_weight: float, source: Source) -> Tensor:
        return aggregate + self.noise * self.z * largest_weight * source.normal(aggregate)


class Longer(Cubed):
    """Clipped at one and a half."""

    length = 1.5


class Quieter(Cubed):
    """Nine tenths of the noise."""

    noise = 0.9


class Stale(Cubed):
    """The same noise in every round."""

    def server(self, aggregate: Tensor, round_: Round, largest_weight: float, source: Source) -> Tensor:
        return super().server(aggregate, round_, largest_weight, Source(bytes(32)))


class Elsewhere(Cubed):
    """Noise that follows from no key."""

    def server(self, aggregate: Tensor, round_: Round, largest_weight: float, source: Source) -> Tensor:
        return aggregate + self.z * largest_weight * torch.randn_like(aggregate)


class Telling(Cubed):
    """Releases nothing unless a client's update is long: that there is a release tells of it."""

    def server(self, aggregate: Tensor, round_: Round, largest_weight: float, source: Source) -> Tensor:
        if aggregate.norm() < 0.5 * largest_weight:
            return torch.zeros_like(aggregate)
        return super().server(aggregate, round_, largest_weight, source)
