"""What one participation costs, as events an accountant can compose.

A mechanism carries its own events: the same object calibrates the noise before training and is charged
during it. An event knows its Renyi curve; what has none (a release without noise) costs infinity.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from opacus.accountants import RDPAccountant
from opacus.accountants.analysis.rdp import compute_rdp

# Opacus's orders, and larger ones for heavy noise (small epsilon), where they would be cut off.
ORDERS: tuple[float, ...] = (*RDPAccountant.DEFAULT_ALPHAS, 72, 96, 128, 192, 256, 512)


class Event(Protocol):
    def rdp(self) -> np.ndarray:
        """Renyi divergence at each of ORDERS."""


Charge = tuple[Event, ...]  # what one participation costs: the composition of its events


@dataclass(frozen=True)
class SampledGaussian:
    """`steps` releases of a sum of sensitivity one plus N(0, noise_multiplier^2), Poisson sampled.

    Add-or-remove-one neighbours; `sampling_rate` 1 is the plain Gaussian mechanism.
    """

    sampling_rate: float
    noise_multiplier: float
    steps: int = 1

    def rdp(self) -> np.ndarray:
        return _gaussian(self.sampling_rate, self.noise_multiplier) * self.steps


@lru_cache(maxsize=4096)
def _gaussian(rate: float, multiplier: float) -> np.ndarray:
    if multiplier == 0:
        return np.full(len(ORDERS), np.inf)
    return np.atleast_1d(compute_rdp(q=rate, noise_multiplier=multiplier, steps=1, orders=ORDERS))


@dataclass(frozen=True)
class Direct:
    """An epsilon given directly instead of composed: scale * count^power after `count` participations.

    A text's own formula (power 1/2: the square root of the steps; power 0: "per round"), or basic composition
    of pure differential privacy (power 1). It stands alone in a charge.
    """

    scale: float
    power: float

    def epsilon(self, count: int) -> float:
        return self.scale * count**self.power

    def rdp(self) -> np.ndarray:
        raise NotImplementedError("an epsilon given directly has no Renyi curve and composes with nothing")


@dataclass(frozen=True)
class Pure:
    """A release that is epsilon-DP with delta 0, as Laplace noise gives it.

    Its divergence is at most epsilon, and at most order * epsilon^2 / 2 (Bun and Steinke 2016).
    """

    epsilon: float

    def rdp(self) -> np.ndarray:
        return np.minimum(self.epsilon, np.array(ORDERS) * self.epsilon**2 / 2)


@dataclass(frozen=True)
class Unprotected:
    """A value released as it is."""

    def rdp(self) -> np.ndarray:
        return np.full(len(ORDERS), np.inf)
