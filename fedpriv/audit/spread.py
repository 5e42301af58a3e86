"""How far a release moves in units of its own noise, and whether that noise is fresh: plain statistics."""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
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


@dataclass(frozen=True)
class Noise:
    """Rows of noise, as the sums over rows of squares (norm 1: of what they are without sign), [P]."""

    totals: Tensor
    rows: int
    norm: int

    @classmethod
    def of(cls, noise: Tensor, norm: int = 2) -> "Noise":
        """Of [n, P], which may be whole numbers."""
        noise = noise if noise.is_floating_point() else noise.double()
        length = torch.linalg.vector_norm(noise, norm, dim=0, dtype=torch.float64)
        return cls(length.pow(norm), len(noise), norm)

    def __add__(self, other: "Noise") -> "Noise":
        return Noise(self.totals + other.totals, self.rows + other.rows, self.norm)


def moved(change: Tensor, noise: Tensor | Noise, norm: int = 2) -> Moved:
    """Of a change [P] and noise [n, P]: sqrt(sum over blocks |change|^2 / variance).

    The variance of a block is estimated of n times its numbers. A change where there is no noise at all is
    infinitely far. With norm 1, of Laplace noise: the sum over blocks of |change|_1 / scale.
    """
    noise = noise if isinstance(noise, Noise) else Noise.of(noise, norm)
    norm = noise.norm
    parts, power = blocks(len(change)), change.double().abs().pow(norm)
    lengths, counts = _totals(power, parts), np.array([noise.rows * (p.stop - p.start) for p in parts])
    widths = _totals(noise.totals, parts) / counts  # variance, or Laplace's scale
    rounding = 1e-12 * float(power.sum()) if norm == 2 else 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = lengths / widths * (np.maximum(1, counts - 2) / counts if norm == 2 else 1.0)
    shares = np.where(lengths <= rounding, 0.0, np.where(widths == 0, math.inf, ratios))
    shares[~np.isfinite(lengths)] = math.inf  # what is not a number is no move that noise could hide
    errors = np.where(np.isfinite(shares), shares, 0.0) * np.sqrt(norm / counts)
    if norm == 2:
        return _root(shares.tolist(), errors.tolist(), parts)
    return Moved(float(shares.sum()), float(np.linalg.norm(errors)), parts[int(shares.argmax())].start)


def _totals(values: Tensor, parts: list[slice]) -> np.ndarray:
    """The sum of every block of [P]."""
    return np.asarray(np.add.reduceat(values.cpu().numpy(), [part.start for part in parts]))


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
