"""Checkpoints that survive: written atomically, with a checksum, the one before kept.

Written and read piece by piece: the state is in memory once, however large it is. The checksum stands behind
the state, where torch does not look: `torch.load("checkpoint.pt", weights_only=True)` opens the file too.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from fedpriv.files import atomically, checksum

NAME, PREVIOUS = "checkpoint.pt", "checkpoint.previous.pt"
_CHECKSUM = hashlib.sha256().digest_size  # bytes


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
    import torch

    with atomically(folder / NAME) as file:
        summed = _Summed(file)
        torch.save(state, cast(BinaryIO, summed))  # it writes and no more
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
            for start in _sound(file):
                import torch

                file.seek(start)
                # Of a file that begins with the state, tensors stay on the disk until they are looked at.
                place, mapped = (file, False) if start else (path, True)
                return torch.load(place, weights_only=True, map_location="cpu", mmap=mapped), problems
        problems.append(f"checkpoint {path} is damaged and not used")
    return None, problems


def _sound(file: BinaryIO) -> Iterator[int]:
    """Where the state begins if its checksum is right: it stands behind the state, formerly in front."""
    length = max(0, os.fstat(file.fileno()).st_size - _CHECKSUM)
    found = checksum(file, length).digest()
    if length and file.read() == found:
        yield 0
    file.seek(0)
    expected = file.read(_CHECKSUM)
    if length and checksum(file).digest() == expected:
        yield _CHECKSUM
