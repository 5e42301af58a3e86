"""Checkpoints that survive: written atomically, with a checksum, the one before kept.

Written and read piece by piece: the state is in memory once, however large it is.
"""

import hashlib
import os
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch

from fedpriv.files import atomically, checksum

NAME, PREVIOUS = "checkpoint.pt", "checkpoint.previous.pt"
_CHECKSUM = hashlib.sha256().digest_size  # bytes in front of the state


class _Summed:
    """A file that keeps a checksum of all that is written into it."""

    def __init__(self, file: BinaryIO):
        self.file, self.sum = file, hashlib.sha256()

    def write(self, data: Any) -> int:
        self.sum.update(data)
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()


def save(folder: Path, state: dict[str, Any]) -> None:
    with atomically(folder / NAME) as file:
        summed = _Summed(file)
        file.write(bytes(_CHECKSUM))
        torch.save(state, cast(BinaryIO, summed))  # it writes and no more
        file.seek(0)
        file.write(summed.sum.digest())
        file.flush()
        os.fsync(file.fileno())  # before the sound one gives up its name
        if (folder / NAME).exists():
            os.replace(folder / NAME, folder / PREVIOUS)


def load(folder: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest sound checkpoint, or None; and a line for every damaged one."""
    problems: list[str] = []
    for name in (NAME, PREVIOUS):
        path = folder / name
        if not path.exists():
            continue
        with open(path, "rb") as file:
            expected = file.read(_CHECKSUM)
            if checksum(file).digest() == expected:
                file.seek(_CHECKSUM)
                return torch.load(file, weights_only=True, map_location="cpu"), problems
        problems.append(f"checkpoint {path} is damaged and not used")
    return None, problems
