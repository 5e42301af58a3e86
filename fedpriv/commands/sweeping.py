"""A sweep knows its own cells: each notes how it ended in the sweep's folder; at the end all are listed."""

import atexit
import os
import secrets
import shutil
import threading
import time
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from rich.table import Table

from fedpriv.config.composing import shown
from fedpriv.config.mistakes import explain
from fedpriv.files import json_text, make_folder, read_json, write_atomically
from fedpriv.session.screen import _accuracy, console, number

PARENT = "FEDPRIV_PARENT"  # process whose end ends the workers it started on this machine
summary: dict[str, Any] | None = None  # of the cell that this process has just run
failures = 0  # failed cells of the last sweep in this process; the command's exit code


def note(path: Path, overrides: str, error: str | None, summary: dict[str, Any] | None) -> None:
    """How one cell ended; no two cells share a file."""
    content = {"overrides": overrides, "error": error, "summary": summary}
    write_atomically(path, json_text(content, None).encode())


def reason(error: BaseException) -> str:
    return explain(error) or f"{type(error).__name__}: {error}"


class SweepReport(Callback):
    """Hydra tells when a sweep or a cell begins and ends, and sends this object to where cells run."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        global failures
        failures = 1  # until the cells are counted
        tie_workers("joblib" in str(config.hydra.launcher.get("_target_")))
        self.folder = Path(config.hydra.sweep.dir).absolute() / f".sweep-{secrets.token_hex(4)}"
        make_folder(self.folder)
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        if hasattr(self, "folder"):  # of a sweep
            note(self._file(config), cell_name(config.hydra), "not finished", None)

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        if not hasattr(self, "folder"):
            return
        result: Any = job_return._return_value  # the property would raise what a failed job raised
        if job_return.status == JobStatus.FAILED:
            result = reason(result)
        error, told = (result, None) if isinstance(result, str) else (None, summary)
        note(self._file(config), cell_name(config.hydra), error, told)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        global failures
        files = sorted(self.folder.glob("*.json"), key=lambda file: int(file.stem))
        cells = [read_json(file) for file in files]
        failures = sum(1 for c in cells if c["error"])
        shutil.rmtree(self.folder)
        table = Table(
            title=f"sweep: {len(cells) - failures} of {len(cells)} cells done", title_justify="left"
        )
        for column in ("cell", "local", "global", "epsilon", "seconds"):
            table.add_column(column, justify="left" if column == "cell" else "right")
        for cell in cells:
            if cell["error"]:
                table.add_row(cell["overrides"], "failed", "", "", "")
                continue
            s = cell["summary"]
            accuracies = (_accuracy(s[f"accuracy_{view}_last"]) for view in ("local", "global"))
            seconds = f"{s['seconds']:.1f}"
            table.add_row(cell["overrides"], *accuracies, number(s["epsilon_spent"]), seconds)
        console.print(table)
        for cell in cells:
            if cell["error"]:
                console.print(f"failed: {cell['overrides']}: {cell['error']}", soft_wrap=True)

    def _file(self, config: DictConfig) -> Path:
        return self.folder / f"{config.hydra.job.num}.json"


def cell_name(hydra: Any) -> str:
    """What sets a cell apart, as the user wrote it."""
    return " ".join(map(shown, hydra.job.override_dirname.split(","))) or "defaults"


# -- workers do not outlive who started them


def tie_workers(here: bool) -> None:
    """Say before a sweep whether its workers are children of this process, which they shall not outlive."""
    os.environ.pop(PARENT, None)
    if here:
        os.environ[PARENT] = str(os.getpid())


def end_with_parent() -> None:
    """In a worker process on this machine: end when the command that started it is gone, however it went."""
    parent = int(os.environ.get(PARENT, 0))
    if parent in (0, os.getpid()) or any(t.name == PARENT for t in threading.enumerate()):
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)  # as a kill would; the run's checkpoint is what continues

    threading.Thread(target=watch, name=PARENT, daemon=True).start()
