"""Whether rows of a table differ: paired tests over the seeds they share, corrected for how many there are.

Runs of one seed share the partition and the first model, so their difference says more than both alone. A
paired t-test takes the differences as normal; Wilcoxon's signed-rank test does not, but n seeds cannot give
it a p below 2 / 2^n. Holm's correction keeps the chance of any false finding among all tests at the level.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from fedpriv.studies.cells import Cell, Grid, Key

TESTS = {"t": "paired t-test", "wilcoxon": "Wilcoxon signed-rank test"}
LEVEL = 0.05


@dataclass(frozen=True)
class Pair:
    """One comparison; p is None where there is nothing to test, and `why` says so."""

    where: Key  # the column, or the row where there is only one
    one: Key
    other: Key
    seeds: int
    difference: float  # mean of one minus other
    p: float | None
    why: str = ""
    corrected: float | None = None


def pairs(grid: Grid, test: str) -> list[Pair]:
    """Every two rows in each column; every two columns where there is one row."""
    found = []
    if len(grid.rows) > 1:
        for column, (a, b) in itertools.product(grid.columns, itertools.combinations(grid.rows, 2)):
            found.append(_pair(column, a, b, grid.cells.get((a, column)), grid.cells.get((b, column)), test))
    else:
        (row,) = grid.rows
        for a, b in itertools.combinations(grid.columns, 2):
            found.append(_pair(row, a, b, grid.cells.get((row, a)), grid.cells.get((row, b)), test))
    there = [pair for pair in found if pair is not None]
    corrected = holm([pair.p for pair in there if pair.p is not None])
    return [p if p.p is None else replace(p, corrected=corrected.pop(0)) for p in there]


def _pair(where: Key, a: Key, b: Key, one: Cell | None, other: Cell | None, test: str) -> Pair | None:
    if one is None or other is None:
        return None
    seeds = sorted(one.values.keys() & other.values.keys())
    differences = np.array([one.values[s] - other.values[s] for s in seeds])
    mean = float(differences.mean()) if seeds else math.nan
    why = ""
    if one.diverged or other.diverged:
        why = "diverged"
    elif one.missing or other.missing:
        why = "a seed has no number"
    elif len(seeds) < 2:
        why = "fewer than two seeds in common"
    elif np.ptp(differences) == 0:
        why = "the same difference for every seed"
    p = None if why else _p(differences, test)
    return Pair(where, a, b, len(seeds), mean, p, why)


def _p(differences: np.ndarray, test: str) -> float:
    if test == "t":
        return float(stats.ttest_1samp(differences, 0.0).pvalue)
    return float(stats.wilcoxon(differences).pvalue)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's step-down: the k-th smallest of m times m - k + 1, never below a smaller one's, at most 1."""
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    corrected, largest = [0.0] * len(ps), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, ps[i] * (len(ps) - rank)))
        corrected[i] = largest
    return corrected


def remark(found: Sequence[Pair], test: str) -> str:
    """What the numbers are, and what they cannot say."""
    tested = [pair for pair in found if pair.p is not None]
    said = f"{TESTS[test]} on differences by seed, {len(tested)} tests, p corrected by Holm, level {LEVEL:g}"
    fewest = min((pair.seeds for pair in tested), default=0)
    if test == "wilcoxon" and tested and (least := 2 / 2**fewest) > LEVEL:
        said += f"; with {fewest} seeds no p can be below {least:.3g}: use more seeds"
    return said
