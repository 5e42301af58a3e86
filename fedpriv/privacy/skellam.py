"""Renyi privacy of the Skellam mechanism on rounded vectors (Agarwal, Kairouz and Liu 2021).

An integer vector plus Skellam noise of variance v a coordinate, of sensitivity D1 in L1 and D2 in L2, has at
integer orders a > 1 (their Corollary 1)

  rdp(a) <= a D2^2 / (2 v) + min( ((2 a - 1) D2^2 + 6 D1) / (4 v^2),  3 D1 / (2 v) ).

Poisson sampling amplifies any such curve (Zhu and Wang 2019, Theorem 6, the bound without conditions).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, logsumexp

from fedpriv.privacy.events import ORDERS


def rounded_norm(norm: float, dimension: int, beta: float) -> float:
    """The L2 norm that conditional rounding enforces on vectors of at most `norm` before it.

    min( norm + sqrt(j), sqrt(norm^2 + j/4 + sqrt(2 log(1/beta)) (norm + sqrt(j)/2)) ): one rounding exceeds
    the second with probability at most beta, and is then drawn again.
    """
    root = math.sqrt(dimension)
    likely = norm**2 + dimension / 4 + math.sqrt(2 * math.log(1 / beta)) * (norm + root / 2)
    return min(norm + root, math.sqrt(likely))


def l1_norm(l2: float, dimension: int) -> float:
    """An integer vector has |x|_1 <= sqrt(j) |x|_2 and, as |x| <= x^2 for integers, |x|_1 <= |x|_2^2."""
    return min(math.sqrt(dimension) * l2, l2**2)


def skellam_rdp(order: int, variance: float, l1: float, l2: float) -> float:
    correction = min(
        ((2 * order - 1) * l2**2 + 6 * l1) / (4 * variance**2),
        3 * l1 / (2 * variance),
    )
    return order * l2**2 / (2 * variance) + correction


def poisson_amplified(order: int, rate: float, rdp: Callable[[int], float]) -> float:
    """The curve of a mechanism on a Poisson sample, at an integer order, add-or-remove neighbours."""
    if rate == 1:
        return rdp(order)
    stay = math.log1p(-rate)
    terms = [(order - 1) * stay + math.log(order * rate - rate + 1)]
    for k in range(2, order + 1):
        choose = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
        factor = 0.0 if k == 2 else math.log(3)
        terms.append(factor + choose + (order - k) * stay + k * math.log(rate) + (k - 1) * rdp(k))
    return max(0.0, float(logsumexp(terms)) / (order - 1))


@dataclass(frozen=True)
class SampledSkellam:
    """One release of an integer sum plus Skellam noise, participants Poisson sampled, as an event."""

    sampling_rate: float
    variance: float
    l1: float
    l2: float

    def rdp(self) -> np.ndarray:
        return _curve(self.sampling_rate, self.variance, self.l1, self.l2)

    def known(self) -> None:
        """No privacy loss distribution is known for many coordinates that share two norms."""
        return None


@lru_cache(maxsize=1024)
def _curve(rate: float, variance: float, l1: float, l2: float) -> np.ndarray:
    """At every order; a fraction is answered by the next integer, for divergences grow with the order."""
    if variance == 0:
        return np.full(len(ORDERS), np.inf)
    orders = [math.ceil(o) for o in ORDERS]
    known = {
        o: poisson_amplified(o, rate, lambda k: skellam_rdp(k, variance, l1, l2)) for o in sorted(set(orders))
    }
    return np.array([known[o] for o in orders])
