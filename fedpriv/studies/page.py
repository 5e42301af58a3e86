"""The page of a study: every run, curves, epsilon meters, partitions, means over seeds, two configs compared.

`fedpriv report FOLDER` writes it into one file; `fedpriv board` serves it and renews it while runs go on. It
loads nothing from elsewhere, and all but sorting and comparing works without a script.
"""

import csv
import datetime
import hashlib
import itertools
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from fedpriv import __version__
from fedpriv.errors import UserError
from fedpriv.studies import charts, formats, runs
from fedpriv.studies.cells import Grid
from fedpriv.studies.groups import matters, text
from fedpriv.studies.reader import STATES, Result
from fedpriv.studies.table import VALUE, axes_of

Picture = Callable[[Path], str]  # where the page finds a picture
_PICTURES = ("partition.png", "budgets.png")
_MOST_PICTURES = 12


def render(found: Sequence[Result], picture: Picture, *, title: str, live: bool, problem: str = "") -> str:
    template = files("fedpriv.studies").joinpath("page.html.j2").read_text()
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True).from_string(template)
    found, keys = runs.ordered(found), runs.keys_of(found)
    shown = charts.settings(found, keys)
    return page.render(
        title=title,
        live=live,
        problem=problem,
        version=__version__,
        date=datetime.date.today().isoformat(),
        counts={state: n for state in STATES if (n := sum(run.state == state for run in found))},
        keys=keys,
        rows=[_row(run, keys) for run in found],
        curves=_curves(shown[: charts.MOST]),
        legend=[
            {"label": s.label, "colour": s.colour, "dash": s.dash, "runs": len(s.runs)}
            for s in shown[: charts.MOST]
        ],
        more=max(0, len(shown) - charts.MOST),
        meters=[meter for setting in shown if (meter := _meter(setting))],
        means=_means(found),
        pictures=_pictures(found, picture),
        data={str(run.folder): _data(run) for run in found},
    )


def _row(run: Result, keys: Sequence[str]) -> dict[str, Any]:
    numbers, told = runs.numbers(run), runs.told_of(run, keys)
    return {
        "name": runs.name_of(run),
        "folder": str(run.folder),
        "state": runs.state_of(run),
        "kind": "diverged" if run.state == "finished" and run.diverged else run.state,
        "done": len(run.rounds),
        "rounds": run.values.get("rounds") or 0,
        "error": run.error,
        "told": [told.get(key, "") for key in keys],
        "numbers": [
            {"key": name, "value": numbers[name], "text": _text(name, numbers[name])} for name in numbers
        ],
    }


def _text(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return (
        runs.age(value)
        if name == "age"
        else format(value, {"accuracy": ".3f", "seconds": ".1f"}.get(name, ".3g"))
    )


def _curves(shown: Sequence[charts.Setting]) -> list[dict[str, Any]]:
    wanted = (
        ("accuracy_global", "accuracy on the whole test set", 1.0),
        ("epsilon_max", "largest epsilon spent", None),
    )
    drawn = [(charts.svg(shown, name, f"{title} over the rounds", top), title) for name, title, top in wanted]
    return [{"svg": Markup(picture), "title": title} for picture, title in drawn if picture]


# -- privacy


def _meter(setting: charts.Setting) -> dict[str, Any] | None:
    """How much of the largest budget is spent, in the run that has spent most."""
    private = [run for run in setting.runs if run.private]
    spent = [n for run in private if (n := runs.numbers(run)["epsilon_spent"]) is not None]
    budgets = [b for run in private if (b := _budget(run)) is not None]
    if not spent or not budgets:
        return None
    return {
        "label": setting.label,
        "spent": float(f"{max(spent):.4g}"),
        "budget": float(f"{max(budgets):.4g}"),
    }


def _budget(run: Result) -> float | None:
    """The largest budget of a client: one epsilon for all, or the first round of clients.csv says it."""
    if run.values.get("budget") == "constant":
        return float(run.values.get("budget.epsilon", run.values["epsilon"]))
    try:
        with open(run.folder / "clients.csv", newline="") as file:
            first = itertools.islice(csv.DictReader(file), int(run.values["clients"]))
            budgets = [float(row["epsilon_budget"]) for row in first if row["epsilon_budget"]]
    except (OSError, KeyError, ValueError, TypeError, csv.Error):
        return None  # not yet written, or damaged: there is no meter then
    return max((b for b in budgets if math.isfinite(b)), default=None)


# -- means over seeds


def _means(found: Sequence[Result]) -> dict[str, Any]:
    finished = [run for run in found if run.state == "finished"]
    if not finished:
        return {"why": "no run is finished yet"}
    try:
        grid = Grid(finished, *axes_of(finished, {}), VALUE)
    except UserError as problem:
        return {"why": str(problem)}
    lines = [
        {
            "head": row,
            "cells": [
                {"text": formats.plain(grid, row, column), "best": (row, column) in grid.best}
                for column in grid.columns
            ],
        }
        for row in grid.rows
    ]
    return {"header": formats.header(grid), "left": len(grid.row_keys), "lines": lines,
            "notes": [grid.caption(), *grid.remarks()]}  # fmt: skip


# -- pictures


def _pictures(found: Sequence[Result], picture: Picture) -> list[dict[str, str]]:
    """Every different partition and drawing of budgets once, with the runs that have it."""
    owners: dict[tuple[str, str], list[Result]] = {}
    where: dict[tuple[str, str], Path] = {}
    for run, name in itertools.product(found, _PICTURES):
        path = run.folder / name
        if path.exists():
            key = (name, _digest(path, path.stat().st_mtime_ns))
            owners.setdefault(key, []).append(run)
            where.setdefault(key, path)
    shown = []
    for key, path in list(where.items())[:_MOST_PICTURES]:
        values = owners[key][0].values
        seeds = sorted({text(run.values.get("seed")) for run in owners[key]})
        about = f"{values.get('dataset')}, {values.get('partition')}" if key[0] == _PICTURES[0] else "budgets"
        runs_ = f"{len(owners[key])} run{'s' * (len(owners[key]) > 1)}"
        shown.append({"source": picture(path), "caption": f"{about}: seed {', '.join(seeds)}, {runs_}"})
    return shown


@lru_cache(maxsize=10_000)
def _digest(path: Path, changed: int) -> str:
    """Of a file's content; read again when it has changed."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _data(run: Result) -> dict[str, Any]:
    """For the comparison of two configs."""
    told = {key: text(value) for key, value in run.values.items() if matters(run, key)}
    measured = {k: v for k, v in runs.numbers(run).items() if v is not None and k != "age"}
    return {"name": runs.name_of(run), "told": told, "measured": {k: f"{v:.6g}" for k, v in measured.items()}}
