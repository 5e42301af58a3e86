"""outputs/reproduced/<paper>-<artifact>.csv: one row per run, with its identity and everything measured.

A row is what makes a run "done", here or on the machine of whoever committed it. Rows are appended by one
process only, the one that was asked to reproduce.
"""

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fedpriv.config.limits import MOST, cut
from fedpriv.errors import UserError
from fedpriv.files import write_atomically
from fedpriv.reproduce.recipe import Cell, Recipe, own
from fedpriv.session.screen import errors
from fedpriv.studies.reader import diverged

FOLDER = Path("outputs") / "reproduced"
MEASURED = (
    "accuracy_local_best", "accuracy_local_last", "accuracy_local_mean_last10", "accuracy_global_best",
    "accuracy_global_last", "accuracy_global_mean_last10", "emd", "rounds_to_target", "epsilon_spent",
    "epsilon_provable", "uplink_bytes", "uplink_bytes_projected", "downlink_bytes", "parameters", "rounds",
    "seconds", "peak_memory_mb", "diverged",
)  # fmt: skip
UNREADABLE = (OSError, csv.Error, UnicodeDecodeError)
CURVE = "accuracy_global_rounds"  # "1:0.1135 2:0.2042 ...", every evaluated round
ABOUT = ("data", "git_revision", "torch", "overrides")  # data: their fingerprint, in rows since there is one


@dataclass(frozen=True)
class Row:
    """One finished run of a recipe."""

    identity: str
    seed: int
    scale: str
    cell: Mapping[str, str]
    measured: Mapping[str, float | None]
    curve: Mapping[int, float]  # round: accuracy on the whole test set; empty in rows without it
    about: Mapping[str, str]


def folder_of(which: str) -> Path:
    """Where the rows of what is asked for are: of a recipe of one's own in a folder beside it."""
    path = own(which)
    return path.with_suffix("") if path else FOLDER


def path_of(recipe: Recipe, folder: Path = FOLDER) -> Path:
    return folder / f"{recipe.paper}-{recipe.artifact}.csv"


def read(recipe: Recipe, folder: Path = FOLDER) -> list[Row]:
    path = path_of(recipe, folder)
    if not path.exists():
        return []
    lines = _lines(path)
    if lacking := _lacking(lines, recipe):
        _leave_out(str(path), lacking)
        return []
    found: dict[tuple[str, ...], Row] = {}
    for number, line in enumerate(lines, 2):
        try:
            row = _row(line, recipe)
        except (KeyError, ValueError, TypeError) as problem:
            _leave_out(f"{path}, row {number}", problem)
            continue
        key = (row.identity, *row.cell.values())
        if key in found:
            _leave_out(f"{path}, row {number}", "the same run as a row above")
        else:
            found[key] = row
    return list(found.values())


def _lacking(lines: list[dict[str, str]], recipe: Recipe) -> str:
    """What every row must have and these have not, in words."""
    missing = [name for name in ("identity", "seed", "scale", *recipe.axes) if lines and name not in lines[0]]
    return f"it has no column {', '.join(missing)}" if missing else ""


