"""Cells of a sweep: each notes how it ended in its own folder; the end of the sweep lists them all."""

import json
import time
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from rich.table import Table

from fedpriv.files import json_text, write_atomically
from fedpriv.screen import _accuracy, console, number

STATUS = "status.json"
failures = 0  # failed cells of the last sweep in this process; the command's exit code


def note(folder: Path, overrides: str, error: str | None, summary: dict[str, Any] | None) -> None:
    """How one cell ended; no two cells share a file."""
    content = {"overrides": overrides, "error": error, "summary": summary}
    write_atomically(folder / STATUS, json_text(content, None).encode())


class SweepReport(Callback):
    """Hydra tells when a sweep begins and ends, whichever launcher ran its cells."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        self.began = time.time()

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        global failures
        files = Path(config.hydra.sweep.dir).glob(f"*/{STATUS}")
        recent = sorted(
            (f for f in files if f.stat().st_mtime >= self.began - 1), key=lambda f: f.stat().st_mtime
        )
        cells = [json.loads(f.read_text()) for f in recent]
        failures = sum(1 for c in cells if c["error"])
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
