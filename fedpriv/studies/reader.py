"""The one reader of run folders: which runs there are, how each ended, what was asked and what came of it.

`fedpriv runs`, `table`, `figure`, `report`, `board` and `fedpriv.results` all look through it.
"""

import csv
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fedpriv.config.catalogue import option_of, written
from fedpriv.config.identity import ADDED, IGNORED
from fedpriv.config.limits import cut
from fedpriv.config.schema import GROUPS
from fedpriv.errors import UserError
from fedpriv.files import LOCK, held
from fedpriv.session.claim import STATUS
from fedpriv.session.screen import errors

STATES = ("finished", "running", "failed", "unfinished", "damaged")
_LOSSES = ("train_loss_mean", "loss_local", "loss_global")
_DATED = ("summary.json", STATUS, "metrics.csv", "config.yaml", LOCK)  # the first one there says when


@dataclass(frozen=True)
class Result:
    """One run. What it did not get to is empty."""

    folder: Path
    values: dict[str, Any]  # the config, flat: a group's value is its option, the option's are group.key
    summary: dict[str, Any]
    rounds: list[dict[str, str]]  # metrics.csv
    state: str = "finished"
    error: str = ""  # of a failed or damaged one
    when: float = 0.0  # seconds since the epoch

    @property
    def private(self) -> bool:
        return bool(self.values.get("dp_variant") != "none")

    @property
    def diverged(self) -> bool:
        return diverged(self.rounds)

    def column(self, name: str) -> dict[int, float]:
        """A metric by round, where it was measured."""
        return {int(r["round"]): float(r[name]) for r in self.rounds if r.get(name)}

    def last(self, name: str) -> float:
        if not (measured := self.column(name)):
            raise UserError(f"{self.folder}: no {name} in metrics.csv; leave this run out")
        return measured[max(measured)]


def diverged(rounds: Sequence[Mapping[str, str]]) -> bool:
    """Whether a loss was no finite number when it was last measured."""
    measured = [[r[name] for r in rounds if r.get(name)] for name in _LOSSES]
    return any(column and not math.isfinite(float(column[-1])) for column in measured)


def flat(config: dict[str, Any]) -> dict[str, Any]:
    """Dotted keys of what decides a run's numbers; a value that an option only took over from the top level,
    as budget.epsilon does, is left out."""
    values: dict[str, Any] = {}
    before = {key: value for key, value in ADDED.items() if "." not in key}  # of runs older than the key
    for key, value in (before | config).items():
        if key in (*IGNORED, "samples_at"):
            continue
        if key not in GROUPS:
            values[key] = value
            continue
        values[key] = option = option_of(key, value)
        file = written(key).get(option, {})
        for name, v in value.items():
            source = re.fullmatch(r"\$\{(\w+)\}", str(file.get(name)))
            taken = source and config.get(source.group(1)) == v
            if name != "_target_" and f"{key}.{name}" not in IGNORED and not taken:
                values[f"{key}.{name}"] = v
    return values


# -- one folder


def read(folder: Path) -> Result:
    """Whatever is in a run's folder; what cannot be read makes it a damaged one."""
    when = next(((folder / n).stat().st_mtime for n in _DATED if (folder / n).exists()), 0.0)
    try:
        if (folder / "summary.json").exists():
            values = _file(folder / "config.yaml", _values)
            summary = _file(folder / "summary.json", lambda path: dict(json.loads(path.read_text()).items()))
            return Result(folder, values, summary, _file(folder / "metrics.csv", _rounds), when=when)
        config, metrics = folder / "config.yaml", folder / "metrics.csv"
        values = _file(config, _values) if config.exists() else {}
        rounds = _file(metrics, _begun) if metrics.exists() else []
    except UserError as problem:
        return Result(folder, {}, {}, [], "damaged", str(problem), when)
    error = "" if (running := held(folder)) else _error(folder / STATUS)
    state = "running" if running else "failed" if error else "unfinished"
    return Result(folder, values, {}, rounds, state, error, when)


def _file(path: Path, reader: Callable[[Path], Any]) -> Any:
    try:
        return reader(path)
    except Exception as problem:  # whatever a damaged file makes its reader raise
        reason = cut(f"{type(problem).__name__}: {problem}", 200)
        raise UserError(f"{path}: cannot be read as a file of a run ({reason}); mend it") from problem


def _values(path: Path) -> dict[str, Any]:
    content: Any = OmegaConf.to_container(OmegaConf.load(path))
    return flat(dict(content))


def _rounds(path: Path) -> list[dict[str, str]]:
    if not (rounds := _begun(path)):
        raise ValueError("there is no round in it")
    return rounds


def _begun(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        rounds = list(csv.DictReader(file))
    for row in rounds:  # `column` relies on it
        int(row["round"])
        for name, value in row.items():
            float(value or 0)
            if name.startswith("accuracy") and value and not 0 <= float(value) <= 1:
                raise ValueError(f"{name} is {value}")
    return rounds


def _error(path: Path) -> str:
    try:
        return str(json.loads(path.read_text())["error"] or "")
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError):
        return f"{path.name} cannot be read"


# -- many folders


Memory = dict[Path, tuple[Any, Result]]  # what was read before, and the state its files were in


def refuse_absent(folders: Sequence[Path]) -> None:
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder; give run folders or a folder that holds some")


def look(folders: Sequence[Path], memory: Memory | None = None) -> list[Result]:
    """Every run in or below the folders, however it ended; none counts twice. With `memory`, for who looks
    often, only what has changed is read again."""
    found: dict[Path, Path] = {}  # the real place -> as it was given
    refuse_absent(folders)
    for folder in folders:
        for place in places(folder):
            found.setdefault(place.resolve(), place)
    return [read(place) if memory is None else _again(place, memory) for place in found.values()]


def _again(folder: Path, memory: Memory) -> Result:
    there = [path.stat() if (path := folder / name).exists() else None for name in _DATED]
    state = ([s and (s.st_mtime_ns, s.st_size) for s in there], held(folder))
    if memory.get(folder, (None,))[0] != state:
        memory[folder] = state, read(folder)
    return memory[folder][1]


def places(folder: Path) -> Iterator[Path]:
    """The run folders in and below a folder."""
    for here, below, names in os.walk(folder):
        below[:] = sorted(name for name in below if not name.startswith("."))
        place, begun = Path(here), {"config.yaml", "identity.txt", STATUS} & set(names)
        if "metrics.csv" in names or (LOCK in names and (begun or held(place))):
            yield place


def find(folders: Sequence[Path]) -> tuple[list[Result], int]:
    """Every finished run in or below the folders, and how many others there are."""
    runs = look(folders)
    finished = [run for run in runs if run.state == "finished"]
    damaged = [run for run in runs if run.state == "damaged"]
    if not finished:
        if damaged:
            raise UserError(damaged[0].error)
        given = ", ".join(map(str, folders))
        raise UserError(f"{given}: no finished run there; make some with `fedpriv run`")
    for run in damaged:
        errors.print(f"warning: {run.error}; the run is left out", soft_wrap=True)
    return finished, len(runs) - len(finished) - len(damaged)
