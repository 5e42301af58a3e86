"""How far a release moves in units of its own noise, and whether that noise is fresh: plain statistics."""

import math
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

SURE = 6.0  # deviations: a check cries wolf once in 10^8 times
ROUNDING = 2e-3  # of float arithmetic, relative
_BLOCK = 256  # numbers whose noise is taken to have one deviation


def blocks(width: int) -> list[slice]:
    """Neighbouring numbers, about _BLOCK at a time."""
    count = max(1, width // _BLOCK)
    edges = [width * i // count for i in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


@dataclass(frozen=True)
class Moved:
    """A move in units of the noise: its length, the error of that, and the block that gives most of it."""

    length: float
    error: float
    where: int  # first number of the block

    def times(self, factor: float) -> "Moved":
        return Moved(self.length * factor, self.error * factor, self.where)

    @property
    def least(self) -> float:
        """What the length is at least, for sure."""
        return self.length - SURE * self.error if math.isfinite(self.length) else self.length


def moved(change: Tensor, noise: Tensor) -> Moved:
    """Of a change [P] and noise [n, P]: sqrt(sum over blocks |change|^2 / variance).

    The variance of a block is estimated of n times its numbers. A change where there is no noise at all is
    infinitely far.
    """
    shares, errors = [], []
    parts, rounding = blocks(len(change)), 1e-12 * float(change.double().square().sum())
    for part in parts:
        square = float(change[part].double().square().sum())
        count = noise[:, part].numel()
        variance = float(noise[:, part].double().square().sum()) / count
        if not math.isfinite(square):
            shares.append(math.inf)  # what is not a number is no move that noise could hide
        elif square <= rounding:
            shares.append(0.0)
        elif variance == 0.0:
            shares.append(math.inf)
        else:
            shares.append(square / variance * max(1, count - 2) / count)
        errors.append(shares[-1] * math.sqrt(2 / count) if math.isfinite(shares[-1]) else 0.0)
    total = math.sqrt(sum(shares))
    worst = max(range(len(parts)), key=lambda i: shares[i])
    error = math.sqrt(sum(e * e for e in errors)) / (2 * total) if 0 < total < math.inf else 0.0
    return Moved(total, error, parts[worst].start)


def together(*parts: Moved) -> Moved:
    """Moves of several things that are released at once."""
    total = math.sqrt(sum(p.length**2 for p in parts))
    if not 0 < total < math.inf:
        return Moved(total, 0.0, parts[0].where)
    error = math.sqrt(sum((p.length * p.error) ** 2 for p in parts)) / total
    return Moved(total, error, max(parts, key=lambda p: p.length).where)


@dataclass(frozen=True)
class Alike:
    """The largest correlation between rows of noise that should have none, and what is the most it may be."""

    value: float
    most: float
    pair: tuple[str, str]

    @property
    def found(self) -> bool:
        return self.value > self.most


def alike(rows: Tensor, names: list[str]) -> Alike:
    """Over all pairs of rows [n, P]; a row without any noise has no correlation."""
    centred = rows.double() - rows.double().mean(1, keepdim=True)
    norms = centred.norm(dim=1, keepdim=True)
    table = (centred / norms.clamp(min=1e-300)) @ (centred / norms.clamp(min=1e-300)).T
    table.fill_diagonal_(0)
    place = int(table.abs().argmax())
    a, b = divmod(place, len(rows))
    return Alike(float(table.abs().max()), SURE / math.sqrt(rows.shape[1]), (names[a], names[b]))


def within(row: Tensor, count: int = 8) -> Alike:
    """The same between equal parts of one row [P], so of its tensors."""
    width = len(row) // count
    if width < 16:
        return Alike(0.0, 1.0, ("", ""))
    parts = row[: width * count].view(count, width)
    return alike(parts, [f"weights {i * width} on" for i in range(count)])


def tensor_at(entries: list[tuple[str, int, int]], place: int) -> str:
    """The name of the tensor a flat place lies in."""
    return next((name for name, start, stop in entries if start <= place < stop), "what is sent besides")
