"""Noise drawn in floats ends somewhere, and a value beyond its end tells outright where it came from.

Normals end at 8.07 deviations (46 random bits make a radius), Laplace noise at 26 (52 bits); the ends are the
samplers' own. What lies within is counted as if it were continuous. The last bits of a sum may tell how
it was rounded (Mironov 2012): that is not counted here.
"""

import math
from collections.abc import Callable

from scipy.special import ndtr

from fedpriv.randomness import gaussian
from fedpriv.randomness import laplace as sampler


def _normal(x: float) -> float:
    return float(ndtr(-x))


def _laplace(x: float) -> float:
    """Of variance one."""
    scaled = x / (1 / math.sqrt(2))
    return 0.5 * math.exp(-scaled) if scaled > 0 else 1 - 0.5 * math.exp(scaled)


Noise = tuple[Callable[[float], float], float]  # P(z > x), and where it ends
NORMAL: Noise = (_normal, gaussian.END)
LAPLACE: Noise = (_laplace, sampler.END)
_ALLOWED = 1e-3  # of delta: a smaller chance of a value beyond the end is not mentioned


def beyond(move: float, numbers: int) -> float:
    """The chance that noise's end tells two data sets apart, whose sums of so many numbers are `move` apart.

    f(v) = P(z > END - v) - P(z > END) is the chance for one number that moves by v deviations, and f(v) / v
    grows with v. Numbers that move by at most one add up to at most f(1) sqrt(numbers) move, and no more than
    move^2 of them can move further, none by more than `move`.
    """
    if not math.isfinite(move):
        return 1.0
    above, end = NORMAL
    one, most = (above(end - v) - above(end) for v in (1.0, move))
    return min(1.0, one * math.sqrt(numbers) * move + math.floor(max(1.0, move**2)) * most)


def outright(what: str, move: float, values: float, delta: float, noise: Noise = NORMAL) -> tuple[str, ...]:
    """The flaw in words, or nothing.

    There is one if data can move each of `values` numbers by `move` deviations, and the chance that one of
    them falls beyond the noise's end is not small beside delta.
    """
    above, end = noise
    chance = values * above(end - move)
    if chance <= _ALLOWED * delta:
        return ()
    often = "some of the values sent tell" if chance > 0.5 else f"with chance {chance:.2g} a value sent tells"
    return (
        f"noise drawn in floats ends at {end:.3g} deviations, and {what} can move by {move:.3g} of them: "
        f"{often} the data outright, at delta {delta:.2g}",
    )
