"""`fedpriv runs`: what was run, how each ended and what sets them apart; comparing two; cleaning up."""

import csv
import io
import re
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedpriv.config.composing import expand
from fedpriv.errors import UserError
from fedpriv.files import alone
from fedpriv.session.screen import console
from fedpriv.studies import reader, selecting
from fedpriv.studies.groups import differing, matters, text
from fedpriv.studies.reader import Result

HELP = """\
usage: fedpriv runs [FOLDER ...] [key=value ...] [options]

Lists all runs in and below the folders (default: outputs), finished, running, failed and unfinished: what
differs between them, accuracy on the whole test set, epsilon spent, seconds, age. key=value,value keeps the
runs that agree: a key of config.yaml (dp=ldp, epsilon=2,8), a number of summary.json, or state=failed.

options
  --sort KEY           by accuracy, epsilon_spent, seconds, age, state or any key; -KEY: the largest first
  --diff A B           what two runs were told and measured, where they differ; A and B are folders or the
                       ends of their names
  --csv                every key and number as CSV instead of the table
  --clean WHICH        delete the folders of runs: unfinished, failed, or older-than 30d (12h, 4w); lists
                       them and asks first; what is running is never deleted
  --yes                with --clean: do not ask

examples
  fedpriv runs outputs/study state=finished --sort -accuracy
  fedpriv runs --diff 3f2a91c0 77d01b5e
  fedpriv runs outputs/study --clean unfinished
"""
_FLAGS = {"--sort": 1, "--diff": 2, "--csv": 0, "--clean": 1, "--yes": 0}
_SECONDS = {"h": 3600, "d": 86400, "w": 7 * 86400}
_PLAIN = 160  # columns where there is no terminal to measure


