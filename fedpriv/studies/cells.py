"""A table of runs: which runs are one cell, their mean over seeds, and which cell of a column is best.

Inside a cell runs differ in the seed alone, or the table is refused: a mean over other differences says
nothing. What differs between cells and is not shown is said in a remark.
"""

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from fedpriv.errors import UserError
from fedpriv.studies import guarantees
from fedpriv.studies.groups import Mean, differing, matters, mean_of, one_a_seed, text
from fedpriv.studies.reader import Result
from fedpriv.studies.selecting import in_order, measured

Key = tuple[str, ...]  # one value of each key
NOTHING = "-"  # the value of a key that means nothing to a run, such as epsilon without privacy
OWN = "per client"  # the epsilon of a run whose clients have budgets of their own
LESS_IS_BETTER = (
    "emd", "rounds_to_target", "epsilon_spent", "epsilon_provable", "uplink_bytes", "downlink_bytes",
    "seconds", "peak_memory_mb",
)  # fmt: skip
SPREAD = "sqrt(s1^2 + s2^2)"
SHARED = ("dataset", "model", "partition", "clients", "rounds")


@dataclass
class Cell:
    """Runs of one setting, one for each seed."""

    values: dict[int, float] = field(default_factory=dict)  # by seed
    diverged: int = 0
    missing: int = 0  # seeds without this number: a target that was never reached

    @property
    def seeds(self) -> int:
        return len(self.values) + self.diverged + self.missing

    @property
    def mean(self) -> Mean | None:
        """None where a seed diverged or has no number: a mean over the others would flatter."""
        return mean_of(list(self.values.values())) if self.values and self.seeds == len(self.values) else None


class Grid:
    """Cells by (row, column)."""

    def __init__(self, runs: Sequence[Result], rows: Sequence[str], columns: Sequence[str], value: str):
        shown = [*rows, *columns]
        for key in shown:
            if not any(key in run.values for run in runs):
                raise UserError(f"{key}: no run has this key; the runs differ in {_named(runs, ())}")
        if twice := sorted({key for key in shown if shown.count(key) > 1}):
            raise UserError(f"{twice[0]}: name it once, in rows= or in columns=")
        if "seed" in shown:
            raise UserError("seed: the table is a mean over seeds; `fedpriv runs` lists them one by one")
        _known(runs, value)
        self.runs, self.row_keys, self.column_keys, self.value = list(runs), list(rows), list(columns), value
        groups: dict[tuple[Key, Key], list[Result]] = {}
        for run in runs:
            groups.setdefault((_key(run, rows), _key(run, columns)), []).append(run)
        self.hidden = differing(runs, shown)
        for place, members in groups.items():
            _refuse_mixed(place, shown, members)
        self.rows, self.columns = (
            sorted({place[side] for place in groups}, key=lambda key: [_order(word) for word in key])
            for side in (0, 1)
        )
        self.cells = {place: self._cell(members) for place, members in groups.items()}

    def _cell(self, members: Sequence[Result]) -> Cell:
        cell = Cell()
        for run in one_a_seed(members):
            number = run.summary.get(self.value)
            if run.diverged:
                cell.diverged += 1
            elif number is None:
                cell.missing += 1
            else:
                cell.values[run.values["seed"]] = float(number)
        return cell

    @cached_property
    def best(self) -> set[tuple[Key, Key]]:
        """In each column the cell that leads every other by more than the deviation of a difference."""
        found = set()
        for column in self.columns:
            means = {row: self.mean(row, column) for row in self.rows}
            known = {row: mean for row, mean in means.items() if mean is not None}
            if len(known) < 2:
                continue
            sign = -1 if self.value in LESS_IS_BETTER else 1
            first = max(known, key=lambda row: sign * known[row].mean)
            others = [mean for row, mean in known.items() if row != first]
            if all(_leads(known[first], other, sign) for other in others):
                found.add((first, column))
        return found

    def mean(self, row: Key, column: Key) -> Mean | None:
        cell = self.cells.get((row, column))
        return cell.mean if cell else None

    @property
    def seeds(self) -> list[int]:
        """The numbers of seeds that cells have."""
        return sorted({cell.seeds for cell in self.cells.values()})

    # -- what is said below it

    def caption(self) -> str:
        counts = self.seeds
        seeds = f"{counts[0]} seed{'s' * (counts[0] > 1)}" if len(counts) == 1 else "the seeds (n: how many)"
        parts = [f"{words(self.value)}, mean ± standard deviation over {seeds}"]
        parts.append(
            f"bold: the {'lowest' if self.value in LESS_IS_BETTER else 'highest'} of its column, where it "
            f"leads every other by more than the standard deviation of a difference of two runs, {SPREAD}"
        )
        if any(cell.diverged for cell in self.cells.values()):
            parts.append("diverged: so many seeds ended with an infinite loss; no mean is taken")
        common = {key: {text(run.values.get(key)) for run in self.runs} for key in SHARED}
        same = [f"{key} {values.pop()}" for key, values in common.items() if len(values) == 1]
        parts.append(f"all runs: {', '.join(same)}")
        return ". ".join(part[0].upper() + part[1:] for part in parts) + "."

    def remarks(self) -> list[str]:
        """Differences between cells that the table does not show, of their guarantees too."""
        return [
            *(
                f"the cells also differ in {key} ({', '.join(values)}), which the table does not show"
                for key, values in self.hidden.items()
            ),
            *guarantees.remarks(self.runs),
        ]


def words(value: str) -> str:
    """A number of summary.json for a reader."""
    found = value.split("_")
    if found[0] == "accuracy" and len(found) >= 3:
        where = "on the whole test set" if found[1] == "global" else "of every client's own model"
        when = {"last": "after the last round", "best": "in the best round, picked on test data"}
        return f"accuracy {where} {when.get('_'.join(found[2:]), 'over the last ten rounds')}"
    return value.replace("_", " ")


def _key(run: Result, keys: Sequence[str]) -> Key:
    return tuple(_said(run, key) for key in keys)


def _said(run: Result, key: str) -> str:
    if key not in run.values:
        return NOTHING
    if matters(run, key):
        return text(run.values[key])
    return OWN if run.private else NOTHING


def _order(word: str) -> tuple[int, float, str]:
    return in_order(None if word == NOTHING else word)


def _leads(one: Mean, other: Mean, sign: int) -> bool:
    if one.std is None or other.std is None:
        return False
    return sign * (one.mean - other.mean) > math.hypot(one.std, other.std)


def _refuse_mixed(place: tuple[Key, Key], shown: Sequence[str], members: Sequence[Result]) -> None:
    if found := differing(members, shown):
        where = ", ".join(f"{k}={v}" for k, v in zip(shown, [*place[0], *place[1]], strict=True))
        named = ", ".join(f"{key} ({', '.join(values)})" for key, values in found.items())
        first, values = next(iter(found.items()))
        raise UserError(
            f"table: the runs with {where or 'all keys alike'} differ in {named}; show it in rows= "
            f"or columns=, or keep some of the runs with {first}={values[0]}"
        )


def _known(runs: Sequence[Result], value: str) -> None:
    names = dict.fromkeys(name for run in runs for name in measured(run))
    if value not in names:
        near = difflib.get_close_matches(value, names, 1)
        hint = f"did you mean {near[0]}?" if near else f"choose of {', '.join(names)}"
        raise UserError(f"value={value}: no number of summary.json; {hint}")


def _named(runs: Sequence[Result], shown: Sequence[str]) -> str:
    return ", ".join(differing(runs, shown)) or "the seed alone"
