"""The same numbers for TensorBoard, in the run's folder: `tensorboard --logdir outputs` shows all below."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.errors import UserError
from fedpriv.loggers.base import Careful, numbers, pictures


class TensorBoardLogger(Careful):
    """A scalar a metric and round; at the end the summary's numbers, the summary as a text, the pictures."""

    called = "TensorBoard"

    def __init__(self) -> None:
        if find_spec("tensorboard") is None:
            raise UserError("logger=tensorboard: is not installed; pip install 'fedpriv[tensorboard]'")
        self._writer: Any = None

    def begin(self, name: str, config: dict[str, Any], folder: Path) -> None:
        self.folder, self.config, self._writer = folder, config, None

    def _open(self, step: int) -> Any:
        """What an interrupted run wrote beyond its checkpoint is taken back: it will be written again."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self.folder / "tensorboard"), purge_step=step)
            if step == 1:
                self._writer.add_text("config", _code(self.config))
        return self._writer

    def write(self, row: dict[str, Any]) -> None:
        step = int(row["round"])
        writer = self._open(step)
        for name, value in numbers(row).items():
            if name != "round":
                writer.add_scalar(name, value, step)

    def end(self, summary: dict[str, Any], tables: dict[str, Path]) -> None:
        from PIL import Image

        step = int(summary["rounds"])
        writer = self._open(step + 1)
        for name, value in numbers(summary).items():
            writer.add_scalar(f"summary/{name}", value, step)
        writer.add_text("summary", _code(summary), step)
        for name, path in pictures(self.folder).items():
            with Image.open(path) as image:
                writer.add_image(name, np.asarray(image.convert("RGB")), step, dataformats="HWC")
        writer.close()


def _code(content: dict[str, Any]) -> str:
    """JSON as TensorBoard's Markdown shows it unchanged: indented by four."""
    return "\n".join(f"    {line}" for line in json.dumps(content, indent=2, default=str).splitlines())
