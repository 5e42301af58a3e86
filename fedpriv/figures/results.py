"""Finished runs found below some folders: what was asked of each and what came of it."""

import csv
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fedpriv.config.catalogue import contents, option_of
from fedpriv.config.identity import ADDED, IGNORED
from fedpriv.config.limits import cut
from fedpriv.config.schema import GROUPS
from fedpriv.errors import UserError
from fedpriv.session.screen import errors


@dataclass(frozen=True)
class Result:
    """One finished run."""

    folder: Path
    values: dict[str, Any]  # the config, flat: a group's value is its option, the option's are group.key
    summary: dict[str, Any]
    rounds: list[dict[str, str]]  # metrics.csv

    @property
    def private(self) -> bool:
        return bool(self.values["dp_variant"] != "none")

    def column(self, name: str) -> dict[int, float]:
        """A metric by round, where it was measured."""
        return {int(r["round"]): float(r[name]) for r in self.rounds if r[name]}

    def last(self, name: str) -> float:
        if not (measured := self.column(name)):
            raise UserError(f"{self.folder}: no {name} in metrics.csv; leave this run out")
        return measured[max(measured)]


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
        written = contents(key).get(option, {})
        for name, v in value.items():
            source = re.fullmatch(r"\$\{(\w+)\}", str(written.get(name)))
            if name != "_target_" and not (source and config.get(source.group(1)) == v):
                values[f"{key}.{name}"] = v
    return values


def read(folder: Path) -> Result:
    values = _file(folder / "config.yaml", lambda path: flat(dict(_yaml(path))))
    summary = _file(folder / "summary.json", lambda path: dict(json.loads(path.read_text()).items()))
    return Result(folder, values, summary, _file(folder / "metrics.csv", _rounds))


def _yaml(path: Path) -> Any:
    return OmegaConf.to_container(OmegaConf.load(path))


def _file(path: Path, reader: Callable[[Path], Any]) -> Any:
    try:
        return reader(path)
    except Exception as problem:  # whatever a damaged file makes its reader raise
        reason = cut(f"{type(problem).__name__}: {problem}", 200)
        raise UserError(f"{path}: cannot be read as a file of a run ({reason}); mend it") from problem


def _rounds(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        rounds = list(csv.DictReader(file))
    if not rounds:
        raise ValueError("there is no round in it")
    for row in rounds:  # `column` relies on it
        int(row["round"])
        for name, value in row.items():
            float(value or 0)
            if name.startswith("accuracy") and value and not 0 <= float(value) <= 1:
                raise ValueError(f"{name} is {value}")
    return rounds


def find(folders: Sequence[Path]) -> tuple[list[Result], int]:
    """Every finished run in or below the folders, and how many unfinished ones there are."""
    found: dict[Path, Path] = {}  # the real place -> as it was given: no run counts twice
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder; give run folders or a folder that holds some")
        for file in sorted(folder.rglob("metrics.csv")):
            found.setdefault(file.parent.resolve(), file.parent)
    finished = [f for f in found.values() if (f / "summary.json").exists()]
    if not finished:
        given = ", ".join(map(str, folders))
        raise UserError(f"{given}: no finished run there; make some with `fedpriv run`")
    runs, problems = [], []
    for place in finished:
        try:
            runs.append(read(place))
        except UserError as problem:
            problems.append(problem)
    if not runs:
        raise problems[0]
    for left_out in problems:
        errors.print(f"warning: {left_out}; the run is left out", soft_wrap=True)
    return runs, len(found) - len(finished)
