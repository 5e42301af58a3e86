"""`fedpriv reproduce`: run what a published table or figure needs, and go on where the last call stopped."""

import json
import os
import shlex
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedpriv.commands import sweeping
from fedpriv.config import identity
from fedpriv.config.composing import in_one_line
from fedpriv.device import choose_device
from fedpriv.engine.base import cores
from fedpriv.errors import UserError
from fedpriv.reproduce import recipe as recipes
from fedpriv.reproduce import rows
from fedpriv.reproduce.cost import GPU_RATE, Cost, Steps, total
from fedpriv.reproduce.plan import Job, collect, composed, distinct, jobs_of
from fedpriv.reproduce.recipe import SCALES, Scale
from fedpriv.session import screen
from fedpriv.session.claim import STATUS

USAGE = """\
usage: fedpriv reproduce PAPER/ARTIFACT | PAPER | all | ./RECIPE.yaml [options] [key=value ...]

  --scale full|cpu|smoke  the paper's setting; less of it, as the recipe says; a few seconds   (default full)
  --seeds N               seeds 0 to N-1 of every cell                       (default: as the recipe says)
  --only AXIS=VALUE,...   only the cells with these values of an axis of the recipe, such as dataset=mnist;
                          may be given again for other axes
  --jobs N                runs at a time on this machine                                        (default 1)
  --dry-run               only say what would be run and what it costs here and on a GPU; writes nothing

A recipe of your own needs no printed numbers; its rows, tables and figures go into a folder beside it.
What is in outputs/reproduced, or finished below outputs/runs, is not run again; what was cut off goes on.
Overrides go to every run: hydra/launcher=ray and the like, device=cuda, data_dir=...; one that changes what
is computed makes it another run, which no recipe asks for, and is refused.
"""
RUNS = Path("outputs") / "runs"
SMOKE_ROWS = Path("outputs") / "smoke"  # not among the results
_ALLOWED = ("hydra", "device", "data_dir", "threads", "processes", "logger", "checkpoint")


def main(arguments: Sequence[str]) -> int:
    if not arguments or {"-h", "--help"} & set(arguments):
        print(USAGE, end="")
        print("\nrecipes: " + ", ".join(recipes.names()))
        return 0 if arguments else 2
    which, scale, seeds, asked, jobs, dry, more = _parse(list(arguments))
    chosen = recipes.chosen(which)
    only = {axis: recipes.values_of(chosen, axis, text) for axis, text in asked.items()}
    chosen = recipes.having(chosen, only)
    folder = SMOKE_ROWS if scale == "smoke" else rows.folder_of(which)
    console = Console(highlight=False, markup=False)
    with console.status("planning") if console.is_terminal else nullcontext():
        planned = jobs_of(chosen, scale, seeds, only, _device(more))
        if planned:
            _check(planned[0], more)
        for r in [] if dry else chosen:
            rows.ready(r, folder)
        left = collect(planned, RUNS, folder, keep=not dry)
        todo = distinct(left)
    done = len(planned) - len(left)
    console.print(f"{which} at scale {scale}: {len(planned)} runs, {done} done, {len(todo)} to do")
    for r in chosen:
        if r.cut(scale):
            console.print(f"{r.name}: {r.cut(scale)}", soft_wrap=True)
    if not dry and not todo:
        return 0
    steps = Steps()
    with console.status("timing a step") if console.is_terminal else nullcontext():
        every, due = (total((job.config for job in jobs), steps) for jobs in (distinct(planned), todo))
    console.print(_costs(every, due, len(steps.measured)), soft_wrap=True)
    if dry:
        _show(console, planned, {job.identity for job in todo})
        return 0
    console.print(f"expected: about {_duration(due.seconds / min(jobs, len(todo)))} with {jobs} at a time")
    for attempt in ("", "again: "):
        _launch(todo, folder, jobs, more, console, attempt)
        left = collect(planned, RUNS, folder)
        todo = distinct(left)
        if not todo:
            break
    for job in todo:
        console.print(f"failed twice: {job}: {_error(job)}", soft_wrap=True)
    shown = f"`fedpriv table {which}` shows them"
    if scale == "smoke":
        shown = f"they are too short for a table, their rows are in {SMOKE_ROWS}"
    if len(left) == len(planned):
        shown = "there is nothing to show"
    console.print(f"{len(planned) - len(left)} of {len(planned)} runs done; {shown}", soft_wrap=True)
    return 1 if todo else 0


def _parse(
    arguments: list[str],
) -> tuple[str, Scale, int | None, dict[str, str], int, bool, list[str]]:
    """Which recipes, scale, seeds, cells, jobs, dry run, overrides for Hydra."""
    named: dict[str, str] = {}
    only: dict[str, str] = {}
    rest, dry = [], False
    while arguments:
        word = arguments.pop(0)
        option, equals, value = word.partition("=")
        if word == "--dry-run":
            dry = True
        elif option in ("--scale", "--seeds", "--jobs", "--only"):
            if not equals and not arguments:
                raise UserError(f"{option}: needs a value; `fedpriv reproduce --help` shows the form")
            named[option] = value if equals else arguments.pop(0)
            if option == "--only":
                axis, _, text = named[option].partition("=")
                only[axis] = text
        elif word.startswith("--"):
            raise UserError(f"{word}: no such option; `fedpriv reproduce --help` lists them")
        else:
            rest.append(word)
    which = [word for word in rest if "=" not in word]
    more = [word for word in rest if "=" in word]
    if len(which) != 1:
        raise UserError("give one PAPER/ARTIFACT, PAPER or all; `fedpriv reproduce --help` lists the recipes")
    for word in more:
        if word.partition("=")[0] in ("seed", "seeds"):
            raise UserError(f"{word}: say how many with --seeds N; they are 0 to N-1")
        if word.lstrip("+").split("=")[0].split("/")[0].split(".")[0] not in _ALLOWED:
            raise UserError(
                f"{word}: would make other runs than the recipe's; use `fedpriv run` for them, "
                f"`--only {word}` for some of its cells, or change only {', '.join(_ALLOWED)}"
            )
    scale = named.get("--scale", "full")
    if scale not in SCALES:
        raise UserError(f"--scale {scale}: choose one of {', '.join(SCALES)}")
    return which[0], scale, _count(named, "--seeds"), only, _count(named, "--jobs") or 1, dry, more


