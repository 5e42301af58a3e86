"""Which runs make one line of a figure, and which must not be mixed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedpriv.errors import UserError
from fedpriv.studies.groups import differing, matters, text
from fedpriv.studies.reader import Result

NAMED = ("dp_variant", "transform")  # what every line is named by


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

    @property
    def brief(self) -> str:
        """Without the transform."""
        dp = "no DP" if self.dp == "none" else self.dp.upper()
        return ", ".join([dp, *(f"{k}={v}" for k, v in self.more)])

    def cells(self, by: Sequence[str]) -> dict[str, Any]:
        """The first columns of this line's rows in the table."""
        more = dict(self.more)
        return {"dp": self.dp, "transform": self.transform, **{k: more.get(k, "") for k in by}}


def lines_of(runs: Sequence[Result], by: Sequence[str] = ()) -> dict[Line, list[Result]]:
    """The runs of every line: private before non-private ones, no transform before others."""
    found: dict[Line, list[Result]] = {}
    for run in runs:
        own = {k: run.values.get(k) for k in by if k not in NAMED and matters(run, k)}
        more = tuple((k, text(v)) for k, v in own.items() if v is not None)
        found.setdefault(Line(run.values["dp_variant"], run.values["transform"], more), []).append(run)
    return {line: found[line] for line in sorted(found, key=_rank)}


def _rank(line: Line) -> tuple[Any, ...]:
    numbers = [(k, float(v) if v.replace(".", "", 1).isdigit() else math.inf, v) for k, v in line.more]
    return line.dp == "none", line.dp != "ldp", line.dp, line.transform != "none", line.transform, numbers
