"""Moves of what is released, over the bound their noise is for.

A release is charged as a sum of sensitivity one and noise of deviation z. The noise is what the same release
has with noise on, less what it has without. So z times (move / noise) is at most 1.
"""

import math
from dataclasses import dataclass, field
from functools import reduce
from operator import add

from torch import Tensor

from fedpriv.audit.finding import Finding, judged
from fedpriv.audit.spread import ROUNDING, Moved, Noise, moved, tensor_at, together
from fedpriv.audit.taps import Bench
from fedpriv.privacy.events import Charge, Joint, Laplace, SampledGaussian
from fedpriv.privacy.skellam import SampledSkellam


def multiplier(charge: Charge | None, count: int = 1) -> float | None:
    """Deviation of the noise (Laplace: its scale) over the largest move that is charged, or None where that
    is not said. `count`: of participations that share noise."""
    if charge is None or not charge:
        return None
    if all(isinstance(e, SampledGaussian) for e in charge):
        return 1 / math.sqrt(sum(e.noise_multiplier**-2 for e in charge if isinstance(e, SampledGaussian)))
    if len(charge) == 1 and isinstance(charge[0], SampledSkellam):
        return math.sqrt(charge[0].variance) / charge[0].l2
    if len(charge) == 1 and isinstance(charge[0], Laplace):
        return 1 / charge[0].epsilon
    if len(charge) == 1 and isinstance(charge[0], Joint):
        return multiplier(charge[0].of(count))
    return None


def norm_of(charge: Charge | None) -> int:
    """In which moves are charged: L1 for Laplace noise, else L2."""
    return 1 if charge and isinstance(charge[0], Laplace) else 2


def shared_noise(charge: Charge | None) -> bool:
    """Whether a client's rounds share noise, and are charged together."""
    return bool(charge) and isinstance(charge[0], Joint)  # type: ignore[index]


def entries(bench: Bench) -> list[tuple[str, int, int]]:
    return [(e.name, e.start, e.stop) for e in bench.trainer.setting.layout.entries]


@dataclass(frozen=True)
class Seen:
    """One change [P], noise beside it where that is not beside another, and what else moved."""

    kind: int  # of charge
    z: float
    change: Tensor
    noise: Noise | None
    text: str
    more: Moved | None = None


@dataclass
class Largest:
    """The largest move over its bound seen so far, and what it was."""

    check: str
    found: Moved = field(default_factory=lambda: Moved(0.0, 0.0, 0))
    text: str = "nothing moved"

    def see(self, new: Moved, text: str) -> None:
        if new.least > self.found.least:
            self.found, self.text = new, text

    def pool(self, seen: list["Seen"]) -> None:
        """Every change again, against the noise of all that is charged alike."""
        for kind in {s.kind for s in seen}:
            alike_ = [s for s in seen if s.kind == kind]
            noise = reduce(add, [s.noise for s in alike_ if s.noise is not None])
            for s in alike_:
                here = moved(s.change, noise)
                self.see((here if s.more is None else together(here, s.more)).times(s.z), s.text)

    def finding(self, entries: list[tuple[str, int, int]]) -> Finding:
        good = self.found.least <= 1 + ROUNDING
        where = f", most in {tensor_at(entries, self.found.where)}" if entries and self.found.length else ""
        error = f" (error {self.found.error:.2g})" if self.found.error else ""
        text = f"{self.found.length:.4g} times its bound{error}: {self.text}{where}"
        return judged(self.check, good, text, self.found.length, 1.0)
