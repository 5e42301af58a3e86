"""Which runs make one line of a figure, which make one point of it, and which must not be mixed."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedpriv.config.schema import GROUPS
from fedpriv.errors import UserError
from fedpriv.figures.results import Result

NAMED = ("dp_variant", "transform")  # what every line is named by
# Without privacy nothing depends on these.
_FOR_PRIVACY = ("epsilon", "delta", "clip_norm", "accountant", "budget")


def text(value: Any) -> str:
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def differing(runs: Sequence[Result], shown: Sequence[str]) -> dict[str, list[str]]:
    """Keys besides `shown` and the seed on which the runs disagree, with the values.

    The values of a group's option are compared among the runs that chose this option.
    """
    found = {}
    for key in dict.fromkeys(k for run in runs for k in run.values if k not in ("seed", *shown)):
        group = key.partition(".")[0]
        seen: dict[Any, set[str]] = {}
        for run in runs:
            if run.private or group not in _FOR_PRIVACY:
                option = run.values.get(group) if key != group and group in GROUPS else None
                seen.setdefault(option, set()).add(text(run.values.get(key)))
        if several := [values for values in seen.values() if len(values) > 1]:
            found[key] = sorted(set().union(*several))
    return found


def refuse_mixed(kind: str, runs: Sequence[Result], shown: Sequence[str], by: Sequence[str] | None) -> None:
    """Every difference between the runs must be visible in the figure; `by` is None where it has no lines."""
    for key in by or ():
        if not any(key in run.values for run in runs):
            raise UserError(f"by={key}: no run has this key; name keys of the runs' config.yaml")
    if found := differing(runs, [*shown, *(by or ())]):
        named = ", ".join(f"{key} ({', '.join(values)})" for key, values in found.items())
        lines = "" if by is None else f", or draw a line for each with by={','.join([*by, *found])}"
        raise UserError(f"{kind}: the runs differ in {named}; give folders of runs that agree{lines}")


@dataclass(frozen=True)
class Line:
    """What the runs of one line have in common, as the legend says it."""

    dp: str
    transform: str
    more: tuple[tuple[str, str], ...] = ()  # by= keys the runs have, and their values

    @property
    def label(self) -> str:
        dp = "no DP" if self.dp == "none" else self.dp.upper()
        parts = [dp, f"{'no' if self.transform == 'none' else self.transform} transform"]
        return ", ".join([*parts, *(f"{k}={v}" for k, v in self.more)])

    def cells(self, by: Sequence[str]) -> dict[str, Any]:
        """The first columns of this line's rows in the table."""
        more = dict(self.more)
        return {"dp": self.dp, "transform": self.transform, **{k: more.get(k, "") for k in by}}


def lines_of(runs: Sequence[Result], by: Sequence[str] = ()) -> dict[Line, list[Result]]:
    """The runs of every line: private before non-private ones, no transform before others."""
    found: dict[Line, list[Result]] = {}
    for run in runs:
        own = {k: run.values.get(k) for k in by if run.private or k.partition(".")[0] not in _FOR_PRIVACY}
        more = tuple((k, text(v)) for k, v in own.items() if v is not None)
        found.setdefault(Line(run.values["dp_variant"], run.values["transform"], more), []).append(run)
    return {line: found[line] for line in sorted(found, key=_rank)}


def _rank(line: Line) -> tuple[Any, ...]:
    numbers = [(k, float(v) if v.replace(".", "", 1).isdigit() else math.inf, v) for k, v in line.more]
    return line.dp == "none", line.dp != "ldp", line.dp, line.transform != "none", line.transform, numbers


def by_value(runs: Sequence[Result], key: str) -> dict[Any, list[Result]]:
    """The runs at each value of a key, in ascending order."""
    values = sorted({run.values[key] for run in runs})
    return {value: [run for run in runs if run.values[key] == value] for value in values}


def one_a_seed(runs: Sequence[Result]) -> list[Result]:
    """Runs of one setting, one for each seed; the same numbers found in two folders count once."""
    found: dict[int, Result] = {}
    for run in runs:
        known = found.setdefault(run.values["seed"], run)
        if _numbers(known) != _numbers(run):
            raise UserError(
                f"{known.folder} and {run.folder} hold the same run with other numbers; leave one of them out"
            )
    return list(found.values())


def _numbers(run: Result) -> list[dict[str, str]]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in run.rounds]


class Mean(NamedTuple):
    """Over seeds; the deviation divides by their number less one, and one seed has none."""

    mean: float
    std: float | None
    seeds: int

    @property
    def spread(self) -> float:
        """The deviation as a length to draw."""
        return self.std or 0.0


def mean_of(values: Sequence[float]) -> Mean:
    with np.errstate(invalid="ignore"):  # a diverged run's infinite loss has no deviation
        std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Mean(float(np.mean(values)), std, len(values))


def over_seeds(runs: Sequence[Result], number: Callable[[Result], float]) -> Mean:
    return mean_of([number(run) for run in one_a_seed(runs)])