def main(arguments: Sequence[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    told = selecting.sort_out(_joined(arguments), flags=_FLAGS)
    runs = selecting.chosen(reader.look(told.folders), told.filters)
    if "--diff" in told.flags:
        one, other = (named(name, runs) for name in told.flags["--diff"])
        _show_difference(one, other)
        return 0
    if not runs:
        which = " ".join(f"{k}={v}" for k, v in told.filters.items())
        given = ", ".join(map(str, told.folders))
        raise UserError(f"{given}: no run {which or 'there'}; make some with `fedpriv run`")
    runs = ordered(runs, *told.flags.get("--sort", ()))
    if "--clean" in told.flags:
        return _clean(runs, told.flags["--clean"][0], ask="--yes" not in told.flags)
    if "--csv" in told.flags:
        print(as_csv(runs), end="")
        return 0
    _show(runs)
    return 0


def _joined(arguments: Sequence[str]) -> list[str]:
    """`--clean older-than 30d` is one wish."""
    return re.sub(r"(?<=\0older-than)[\0=]", " ", "\0".join(("", *arguments))).split("\0")[1:]


# -- what a run is called, and what is said of it


def name_of(run: Result) -> str:
    """The end of the folder's name that tells runs apart, or all of it."""
    found = re.search(r"-([0-9a-f]{8})$", run.folder.name)
    return found.group(1) if found else run.folder.name


def named(word: str, runs: Sequence[Result]) -> Result:
    """A run by its folder, or by the end or beginning of its folder's name."""
    if Path(word).is_dir() and list(reader.places(Path(word)))[:1] == [Path(word)]:
        return reader.read(Path(word))
    found = [run for run in runs if run.folder.name.endswith(word) or name_of(run).startswith(word)]
    if len(found) != 1:
        how = "no run has this name" if not found else f"{len(found)} runs have names like that"
        raise UserError(f"{word}: {how}; `fedpriv runs` lists them")
    return found[0]


def numbers(run: Result, now: float | None = None) -> dict[str, float | None]:
    """What is listed of every run, as far as it got."""
    last = run.rounds[-1] if run.rounds else {}
    accuracies = run.column("accuracy_global")
    spent = float(last.get("epsilon_max") or "inf")
    seconds = sum(run.column("seconds").values()) if run.rounds else None
    return {
        "accuracy": accuracies[max(accuracies)] if accuracies else None,
        "epsilon_spent": run.summary.get("epsilon_spent", spent if spent < float("inf") else None),
        "seconds": run.summary.get("seconds", seconds),
        "age": max(0.0, (now or time.time()) - run.when),
    }


def state_of(run: Result) -> str:
    """In words, with how far it got."""
    if run.state == "finished":
        return "diverged" if run.diverged else "finished"
    rounds = run.values.get("rounds")
    return f"{run.state} {len(run.rounds)}/{rounds}" if rounds and run.state != "damaged" else run.state


def keys_of(runs: Sequence[Result]) -> list[str]:
    """The keys in which the runs differ, the seed last."""
    known = [run for run in runs if run.values]
    seeds = {run.values.get("seed") for run in known}
    return [*differing(known, ()), *(["seed"] if len(seeds) > 1 else [])]


def told_of(run: Result, keys: Sequence[str]) -> dict[str, str]:
    """What a run was told of some keys, those that mean nothing to it left out."""
    return {k: text(run.values[k]) for k in keys if k in run.values and matters(run, k)}


def ordered(runs: Sequence[Result], key: str = "") -> list[Result]:
    """By a key, else by what they were told."""
    name, keys = expand(key.lstrip("-")), keys_of(runs)
    if not name:
        return sorted(runs, key=lambda run: [selecting.in_order(told_of(run, keys).get(k)) for k in keys])
    every = {id(run): {**selecting.facts(run), **numbers(run)} for run in runs}
    if not any(name in facts for facts in every.values()):
        raise UserError(f"--sort {key}: no run has {name}; `fedpriv runs --csv` shows what there is")
    return sorted(
        runs, key=lambda run: selecting.in_order(every[id(run)].get(name)), reverse=key.startswith("-")
    )


def age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


# -- the list


def _show(runs: Sequence[Result]) -> None:
    wide = console if console.is_terminal else Console(highlight=False, markup=False, width=_PLAIN)
    keys, counts = keys_of(runs), {s: sum(r.state == s for r in runs) for s in reader.STATES}
    said = ", ".join(f"{n} {state}" for state, n in counts.items() if n)
    table = Table(title=f"{len(runs)} runs: {said}", title_justify="left")
    for column in ("run", "state", "what differs", "accuracy", "epsilon", "seconds", "age"):
        right = column in ("accuracy", "epsilon", "seconds", "age")
        table.add_column(column, justify="right" if right else "left", overflow="fold", no_wrap=right)
    for run in runs:
        found = numbers(run)
        difference = " ".join(f"{k}={v}" for k, v in told_of(run, keys).items())
        table.add_row(
            name_of(run),
            state_of(run),
            difference,
            _shown(found["accuracy"], ".3f"),
            _shown(found["epsilon_spent"], ".3g"),
            _shown(found["seconds"], ".1f"),
            age(found["age"] or 0.0),
        )
    wide.print(table)
    for run in runs:
        if run.error:
            console.print(f"{run.state}: {name_of(run)}: {run.error}", soft_wrap=True)


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def as_csv(runs: Sequence[Result]) -> str:
    """Everything: a row a run, a column for every key of any config and every number of any summary."""
    rows = []
    for run in runs:
        facts = {k: v for k, v in run.values.items() if matters(run, k)}
        told = {"folder": str(run.folder), "state": run.state, "diverged": int(run.diverged)}
        rows.append({**told, "rounds_done": len(run.rounds), **facts, **selecting.measured(run)})
    columns = list(dict.fromkeys(k for row in rows for k in row))
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, columns, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


# -- two of them


def difference(one: Result, other: Result) -> list[tuple[str, str, str]]:
    """(key, value of one, of the other) wherever two configs differ."""
    found = []
    for key in dict.fromkeys([*one.values, *other.values]):
        a, b = (text(run.values[key]) if key in run.values else "" for run in (one, other))
        if a != b:
            found.append((key, a, b))
    return found


def _show_difference(one: Result, other: Result) -> None:
    table = Table(title="what they were told", title_justify="left")
    measured = Table(title="what came of it", title_justify="left")
    for each in (table, measured):
        for column in ("", name_of(one), name_of(other)):
            each.add_column(column, overflow="fold")
    for row in difference(one, other):
        table.add_row(*row)
    a, b = ({"state": state_of(run), **selecting.measured(run)} for run in (one, other))
    for key in dict.fromkeys([*a, *b]):
        if a.get(key) != b.get(key):
            measured.add_row(key, *(_number(found.get(key, "")) for found in (a, b)))
    if table.row_count:
        console.print(table)
    else:
        console.print("both were told the same")
    console.print(measured if measured.row_count else "and measured the same")


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else text(value)


# -- cleaning up


def _clean(runs: Sequence[Result], which: str, ask: bool) -> int:
    doomed = [run for run in runs if _meant(run, which)]
    if not doomed:
        console.print(f"--clean {which}: there is none")
        return 0
    for run in doomed:
        console.print(f"{state_of(run)}, {age(numbers(run)['age'] or 0.0)} old: {run.folder}", soft_wrap=True)
    if ask:
        if not sys.stdin.isatty():
            raise UserError(f"--clean {which}: nobody to ask whether to delete these; --yes deletes them")
        if input(f"delete these {len(doomed)} runs? [y/N] ").strip().lower() not in ("y", "yes"):
            console.print("nothing was deleted")
            return 1
    kept = 0
    for run in doomed:
        try:
            delete(run.folder)
        except UserError as problem:
            console.print(f"kept: {problem}", soft_wrap=True)
            kept += 1
    console.print(f"{len(doomed) - kept} runs deleted")
    return 1 if kept else 0


def _meant(run: Result, which: str) -> bool:
    if run.state == "running":
        return False
    if which in ("unfinished", "failed"):
        return run.state == which
    span = re.fullmatch(r"older-than (\d+)([hdw])", which)
    if not span:
        raise UserError(f"--clean {which}: choose unfinished, failed or older-than 30d (12h, 4w)")
    return (numbers(run)["age"] or 0.0) > int(span.group(1)) * _SECONDS[span.group(2)]


def delete(folder: Path) -> None:
    """Remove a run's folder, unless a process works in it or other runs live below it."""
    with alone(folder):
        if [place for place in reader.places(folder) if place != folder]:
            raise UserError(f"{folder}: other runs are in folders below it; delete it by hand")
        shutil.rmtree(folder)
