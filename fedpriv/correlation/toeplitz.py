"""Toeplitz encoders: C[t, s] = c_(t-s), c_0 = 1. Banded ones, and buffered linear ones (BLT).

banded  c_j = 0 from `bands` on, the others free (Choquette-Choo et al. 2023, here with equal diagonals):
        y_t = z_t - sum_j c_j y_(t-j), of the last bands - 1 rows.
blt     c_j = sum_i scale_i decay_i^(j-1) (McMahan et al. 2024): y_t = z_t - sum_i scale_i b_i, and then
        b_i <- decay_i b_i + y_t: of as many buffers as there are decays, however many rounds.

Both minimise the mean variance of the prefix sums at equal privacy, sensitivity^2 sum_t var_t, over c. A C^-1
is Toeplitz too, with s = (1 + x + x^2 + ...) / c(x) on its diagonals, so that var_t = s_0^2 + ... + s_t^2.

The worst pattern of participations is 0, b, 2b, ...: for bands <= b because columns b apart have no round in
common, and their norms only shrink towards the end; else for coefficients that never grow and are never
negative (Kalinin and Lampert 2024, theorem 2). Other coefficients are replaced by the least such ones
above them, entry by entry, which can only overstate the sensitivity.
"""

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.signal import lfilter
from torch import Tensor

from fedpriv.correlation.base import Correlation, Normal

_DIGITS = 6  # of what is optimised: what follows is the same wherever the search ends within that
_NEAREST = 1 - 1e-6  # a decay to one


class Toeplitz(Correlation):
    def __init__(self, coefficients: np.ndarray, bands: int):
        self.c, self.bands = coefficients, bands  # [rounds]; how many of them are not zero
        self.exact = True
        self._rows: list[Tensor] = []  # the last bands - 1, newest first

    def sensitivities(self, times: int, separation: int) -> np.ndarray:
        c = self.c
        if self.bands > separation and not (c.min() >= 0 and (np.diff(c) <= 0).all()):
            c, self.exact = np.maximum.accumulate(np.abs(c)[::-1])[::-1], False
        total, found = np.zeros(len(c)), []
        for first in range(0, times * separation, separation):
            if first < len(c):
                total[first:] += c[: len(c) - first]
            found.append(float(np.sqrt(total @ total)))
        return np.array(found)

    def variances(self) -> np.ndarray:
        return np.cumsum(lfilter([1.0], self.c[: self.bands], np.ones(len(self.c))) ** 2)

    def row(self, normal: Normal) -> Tensor:
        y = normal(0).clone()
        for coefficient, before in zip(self.c[1:], self._rows, strict=False):
            y.sub_(before.to(y), alpha=float(coefficient))
        self._rows = [y, *self._rows][: self.bands - 1]
        return y

    def state(self) -> dict[str, Any]:
        return {"rows": self._rows}

    def load(self, state: dict[str, Any]) -> None:
        self._rows = list(state["rows"])

    @property
    def memory(self) -> int:
        return self.bands - 1


class Banded(Toeplitz):
    def __init__(self, rounds: int, bands: int):
        bands = min(bands, rounds)
        c = np.zeros(rounds)
        c[:bands] = banded(rounds, bands)
        super().__init__(c, bands)


class BLT(Toeplitz):
    def __init__(self, rounds: int, times: int, separation: int, buffers: int):
        self.scales, self.decays = blt(rounds, times, separation, buffers)
        super().__init__(_blt_coefficients(self.scales, self.decays, rounds), rounds)
        self._buffers: Tensor | None = None  # [buffers, D]

    def variances(self) -> np.ndarray:
        return np.cumsum(_blt_sums(self.scales, self.decays, len(self.c)) ** 2)

    def row(self, normal: Normal) -> Tensor:
        z = normal(0)
        held = z.new_zeros(len(self.scales), len(z)) if self._buffers is None else self._buffers.to(z)
        y = z - torch.as_tensor(self.scales).to(z) @ held
        self._buffers = torch.as_tensor(self.decays).to(z)[:, None] * held + y
        return y

    def state(self) -> dict[str, Any]:
        return {"buffers": self._buffers}

    def load(self, state: dict[str, Any]) -> None:
        self._buffers = state["buffers"]

    @property
    def memory(self) -> int:
        return len(self.scales)


