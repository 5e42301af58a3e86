"""Every number the five papers print (reference.csv), and which of them belong to a recipe's cell."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

_COLUMNS = ("method", "dataset", "dp", "epsilon", "delta", "clients")


@dataclass(frozen=True)
class Printed:
    """One published number: what it is of, under which setting."""

    paper: str
    artifact: str
    metric: str
    facts: tuple[tuple[str, str], ...]  # the columns and the parts of `setting` that are not empty
    value: float  # nan: printed as never reached
    source: str  # "table" or "text"
    line: int  # where in reference.csv
    against: Any = None  # the other cell of a difference, as a recipe reads it: {axis: value or {own: other}}

    def fact(self, name: str) -> str | None:
        return dict(self.facts).get(name)

    def agrees(self, cell: Mapping[str, str]) -> bool:
        """Whether every value of a cell is this number's, as far as the paper says."""
        facts = dict(self.facts)
        return all(
            name not in facts or any(same(fact, value) for fact in facts[name].split("|"))
            for name, value in cell.items()
        )


def same(a: str, b: str) -> bool:
    """Equal as numbers, if both are, else as texts."""
    try:
        return float(a) == float(b)
    except ValueError:
        return a == b


@cache
def printed() -> tuple[Printed, ...]:
    text = files("fedpriv.reproduce").joinpath("reference.csv").read_text()
    return tuple(_read(line, row) for line, row in enumerate(csv.DictReader(text.splitlines()), 2))


def _read(line: int, row: dict[str, str]) -> Printed:
    facts = {name: row[name] for name in _COLUMNS}
    facts |= dict(part.partition("=")[::2] for part in row["setting"].split(";") if part)
    kept = tuple((name, value) for name, value in facts.items() if value)
    return Printed(
        row["paper"],
        row["artifact"],
        row["metric"],
        kept,
        float("nan" if row["value"] == "none" else row["value"]),
        row["source"],
        line,
    )


def of(paper: str, artifact: str | None = None) -> list[Printed]:
    return [p for p in printed() if p.paper == paper and artifact in (None, p.artifact)]
