"""The noise on shared features and what it is worth: epsilon of releasing x_p once, over all pixels jointly.

Two samples' features differ by at most the diagonal of the box they lie in, or twice the clipping norm. With
Gaussian noise of deviation s and L2 distance D, (epsilon, delta) is exact for mu = D / s (Balle and Wang
2018); with Laplace noise epsilon is the L1 distance over the scale s / sqrt(2). FedPD's own analysis treats
one pixel.
"""

import math
from dataclasses import dataclass
from typing import Literal

from dp_accounting import get_epsilon_gaussian
from torch import Tensor

from fedpriv.privacy.events import Charge, Laplace, SampledGaussian, Unprotected
from fedpriv.privacy.floats import LAPLACE, NORMAL, outright
from fedpriv.randomness.laplace import laplaces
from fedpriv.randomness.source import Numbers, Source

Kind = Literal["gaussian", "laplace"]


@dataclass(frozen=True)
class Noise:
    kind: Kind
    std: float

    def draw(self, like: Tensor, source: Source, samples: Numbers, step: int = 0) -> Tensor:
        """Independent noise for every number of `like` [N, ...]; a sample's follows from its number."""
        if not self.std:
            return like.new_zeros(like.shape)
        flat = like.flatten(1)
        if self.kind == "gaussian":
            drawn = source.normals(samples, flat, step)
        else:
            drawn = laplaces(source, samples, flat, step)
        return (self.std * drawn).view(like.shape)


@dataclass(frozen=True)
class Distance:
    """How far two releases can be apart."""

    l1: float
    l2: float
    most: float  # of one number

    def times(self, rows: int) -> "Distance":
        """The same of `rows` rows at once."""
        return Distance(self.l1 * rows, self.l2 * math.sqrt(rows), self.most)


def within(half_widths: Tensor, clip: float | None) -> Distance:
    """The largest norms in a box with these half widths, one a number, of vectors clipped to an L2 norm."""
    l1, l2 = float(half_widths.double().sum()), float(half_widths.double().norm())
    most = float(half_widths.max())
    if clip is None or clip >= l2:
        return Distance(l1, l2, most)
    return Distance(min(l1, math.sqrt(half_widths.numel()) * clip), clip, min(most, clip))


def charge(noise: Noise, distance: Distance) -> Charge:
    """One release at this distance, as an event to compose."""
    if not distance.l2:
        return ()
    if not noise.std:
        return (Unprotected(),)
    if noise.kind == "gaussian":
        return (SampledGaussian(1.0, noise.std / distance.l2),)
    return (Laplace(distance.l1 * math.sqrt(2) / noise.std),)


def flaw(noise: Noise, distance: Distance, numbers: int, delta: float) -> tuple[str, ...]:
    """Why the charge does not hold for floats, if it does not; `numbers` are sent."""
    if not distance.l2 or not noise.std:
        return ()
    law = NORMAL if noise.kind == "gaussian" else LAPLACE
    return outright("a pixel", distance.most / noise.std, numbers, delta, law)


def epsilon(noise: Noise, distance: Distance, delta: float) -> float:
    """Of one release alone."""
    if not distance.l2:
        return 0.0
    if not noise.std:
        return math.inf
    if noise.kind == "gaussian":
        return float(get_epsilon_gaussian(noise.std / distance.l2, delta))
    return distance.l1 * math.sqrt(2) / noise.std