@lru_cache(maxsize=64)
def banded(rounds: int, bands: int) -> np.ndarray:
    """The best c_0, ..., c_(bands-1) for clients that take part at least `bands` rounds apart."""
    left = np.arange(rounds, 0, -1.0)  # [rounds] how many prefix sums a diagonal of A C^-1 is in

    def objective(free: np.ndarray) -> tuple[float, np.ndarray]:
        """The logarithm of sensitivity^2 times summed variance, and its gradient."""
        c = np.concatenate([[1.0], free])
        s = lfilter([1.0], c, np.ones(rounds))
        with np.errstate(over="ignore", invalid="ignore"):
            error, length = float(left @ s**2), float(c @ c)
            again = lfilter([1.0], c, s)  # d s / d c_j is minus this, j rounds later
            slope = [-2 * float((left * s)[j:] @ again[: rounds - j]) for j in range(1, bands)]
        if not np.isfinite(error):
            return 1e9, np.zeros(len(free))
        return np.log(error * length), np.array(slope) / error + 2 * free / length

    start = np.cumprod([1.0, *(1 - 0.5 / np.arange(1, bands))])[1:]  # of the root of A: 1, 1/2, 3/8, ...
    if not len(start):
        return np.ones(1)
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 500})
    return np.concatenate([[1.0], found.x.round(_DIGITS)])


@lru_cache(maxsize=64)
def blt(rounds: int, times: int, separation: int, buffers: int) -> tuple[np.ndarray, np.ndarray]:
    """The best scales and decays, [buffers] each."""
    left = np.arange(rounds, 0, -1.0)

    def read(free: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        scales, decays = np.exp(free[:buffers]), 1 / (1 + np.exp(-free[buffers:]))
        # Coefficients shall not grow: c_1, the sum of the scales, is at most c_0 = 1.
        return scales / max(1.0, float(scales.sum())), decays.clip(max=_NEAREST)

    def objective(free: np.ndarray) -> float:
        scales, decays = read(free)
        total = _together(_blt_coefficients(scales, decays, rounds), times, separation)
        return float(np.log(left @ _blt_sums(scales, decays, rounds) ** 2) + np.log(total @ total))

    gaps = np.geomspace(0.5, 1 / max(2, rounds), buffers)  # decays that forget after 2 rounds ... never
    start = np.concatenate([np.full(buffers, np.log(0.4 / buffers)), np.log((1 - gaps) / gaps)])
    found = minimize(objective, start, method="L-BFGS-B", bounds=[(-16, 2)] * buffers + [(-8, 16)] * buffers)
    scales, decays = (values.round(_DIGITS) for values in read(found.x))
    return scales / max(1.0, float(scales.sum()) * (1 + 1e-12)), decays.clip(max=_NEAREST)


def _together(c: np.ndarray, times: int, separation: int) -> np.ndarray:
    """The sum of the columns 0, b, 2b, ..., `times` of them, [rounds], in time linear in the rounds."""
    rows = -(-len(c) // separation)
    total = np.pad(c, (0, rows * separation - len(c))).reshape(rows, separation).cumsum(0)
    if times < rows:
        total[times:] -= total[:-times].copy()
    return np.asarray(total.reshape(-1)[: len(c)])


def _blt_coefficients(scales: np.ndarray, decays: np.ndarray, rounds: int) -> np.ndarray:
    powers = decays ** np.arange(rounds - 1)[:, None]  # [rounds - 1, buffers]
    return np.concatenate([[1.0], powers @ scales])


def _blt_sums(scales: np.ndarray, decays: np.ndarray, rounds: int) -> np.ndarray:
    """The diagonals of A C^-1, [rounds], in time linear in the rounds: 1 / c(x) is a ratio of polynomials."""
    below = np.poly(decays)  # prod (1 - decay x), by falling powers of 1 / x
    above = below.copy()
    for i, scale in enumerate(scales):
        above[1:] += scale * np.poly(np.delete(decays, i))
    return np.asarray(lfilter(below, above, np.ones(rounds)))
