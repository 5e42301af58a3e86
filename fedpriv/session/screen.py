"""What a run shows: a progress bar on a terminal, plain lines elsewhere, and a table at the end."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.status import Status
from rich.table import Table
from rich.text import Text

# Without markup: a user's value may hold square brackets.
console = Console(highlight=False, markup=False)
errors = Console(stderr=True, highlight=False, markup=False)
_QUIET = 5.0  # seconds between plain lines


def silence(silent: bool) -> None:
    """For the runs of a reproduction, which has one bar for all of them."""
    console.quiet = errors.quiet = silent


silence(bool(os.environ.get("FEDPRIV_QUIET")))  # in a worker process


class Watch:
    """Shows rounds as they finish; use as a context manager."""

    def __init__(self, rounds: int, done: int):
        self.rounds, self.done = rounds, done
        self._last = 0.0
        self._began = time.perf_counter()
        self._first = done
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("round"),
                MofNCompleteColumn(),
                BarColumn(),
                TextColumn("{task.fields[state]}"),
                TimeRemainingColumn(),
                console=console,
            )
            self._task = self._bar.add_task("", total=rounds, completed=done, state="")

    def __enter__(self) -> "Watch":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *problem: object) -> None:
        if self._bar:
            self._bar.stop()

    def show(self, row: dict[str, float | None]) -> None:
        self.done += 1
        state = f"local {_accuracy(row['accuracy_local'])}  global {_accuracy(row['accuracy_global'])}"
        state += f"  epsilon {number(row['epsilon_max'])}"
        if self._bar:
            self._bar.update(self._task, completed=self.done, state=state)
            return
        now = time.perf_counter()
        if now - self._last >= _QUIET or self.done == self.rounds:
            left = (now - self._began) / (self.done - self._first) * (self.rounds - self.done)
            console.print(f"round {self.done}/{self.rounds}  {state}  about {left:.0f} s left")
            self._last = now


_spinner: list[Status] = []  # the one on the terminal now, if any


@contextmanager
def preparing() -> Iterator[None]:
    """A spinner on a terminal until round 0; `note` says beside it what is being done."""
    if not console.is_terminal:
        yield
        return
    with console.status("preparing") as status:
        _spinner.append(status)
        try:
            yield
        finally:
            _spinner.pop()


class Notes:
    """How far something before round 0 is: beside the spinner, or as plain lines now and then."""

    def __init__(self, what: str, total: int):
        self.what, self.total = what, total
        self._began = self._last = time.perf_counter()

    def show(self, done: int, state: str = "") -> None:
        now = time.perf_counter()
        left = (now - self._began) / max(1, done) * (self.total - done)
        text = f"{self.what} {done}/{self.total}  {state}  about {left:.0f} s left"
        if _spinner:
            _spinner[-1].update(Text(text))
        elif now - self._last >= _QUIET:
            console.print(text, soft_wrap=True)
            self._last = now


def _accuracy(value: float | None) -> str:
    return "  -  " if value is None else f"{value:.3f}"


def number(value: float | None) -> str:
    return "none" if value is None or value == float("inf") else f"{value:.3g}"


def privacy_line(report: dict[str, Any]) -> str:
    """One honest sentence on the guarantee."""
    if report["unit"] == "none":
        sent = [
            f"; of {r['what']} alone: epsilon {number(r['epsilon_alone'])} ({r['neighbouring_relation']})"
            for r in report.get("releases", ())
        ]
        return "no differential privacy" + "".join(sent)
    who = {"sample": "each client, one sample", "client": "one client"}[report["unit"]]
    whom = {"server": " against the server", "outsider": " against those who see only the models"}
    against = whom.get(report.get("against", ""), "")
    claim = f"({number(report['epsilon_claimed_max'])}, {report['delta']:g})-DP for {who}{against}"
    if report["no_guarantee"]:
        mended = report["epsilon_if_mended_max"]
        rest = f"; without counting that, epsilon would be {number(mended)}" if mended else ""
        return f"claimed {claim}, but nothing is provable: {report['flaws'][0]}{rest}"
    if report["epsilon_provable_max"] > report["epsilon_claimed_max"] * 1.001:
        return f"claimed {claim}, provable only epsilon {number(report['epsilon_provable_max'])}"
    if not report["claim_holds"]:
        return f"claimed {claim}, but some clients really spend more than is claimed for them (privacy.json)"
    if report["epsilon_provable_max"] < report["epsilon_claimed_max"] * 0.999:
        proved = f"epsilon {number(report['epsilon_provable_max'])} by the {report['accountant']} accountant"
        return f"claimed {claim}, really spent: {proved}"
    seeded = "; noise repeatable from the seed, so not for a release" if report["noise_seeded"] else ""
    return f"{claim}, proved by the {report['accountant']} accountant{seeded}"


def result_table(summary: dict[str, Any], privacy: dict[str, Any], folder: object) -> None:
    table = Table(title="result", show_header=True, title_justify="left")
    table.add_column("accuracy")
    for column in ("last round", "mean of last 10", "best round (picked on test data)"):
        table.add_column(column, justify="right")
    views = {"local": "local: own network, own test split", "global": "global: whole test set"}
    for view, text in views.items():
        cells = [_accuracy(summary[f"accuracy_{view}_{k}"]) for k in ("last", "mean_last10", "best")]
        table.add_row(text, *cells)
    console.print(table)
    if "accuracy_global_validation" in summary:
        local, whole = (_accuracy(summary[f"accuracy_{view}_validation"]) for view in views)
        console.print(f"held out  local {local}, global {whole}, last round; never trained on")
    size = summary["uplink_bytes"] / 1e6
    console.print(f"privacy   {privacy_line(privacy)}", soft_wrap=True)
    console.print(f"cost      {summary['rounds']} rounds, {summary['seconds']:.1f} s, {size:,.1f} MB uplink")
    console.print(f"results   {folder}", soft_wrap=True)