def _check(job: Job, overrides: list[str]) -> None:
    """Refuse now what every run would refuse; a launcher may have devices that are not here."""
    with in_one_line():
        composed((*job.overrides, *(word for word in overrides if not word.startswith("hydra"))))
    if not any(word.startswith("hydra/launcher=") for word in overrides):
        choose_device(_device(overrides))


def _device(overrides: list[str]) -> str:
    """What the user asks for, else what a run would choose."""
    return next((word.partition("=")[2] for word in overrides if word.startswith("device=")), "auto")


def _count(named: dict[str, str], option: str) -> int | None:
    if option not in named:
        return None
    if not named[option].isdecimal() or not int(named[option]):
        raise UserError(f"{option} {named[option]}: must be a whole number of at least 1")
    return int(named[option])


def _launch(
    todo: list[Job], folder: Path, jobs: int, more: list[str], console: Console, attempt: str
) -> None:
    """Hand the cells to Hydra, and watch their folders meanwhile."""
    from fedpriv.reproduce.worker import hydra_worker

    hydra = [word for word in more if word.startswith("hydra")]
    own = [word for word in more if word not in hydra]
    if jobs > 1:
        if not any(word.startswith("hydra/launcher=") for word in hydra):
            hydra += ["hydra/launcher=joblib", f"hydra.launcher.n_jobs={jobs}"]
        if not any(word.startswith("threads=") for word in own):
            own.append(f"threads={max(1, cores() // jobs)}")
    RUNS.mkdir(parents=True, exist_ok=True)
    cells = RUNS / f"cells-{os.getpid()}.json"
    cells.write_text(json.dumps([[*job.overrides, *own] for job in todo]))
    os.environ |= {"HYDRA_FULL_ERROR": "1", "FEDPRIV_QUIET": "1"}
    sweeping.tie_workers("hydra/launcher=joblib" in hydra)
    screen.silence(True)
    before = sys.argv
    sys.argv = [before[0], "-m", f"cells={cells.resolve()}", f"cell=range(0,{len(todo)})", *hydra]
    try:
        with _Watch(todo, folder, console, attempt):
            hydra_worker()
    finally:
        sys.argv = before
        screen.silence(False)
        del os.environ["FEDPRIV_QUIET"]
        cells.unlink()


class _Watch:
    """One bar for the sweep: looks for finished runs, whoever runs them, and keeps their rows."""

    def __init__(self, todo: list[Job], folder: Path, console: Console, attempt: str):
        self.todo, self.folder, self.console, self.attempt = todo, folder, console, attempt
        self.stop = threading.Event()

    def __enter__(self) -> None:
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()

    def __exit__(self, *problem: object) -> None:
        self.stop.set()
        self.thread.join()

    def _look(self) -> None:
        left, total, last = self.todo, len(self.todo), time.monotonic()
        columns = (
            TextColumn(f"{self.attempt}runs"),
            MofNCompleteColumn(),
            BarColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console, disable=not self.console.is_terminal) as bar:
            task = bar.add_task("", total=total)
            while True:
                ended = self.stop.wait(1.0)
                there = rows.finished(RUNS)
                still = [job for job in left if not any(identity.short(one) in there for one in job.alike)]
                if len(still) < len(left):
                    collect(self.todo, RUNS, self.folder)
                    bar.update(task, completed=total - len(still))
                    if not self.console.is_terminal and time.monotonic() - last > 5:
                        self.console.print(f"{self.attempt}{total - len(still)} of {total} runs done")
                        last = time.monotonic()
                left = still
                if ended:
                    return


def _error(job: Job) -> str:
    for folder in RUNS.glob(f"*-{identity.short(job.identity)}"):
        if (folder / STATUS).exists():
            return json.loads((folder / STATUS).read_text())["error"] or "not finished"
    return "never started"


def _show(console: Console, planned: list[Job], todo: set[str]) -> None:
    for job in planned:
        state = "to do" if job.identity in todo else "done "
        console.print(f"{state}  fedpriv run {shlex.join(job.overrides)}", soft_wrap=True)


def _costs(every: Cost, due: Cost, kinds: int) -> str:
    """What all of it costs on this machine, what is left of it, and what a GPU would take."""
    return (
        f"cost: {every.runs} different runs, about {_duration(every.seconds)} on a core of this machine "
        f"({kinds} kinds of step measured) or {_duration(every.gpu_seconds)} on a GPU at "
        f"{GPU_RATE / 1e12:g} TFLOP/s; to do: about {_duration(due.seconds)} or {_duration(due.gpu_seconds)}"
    )


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