def ready(recipe: Recipe, folder: Path = FOLDER) -> list[dict[str, str]]:
    """The rows so far; refuses a file that could not be written anew without losing something, and a folder
    that takes none."""
    path = path_of(recipe, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lines = _table(path) if path.exists() else []
    except UNREADABLE as problem:
        raise UserError(f"{path}: cannot be written ({_reason(problem)}); mend or remove it") from problem
    lacking = _lacking(lines, recipe)
    for number, line in enumerate(lines, 2):
        if not lacking and (None in line or None in line.values()):
            lacking = f"row {number} has not one value a column"
    if lacking:
        raise UserError(f"{path}: {lacking}, as after an edit; mend the file or move it away")
    if not os.access(folder, os.W_OK):
        raise UserError(f"{folder}: nothing can be written there; start from a folder of your own")
    return lines


def _lines(path: Path) -> list[dict[str, str]]:
    """The rows of one file; none, and a warning, if it is no table."""
    try:
        return _table(path)
    except UNREADABLE as problem:
        _leave_out(str(path), problem)
        return []


def _table(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@cache
def _told(text: str) -> None:
    errors.print(text, soft_wrap=True)


def _leave_out(where: str, why: object) -> None:
    """Say once what is not used, and go on with the rest."""
    _told(f"warning: {where} is left out ({_reason(why)}); mend or remove it")


def _reason(why: object) -> str:
    return cut(f"{type(why).__name__}: {why}" if isinstance(why, Exception) else why, 200)


def _row(line: dict[str, str], recipe: Recipe) -> Row:
    if None in line or None in line.values():
        raise ValueError("it has not one value a column")
    return Row(
        identity=line["identity"],
        seed=int(line["seed"]),
        scale=line["scale"],
        cell={axis: line[axis] for axis in recipe.axes},
        measured={name: _measured(name, line.get(name)) for name in MEASURED},
        curve=_curve(line.get(CURVE) or ""),
        about={name: line.get(name, "") for name in ABOUT},
    )


def _measured(name: str, text: str | None) -> float | None:
    if not text:
        return None
    value = float(text)
    if not math.isfinite(value) or value < 0 or (name.startswith("accuracy") and value > 1):
        raise ValueError(f"{name} is {text}")
    return value


def _curve(text: str) -> dict[int, float]:
    pairs = (pair.partition(":") for pair in text.split())
    return {int(number): _measured("accuracy", value) or 0.0 for number, _, value in pairs}


def known(folder: Path = FOLDER) -> dict[str, dict[str, str]]:
    """Every row of every recipe, by identity: a run made for one table serves another."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(folder.glob("*.csv")):
        lines = [line for line in _lines(path) if _sound(line)]
        found |= {line["identity"]: line for line in lines if line.get("identity")}
    return found


def _sound(line: Mapping[str, str]) -> bool:
    """Whether a row, of whatever recipe, says what a run measured."""
    try:
        for name in MEASURED:
            _measured(name, line.get(name))
        _curve(line.get(CURVE) or "")
    except (ValueError, TypeError):
        return False
    return bool(line.get("identity"))


def of_summary(summary: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, str]:
    """The cells of a row that come from a run's summary.json."""
    line = {name: _text(summary.get(name)) for name in (*MEASURED, CURVE)}
    line["data"] = _text(summary.get("data"))
    line["git_revision"] = _text(summary.get("git_revision"))
    line["torch"] = _text(summary.get("versions", {}).get("torch"))
    line["overrides"] = " ".join(overrides)
    return line


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def add(
    recipe: Recipe,
    cell: Cell,
    seed: int,
    scale: str,
    identity: str,
    line: Mapping[str, str],
    folder: Path = FOLDER,
) -> None:
    """Put one run into the recipe's file, sorted by cell and seed, once for each cell that is this run."""
    path = path_of(recipe, folder)
    columns = ["identity", "seed", "scale", *recipe.axes, *MEASURED, CURVE, *ABOUT]
    own = {"identity": identity, "seed": str(seed), "scale": scale, **cell.facts}
    rows = [{c: row.get(c) or "" for c in columns} for row in ready(recipe, folder)]
    rows = [row for row in rows if any(row[c] != own[c] for c in ("identity", *recipe.axes))]
    rows.append({c: own.get(c, line.get(c, "")) for c in columns})
    places = [list(values) for values in recipe.axes.values()]

    def place(row: dict[str, str]) -> list[int]:
        order = [p.index(row[a]) if row[a] in p else len(p) for a, p in zip(recipe.axes, places, strict=True)]
        return [*order, int(row["seed"]) if row["seed"].isdecimal() else MOST]

    write_atomically(path, _csv(columns, sorted(rows, key=place)).encode())


def _csv(columns: list[str], rows: list[dict[str, str]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def finished(runs: Path) -> dict[str, Path]:
    """The folders of finished runs, by the first characters of their identity, which end their names."""
    return {path.parent.name.rpartition("-")[2]: path.parent for path in runs.glob("*/summary.json")}


def sound_summary(folder: Path) -> dict[str, Any] | None:
    """summary.json of a finished run, and its curve; None and a warning where its files are damaged."""
    try:
        return summary_of(folder)
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, csv.Error) as problem:
        _leave_out(f"{folder} (summary.json, metrics.csv)", problem)
        return None


def summary_of(folder: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    with open(folder / "metrics.csv", newline="") as file:
        rounds = list(csv.DictReader(file))
    summary[CURVE] = " ".join(
        f"{r['round']}:{float(r['accuracy_global']):.4g}" for r in rounds if r["accuracy_global"]
    )
    summary["diverged"] = int(diverged(rounds))
    if "projected.Projected" in (folder / "config.yaml").read_text():
        summary["uplink_bytes_projected"] = _projected(rounds[-1], 4 * summary["parameters"])
    return summary


def _projected(last: Mapping[str, str], whole: int) -> float | None:
    """Bytes a round of a client that sends coordinates; the others send a whole vector, which is far more."""
    others, rest = divmod(int(last["uplink_bytes"]), whole)
    senders = int(last["participants"]) - others
    return rest / senders if senders else None
