"""How far a release moves in units of its own noise, and whether that noise is fresh: plain statistics."""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
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


def moved(change: Tensor, noise: Tensor, norm: int = 2) -> Moved:
    """Of a change [P] and noise [n, P]: sqrt(sum over blocks |change|^2 / variance).

    The variance of a block is estimated of n times its numbers. A change where there is no noise at all is
    infinitely far. With norm 1, of Laplace noise: the sum over blocks of |change|_1 / scale.
    """
    if norm == 1:
        return _summed(change, noise)
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
    return _root(shares, errors, parts)


def _summed(change: Tensor, noise: Tensor) -> Moved:
    """The scale of Laplace noise is the mean of what it is without its sign."""
    shares, errors, parts = [], [], blocks(len(change))
    for part in parts:
        length, count = float(change[part].double().abs().sum()), noise[:, part].numel()
        scale = float(noise[:, part].double().abs().mean())
        shares.append(0.0 if length == 0 else length / scale if scale and math.isfinite(length) else math.inf)
        errors.append(shares[-1] / math.sqrt(count) if math.isfinite(shares[-1]) else 0.0)
    worst = max(range(len(parts)), key=lambda i: shares[i])
    return Moved(sum(shares), math.sqrt(sum(e * e for e in errors)), parts[worst].start)


def moved_over_rounds(change: Tensor, noise: Tensor) -> Moved:
    """Of changes [T, P] and noise [n, T, P] of rounds that share it: sqrt(sum over blocks of the trace of
    change^T covariance^-1 change), the covariance [T, T] being that of the rounds.

    Rounds whose noise is not independent at all (a singular covariance) hide nothing from who subtracts.
    """
    rounds, parts = change.shape[0], blocks(change.shape[1])
    rounding = 1e-12 * float(change.double().square().sum())
    shares, errors = [], []
    for part in parts:
        d, z = change[:, part].double(), noise[:, :, part].double().transpose(0, 1).flatten(1)  # [T, n b]
        count = z.shape[1]
        factor, failed = torch.linalg.cholesky_ex(z @ z.T / count)
        if not bool(d.isfinite().all()):
            shares.append(math.inf)
        elif float(d.square().sum()) <= rounding:
            shares.append(0.0)
        elif int(failed):
            shares.append(math.inf)
        else:
            whole = float(torch.linalg.solve_triangular(factor, d, upper=False).square().sum())
            shares.append(whole * max(1, count - rounds - 1) / count)
        errors.append(shares[-1] * math.sqrt(2 / count) if math.isfinite(shares[-1]) else 0.0)
    return _root(shares, errors, parts)


def _root(shares: list[float], errors: list[float], parts: list[slice]) -> Moved:
    """The length of which these are the squared shares of blocks."""
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
