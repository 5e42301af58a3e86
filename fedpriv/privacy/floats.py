"""Noise drawn in floats ends somewhere, and a value beyond its end tells outright where it came from.

Normals end at 8.07 deviations (46 random bits make a radius), Laplace noise at 26 (52 bits); the ends are the
samplers' own. What lies within is counted as if it were continuous. The last bits of a sum may tell how
it was rounded (Mironov 2012): that is not counted here.
"""

import math
from typing import Any

from scipy.stats import laplace, norm

from fedpriv.randomness import gaussian
from fedpriv.randomness import laplace as sampler

NORMAL: tuple[Any, float] = (norm, gaussian.END)
LAPLACE: tuple[Any, float] = (laplace(scale=1 / math.sqrt(2)), sampler.END)
_ALLOWED = 1e-3  # of delta: a smaller chance of a value beyond the end is not mentioned


def beyond(move: float, numbers: int) -> float:
    """The chance that noise's end tells two data sets apart, whose sums of so many numbers are `move` apart.

    f(v) = P(z > END - v) - P(z > END) is the chance for one number that moves by v deviations, and f(v) / v
    grows with v. Numbers that move by at most one add up to at most f(1) sqrt(numbers) move, and no more than
    move^2 of them can move further, none by more than `move`.
    """
    if not math.isfinite(move):
        return 1.0
    law, end = NORMAL
    one, most = (float(law.sf(end - v) - law.sf(end)) for v in (1.0, move))
    return min(1.0, one * math.sqrt(numbers) * move + math.floor(max(1.0, move**2)) * most)


def outright(
    what: str, move: float, values: float, delta: float, noise: tuple[Any, float] = NORMAL
) -> tuple[str, ...]:
    """The flaw in words, or nothing.

    There is one if data can move each of `values` numbers by `move` deviations, and the chance that one of
    them falls beyond the noise's end is not small beside delta.
    """
    law, end = noise
    chance = values * law.sf(end - move)
    if chance <= _ALLOWED * delta:
        return ()
    often = "some of the values sent tell" if chance > 0.5 else f"with chance {chance:.2g} a value sent tells"
    return (
        f"noise drawn in floats ends at {end:.3g} deviations, and {what} can move by {move:.3g} of them: "
        f"{often} the data outright, at delta {delta:.2g}",
    )
