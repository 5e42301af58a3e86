"""The one way files are written: no reader sees half a file, no power cut loses one; and a folder's lock."""

import csv
import errno
import fcntl
import hashlib
import io
import json
import math
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO

from fedpriv.errors import UserError

_PIECE = 1 << 20  # bytes
LOCK = ".lock"
_PATIENCE = 1.0  # seconds to wait for a lock: whoever asks whether a run is going on has it for a moment


def sync(folder: Path) -> None:
    """Make new names, renames and removals in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as problem:
        if problem.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that cannot do it
            raise
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it survive a power cut, even if another process made them just now."""
    folder.mkdir(parents=True, exist_ok=True)
    for place in (folder, *folder.absolute().parents):
        if os.access(place, os.R_OK | os.W_OK):  # elsewhere this user can have made nothing
            sync(place)


@contextmanager
def atomically(path: Path, *, many: bool = False) -> Iterator[BinaryIO]:
    """A file to write into: all of it appears at the end or nothing, even if the machine dies here.

    `many`: several processes may write this file at once, so that each needs a part of its own.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.part" if many else f"{path.name}.part")
    try:
        with open(part, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_atomically(path: Path, content: bytes) -> None:
    """All of the content or nothing."""
    with atomically(path) as file:
        file.write(content)


def write_table(path: Path, rows: Iterable[Iterable[Any]]) -> None:
    """A CSV file, the header first."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_atomically(path, text.getvalue().encode())


def checksum(file: BinaryIO, length: int | None = None) -> Any:
    """SHA-256 of the next `length` bytes or of all that follow, read in pieces; more can be added to it."""
    total, left = hashlib.sha256(), float("inf") if length is None else length
    while left > 0 and (piece := file.read(int(min(left, _PIECE)))):
        total.update(piece)
        left -= len(piece)
    return total


def remove(folder: Path, names: Iterable[str]) -> None:
    """Remove what there is of these files, and make that last before anything else happens."""
    for name in names:
        (folder / name).unlink(missing_ok=True)
    sync(folder)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object that a run wrote; one line if it is damaged."""
    try:
        content = json.loads(path.read_text())
        if isinstance(content, dict):
            return content
    except (ValueError, OSError):
        pass
    raise UserError(f"{path} is missing or damaged; put it back, or use resume=false to run again")


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One process a folder."""
    with open(folder / LOCK, "w") as file:
        until = time.monotonic() + _PATIENCE
        while not _taken(file, fcntl.LOCK_EX):
            if time.monotonic() > until:
                raise UserError(f"{folder} is being written by another run of the same command; wait for it")
            time.sleep(0.05)
        yield


def held(folder: Path) -> bool:
    """Whether a process works in a folder just now."""
    try:
        with open(folder / LOCK) as file:
            return not _taken(file, fcntl.LOCK_SH)
    except FileNotFoundError:
        return False


def _taken(file: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


def json_text(content: Any, indent: int | None = 2) -> str:
    """JSON that every reader reads: it has no infinity and no NaN, which become null."""
    return json.dumps(_finite(content), indent=indent, allow_nan=False) + "\n"


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
