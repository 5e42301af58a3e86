"""Noise drawn in floats ends somewhere, and a value beyond its end tells outright where it came from."""

import math
from typing import Any

from scipy.stats import laplace, norm

NORMAL_END = 5.77  # deviations: sqrt(-2 log 2^-24), the end of normals made of 24-bit uniform numbers
UNIFORM_END = 1e-16  # a uniform number in double precision is kept so far from its end
LAPLACE_END = -math.log1p(-2 * (0.5 - UNIFORM_END)) / math.sqrt(2)  # deviations of noise that is made of it
NORMAL: tuple[Any, float] = (norm, NORMAL_END)
LAPLACE: tuple[Any, float] = (laplace(scale=1 / math.sqrt(2)), LAPLACE_END)


def outright(what: str, move: float, values: float, noise: tuple[Any, float] = NORMAL) -> tuple[str, ...]:
    """The flaw in words, if of `values` numbers that data can move by `move` deviations some are likely to
    fall beyond the noise's end."""
    law, end = noise
    if values * law.sf(end - move) <= 0.5:
        return ()
    return (
        f"noise drawn in floats ends at {end:.3g} deviations, and {what} can move by {move:.3g} of them: "
        "some of the values sent tell the data outright",
    )
