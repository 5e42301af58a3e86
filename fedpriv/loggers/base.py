"""The logger that adds nothing: the run folder's CSV files are written by the recorder in any case."""

from pathlib import Path
from typing import Any


class Logger:
    """Called once at the start, after every round and at the end; none of the calls may raise."""

    def start(self, *, name: str, config: dict[str, Any], folder: Path) -> None:
        """A run begins, or continues, in `folder`."""

    def log(self, row: dict[str, Any]) -> None:
        """One round's metrics; row["round"] is the step."""

    def finish(self, summary: dict[str, Any], tables: dict[str, Path]) -> None:
        """The run is over: its final values, and its CSV files by name."""
