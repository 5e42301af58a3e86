"""What the commands on runs are told: folders, key=value to choose runs by, and options of their own."""

import difflib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpriv.config.composing import expand
from fedpriv.errors import UserError
from fedpriv.studies.groups import matters
from fedpriv.studies.reader import Result

EVERYWHERE = Path("outputs")  # where runs are looked for unless a folder is named


@dataclass
class Told:
    """A command line on runs, sorted out."""

    folders: list[Path]
    filters: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    flags: dict[str, list[str]] = field(default_factory=dict)  # "--sort": its values


def sort_out(
    arguments: Sequence[str], options: Collection[str] = (), flags: Mapping[str, int] | None = None
) -> Told:
    """`options` are the command's own key=value; `flags` its --words with how many values follow each."""
    told, words = Told([]), list(arguments)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            if name not in (flags or {}):
                known = ", ".join(flags or {}) or "none"
                raise UserError(f"{name}: no such option; there is {known}")
            count = (flags or {})[name]
            values = [value] if equals else words[:count]
            del words[: 0 if equals else count]
            if len(values) < count:
                raise UserError(f"{name}: needs {count} value{'s' * (count > 1)} after it")
            told.flags[name] = values
        elif equals and not os.path.isdir(word):
            key = expand(name)
            (told.options if key in options else told.filters)[key] = value
        else:
            told.folders.append(Path(word))
    told.folders = told.folders or [EVERYWHERE]
    return told


def chosen(runs: Iterable[Result], filters: Mapping[str, str]) -> list[Result]:
    """The runs that agree with every key=value,value; a key that no run has is refused."""
    runs = list(runs)
    for key, text in filters.items():
        known = {name for run in runs for name in facts(run)}
        if runs and key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = (
                f"did you mean {near[0]}?" if near else "name a key of config.yaml or summary.json, or state"
            )
            raise UserError(f"{key}={text}: no run has {key}; {hint}")
        runs = [run for run in runs if any(same(facts(run).get(key), v) for v in _several(text))]
    return runs


def _several(text: str) -> list[str]:
    return [text] if text.startswith("[") else text.split(",")


def facts(run: Result) -> dict[str, Any]:
    """Everything a run can be chosen or sorted by."""
    said = {key: value for key, value in run.values.items() if matters(run, key)}
    return {**measured(run), **said, "state": run.state, "folder": str(run.folder)}


def measured(run: Result) -> dict[str, Any]:
    """The numbers of summary.json."""
    return {
        k: v for k, v in run.summary.items() if isinstance(v, int | float | None) and not isinstance(v, bool)
    }


def same(value: Any, text: str) -> bool:
    """Equal as numbers, if both are, else as texts; null is None."""
    if value is None:
        return text in ("null", "None", "")
    try:
        return float(value) == float(text)
    except (TypeError, ValueError):
        return str(value).replace(" ", "").lower() == text.replace(" ", "").lower()


def in_order(value: Any) -> tuple[int, float, str]:
    """To sort by: numbers as such, then texts, then nothing."""
    if value is None or value == "":
        return 2, 0.0, ""
    if isinstance(value, int | float):
        return 0, float(value), ""
    try:
        return 0, float(str(value)), ""
    except ValueError:
        return 1, 0.0, str(value)
