"""Parts somebody may write: good ones, and one fault each."""

import numpy as np
import torch

from fedpriv.aggregators.base import Aggregator
from fedpriv.aggregators.mean import Mean
from fedpriv.mechanisms.base import Mechanism
from fedpriv.mechanisms.cdp import CDP
from fedpriv.mechanisms.client_level import clip
from fedpriv.mechanisms.ldp import LDP
from fedpriv.mechanisms.participation import FixedNumber
from fedpriv.parts.declarations import MEANS, MODELS, AggregatorFacts, MechanismFacts
from fedpriv.privacy.calibrate import noise_multiplier
from fedpriv.privacy.events import SampledGaussian
from fedpriv.privacy.ledger import Guarantee
from fedpriv.uploads.plain import Plain


class Median(Aggregator):
    facts = AggregatorFacts(takes=MODELS, symmetric="values")

    def __call__(self, uploads, round_):
        return uploads.median(0).values


class NoisyUpdates(Mechanism):
    """Every client clips its update and adds noise of its own."""

    facts = MechanismFacts(unit="client", replaces=True, participation=FixedNumber(), weights="any")

    def __init__(self, *, clip_norm: float = 1.0):
        self.clip_norm = clip_norm

    def calibrate(self, setting):
        z = noise_multiplier(
            lambda z: (SampledGaussian(1.0, z),),
            epsilon=float(setting.budgets.min()),
            delta=setting.delta,
            count=self.facts.participation.rounds_charged(setting),
            accountant=setting.accountant,
        )
        self.std = 2 * self.clip_norm * z  # replacing an update moves it by two bounds
        charges = [(SampledGaussian(1.0, z),)]
        return Guarantee(
            unit="client",
            relation="replace all data of one client",
            sampler="none: who takes part is known",
            noise=np.full(setting.clients, z),
            kinds=np.zeros(setting.clients, dtype=np.int64),
            claimed=charges,
            provable=charges,
        )

    def client(self, messages, round_, source):
        clipped, _ = clip(messages, self.clip_norm)
        source.add_normals_(clipped, torch.full((len(clipped),), self.std).to(clipped), round_.clients)
        return clipped


class SaysLittle(Aggregator):
    def __call__(self, uploads, round_):
        return uploads.median(0).values


class Trimmed(Aggregator):
    """Of one or two clients nothing is left."""

    def __call__(self, uploads, round_):
        return uploads.sort(0).values[1:-1].mean(0)


class MedianOfAnswers(Median):
    facts = AggregatorFacts(takes=MEANS, symmetric="values")


class NotSymmetric(Aggregator):
    facts = AggregatorFacts(symmetric="rows")

    def __call__(self, uploads, round_):
        return uploads[0]


class TooLight(Mean):
    """Its bound is half of what a client weighs."""

    def largest_weight(self, round_):
        return 0.5 / round_.expected


class Forgets(Mean):
    """Keeps something that is not in its state."""

    last = 0.0

    def __call__(self, uploads, round_):
        result = super().__call__(uploads, round_)
        self.last, before = result, self.last
        return result + 0.5 * before


class ElsewhereMean(Mean):
    """Mixes in a tensor of the CPU."""

    def __call__(self, uploads, round_):
        return super().__call__(uploads, round_) + torch.zeros(uploads.shape[1])


class HalfNoise(CDP):
    def server(self, aggregate, round_, largest_weight, source):
        return super().server(aggregate, round_, largest_weight / 2, source)


class Unclipped(CDP):
    def client(self, messages, round_, source):
        return messages


class Peeks(CDP):
    """Scales everybody by the longest message."""

    def client(self, messages, round_, source):
        return super().client(messages / messages.norm(dim=1).max().clamp(min=1), round_, source)


class LoudSamples(LDP):
    """Clips at twice the norm its noise is made for."""

    def calibrate(self, setting):
        promised = super().calibrate(setting)
        self.training.sigma = self.sigma / 2
        return promised


class Silent(Mechanism):
    """Says nothing of itself."""

    def calibrate(self, setting):
        return LDP().setup(setting)


class Loses(Plain):
    def decode(self, sent, round_):
        return sent.flip(0)
