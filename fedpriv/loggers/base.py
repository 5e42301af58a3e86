"""The logger that adds nothing: the run folder's CSV files are written by the recorder in any case."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)


class Logger:
    """Called once at the start, after every round and at the end; none of the calls may raise."""

    complete = True  # whether all that it was told has arrived, or is kept to be sent

    def start(self, *, name: str, config: dict[str, Any], folder: Path) -> None:
        """A run begins, or continues, in `folder`."""

    def log(self, row: dict[str, Any]) -> None:
        """One round's metrics; row["round"] is the step."""

    def finish(self, summary: dict[str, Any], tables: dict[str, Path]) -> None:
        """The run is over: its final values, and its CSV files by name. Its pictures are in the folder."""


class Careful(Logger):
    """Base of loggers that other packages do the work for: whatever they raise is one warning, switches the
    logger off for this run and leaves the run alone. A subclass writes `begin`, `write` and `end`."""

    called: str  # in the warning

    def begin(self, name: str, config: dict[str, Any], folder: Path) -> None: ...

    def write(self, row: dict[str, Any]) -> None: ...

    def end(self, summary: dict[str, Any], tables: dict[str, Path]) -> None: ...

    def start(self, *, name: str, config: dict[str, Any], folder: Path) -> None:
        self.complete = True
        self._try("start", lambda: self.begin(name, config, folder))

    def log(self, row: dict[str, Any]) -> None:
        self._try("log", lambda: self.write(row))

    def finish(self, summary: dict[str, Any], tables: dict[str, Path]) -> None:
        self._try("finish", lambda: self.end(summary, tables))

    def _try(self, what: str, job: Callable[[], None]) -> None:
        if not self.complete:
            return
        try:
            job()
        except Exception as error:
            self.complete = False
            reason = (str(error).strip().splitlines() or [""])[0]
            _log.warning(
                "%s is switched off for this run, its CSV files are complete: %s failed (%s: %s)",
                self.called,
                what,
                type(error).__name__,
                reason,
            )


def numbers(values: dict[str, Any]) -> dict[str, float]:
    """What of a row or summary is a number."""
    return {k: float(v) for k, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)}


def pictures(folder: Path) -> dict[str, Path]:
    """The pictures of a run's folder by name."""
    return {path.stem: path for path in sorted(folder.glob("*.png"))}
