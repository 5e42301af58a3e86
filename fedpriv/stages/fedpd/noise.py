"""The noise on shared features and what it is worth: epsilon of releasing x_p once, over all pixels jointly.

Two samples' features differ by at most the diagonal of the box they lie in, or twice the clipping norm. With
Gaussian noise of deviation s and L2 distance D, (epsilon, delta) is exact for mu = D / s (Balle and Wang
2018); with Laplace noise epsilon is the L1 distance over the scale s / sqrt(2). FedPD's own analysis treats
one pixel.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from dp_accounting import get_epsilon_gaussian
from torch import Tensor

from fedpriv.privacy.events import Charge, Laplace, SampledGaussian, Unprotected
from fedpriv.privacy.floats import LAPLACE, NORMAL, UNIFORM_END, outright

Kind = Literal["gaussian", "laplace"]


@dataclass(frozen=True)
class Noise:
    kind: Kind
    std: float

    def draw(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """Independent noise for every number of `like`."""
        if self.kind == "gaussian":
            return torch.empty_like(like).normal_(0, self.std, generator=generator) if self.std else 0 * like
        u = torch.empty_like(like, dtype=torch.float64).uniform_(-0.5, 0.5, generator=generator)
        magnitude = -torch.log1p(-2 * u.abs().clamp(max=0.5 - UNIFORM_END))
        return (u.sign() * magnitude * (self.std / math.sqrt(2))).to(like.dtype)


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


def flaw(noise: Noise, distance: Distance, numbers: int) -> tuple[str, ...]:
    """Why the charge does not hold for floats, if it does not; `numbers` are sent."""
    if not distance.l2 or not noise.std:
        return ()
    law = NORMAL if noise.kind == "gaussian" else LAPLACE
    return outright("a pixel", distance.most / noise.std, numbers, law)


def epsilon(noise: Noise, distance: Distance, delta: float) -> float:
    """Of one release alone."""
    if not distance.l2:
        return 0.0
    if not noise.std:
        return math.inf
    if noise.kind == "gaussian":
        return float(get_epsilon_gaussian(noise.std / distance.l2, delta))
    return distance.l1 * math.sqrt(2) / noise.std
