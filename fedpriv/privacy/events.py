"""What one participation costs, as events an accountant can compose.

A mechanism carries its own events: the same object calibrates the noise before training and is charged
during it. An event knows its Renyi curve; what has none (a release without noise) costs infinity.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import numpy as np

from fedpriv.privacy.floats import beyond
from fedpriv.privacy.opacus_maths import ALPHAS, compute_rdp

if TYPE_CHECKING:  # imported where it is used: by accountant=pld
    from dp_accounting import DpEvent

# Opacus's orders, and larger ones for heavy noise (small epsilon), where they would be cut off.
ORDERS: tuple[float, ...] = (*ALPHAS, 72, 96, 128, 192, 256, 512)


class Event(Protocol):
    def rdp(self) -> np.ndarray:
        """Renyi divergence at each of ORDERS."""

    def known(self) -> "DpEvent | None":
        """The same as an event of dp-accounting, or None where it has none."""


Charge = tuple[Event, ...]  # what one participation costs: the composition of its events


@dataclass(frozen=True)
class SampledGaussian:
    """`steps` releases of a sum of sensitivity one plus N(0, noise_multiplier^2), Poisson sampled.

    Add-or-remove-one neighbours; `sampling_rate` 1 is the plain Gaussian mechanism. Noise that is drawn in
    floats ends somewhere: with the `numbers` of a sum given, that is paid for out of delta.
    """

    sampling_rate: float
    noise_multiplier: float
    steps: int = 1
    numbers: int = 0  # of a sum; 0: ideal noise, without an end

    def beyond(self) -> float:
        """The delta that the end of the noise takes."""
        if not self.numbers or not self.noise_multiplier:
            return 0.0
        return self.steps * self.sampling_rate * beyond(1 / self.noise_multiplier, self.numbers)

    def rdp(self) -> np.ndarray:
        return _gaussian(self.sampling_rate, self.noise_multiplier) * self.steps

    def known(self) -> "DpEvent":
        from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

        one: DpEvent = GaussianDpEvent(self.noise_multiplier)
        if self.sampling_rate < 1:
            one = PoissonSampledDpEvent(self.sampling_rate, one)
        return SelfComposedDpEvent(one, self.steps)


@lru_cache(maxsize=4096)
def _gaussian(rate: float, multiplier: float) -> np.ndarray:
    if multiplier == 0:
        return np.full(len(ORDERS), np.inf)
    return np.atleast_1d(compute_rdp(q=rate, noise_multiplier=multiplier, steps=1, orders=ORDERS))


@dataclass(frozen=True)
class Direct:
    """An epsilon given directly instead of composed: scale * count^power after `count` participations.

    A text's own formula (power 1/2: the square root of the steps; power 0: "per round"), or basic composition
    of pure differential privacy (power 1). A charge that has it has nothing else.
    """

    scale: float
    power: float

    def epsilon(self, count: int) -> float:
        return self.scale * math.pow(count, self.power)

    def rdp(self) -> np.ndarray:
        raise NotImplementedError("an epsilon given directly has no Renyi curve and composes with nothing")

    def known(self) -> None:
        return None


@dataclass(frozen=True)
class Laplace:
    """A vector plus Laplace noise; `epsilon` is its sensitivity in L1 over the noise's scale.

    That is epsilon-DP with delta 0, so the divergence is at most epsilon, and at most order * epsilon^2 / 2
    (Bun and Steinke 2016). One number that moves by all of the L1 distance dominates many that share it.
    """

    epsilon: float

    def rdp(self) -> np.ndarray:
        return np.minimum(self.epsilon, np.array(ORDERS) * self.epsilon**2 / 2)

    def known(self) -> "DpEvent":
        from dp_accounting import LaplaceDpEvent, NoOpDpEvent

        return LaplaceDpEvent(1 / self.epsilon) if self.epsilon else NoOpDpEvent()


@dataclass(frozen=True)
class Joint:
    """All of a client's participations as one Gaussian release: noise that is correlated over rounds.

    `reach` is the sensitivity after 1, 2, ... participations as a share of that of all of them, which
    `noise_multiplier` is the noise over. There are no more participations than that.
    """

    noise_multiplier: float
    reach: tuple[float, ...]
    numbers: int = 0  # of all rounds

    def of(self, count: int) -> Charge:
        """What `count` participations cost, together."""
        if count > len(self.reach):
            return (Unprotected(),)
        return (SampledGaussian(1.0, self.noise_multiplier / self.reach[count - 1], numbers=self.numbers),)

    def rdp(self) -> np.ndarray:
        raise NotImplementedError("participations that share noise are not composed one by one")

    def known(self) -> None:
        return None


@dataclass(frozen=True)
class Unprotected:
    """A value released as it is."""

    def rdp(self) -> np.ndarray:
        return np.full(len(ORDERS), np.inf)

    def known(self) -> "DpEvent":
        from dp_accounting import NonPrivateDpEvent

        return NonPrivateDpEvent()
