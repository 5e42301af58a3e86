"""What a whole search over options costs, beside one of its runs: both as Renyi curves over ORDERS.

Released are either all trials, which compose, or the best of a random number K of trials that draw their
options alike and independently (Papernot and Steinke 2022). If one trial has the curve e(a), the best has

  K truncated negative binomial of shape n and chance g (theorem 2; n = 1 geometric, n = 0 logarithmic):
      e(a) + (1 + n) min over b of ((1 - 1/b) e(b) + ln(1/g) / b) + ln E[K] / (a - 1)
  K Poisson of mean m (theorem 6):
      e(a) + m d + ln(m) / (a - 1), where one trial is (ln(1 + 1 / (a - 1)), d)-DP

K has to stay secret, and so do the trials that were not chosen.
"""

import math
from typing import Literal

import numpy as np
from scipy.optimize import brentq

from fedpriv.privacy.accountants import RDP
from fedpriv.privacy.events import ORDERS

Law = Literal["fixed", "geometric", "logarithmic", "negative_binomial", "poisson"]
LAWS: tuple[Law, ...] = ("fixed", "geometric", "logarithmic", "negative_binomial", "poisson")
_ORDERS = np.array(ORDERS)
_MOST = 5_000_000  # trials


def shape_of(law: Law, shape: float) -> float:
    return {"geometric": 1.0, "logarithmic": 0.0}.get(law, shape)


def mean_of(shape: float, chance: float) -> float:
    """E[K] of a truncated negative binomial number (definition 1)."""
    if shape == 0:
        return (1 / chance - 1) / math.log(1 / chance)
    return float(shape * (1 - chance) / (chance * (1 - chance**shape)))


def chance_of(shape: float, mean: float) -> float:
    """g, for a given E[K]."""
    if mean <= 1:
        return 1.0
    return math.exp(float(brentq(lambda x: mean_of(shape, math.exp(x)) - mean, -40, -1e-9, xtol=1e-14)))


def chances(law: Law, mean: float, shape: float) -> np.ndarray:
    """P(K = 0), P(K = 1), ... until almost nothing is left."""
    if law == "poisson":
        found = [math.exp(-mean)]
        while sum(found) < 1 - 1e-15 and len(found) < _MOST:
            found.append(found[-1] * mean / len(found))
        return np.array(found)
    n, g = shape_of(law, shape), chance_of(shape_of(law, shape), mean)
    if g == 1:
        return np.array([0.0, 1.0])
    first = (1 - g) / math.log(1 / g) if n == 0 else n * (1 - g) / (g**-n - 1)
    number = np.arange(1, min(_MOST, math.ceil((40 + 10 * n) / g)))
    steps = np.concatenate([[0.0], np.log((1 - g) * (number + n) / (number + 1))])
    return np.concatenate([[0.0], first * np.exp(np.cumsum(steps))])


def drawn(law: Law, mean: float, shape: float, uniform: float) -> int:
    """The number of trials that a uniform number chooses."""
    if law == "fixed":
        return round(mean)
    return int(np.searchsorted(np.cumsum(chances(law, mean, shape)), uniform, side="right"))


def repeated(curve: np.ndarray, law: Law, mean: float, shape: float) -> np.ndarray:
    """The curve of the best of a random number of trials, of one trial's."""
    if law == "poisson":
        rest = [_delta(curve, math.log1p(1 / (a - 1))) for a in ORDERS]
        return curve + mean * np.array(rest) + math.log(mean) / (_ORDERS - 1)
    n = shape_of(law, shape)
    g = chance_of(n, mean)
    more = (1 + n) * float(np.min((1 - 1 / _ORDERS) * curve + math.log(1 / g) / _ORDERS))
    return curve + more + math.log(mean) / (_ORDERS - 1)


def _delta(curve: np.ndarray, epsilon: float) -> float:
    """The delta at an epsilon (Canonne, Kamath and Steinke 2020, proposition 12)."""
    powers = (_ORDERS - 1) * (curve - epsilon + np.log1p(-1 / _ORDERS)) - np.log(_ORDERS)
    return float(min(1.0, np.exp(np.min(powers))))


def epsilon(curve: np.ndarray, delta: float) -> float:
    return RDP.convert(curve, delta)
