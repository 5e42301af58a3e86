"""Files that are never seen half written, and folders that one process at a time writes."""

import fcntl
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from fedpriv.errors import UserError


@contextmanager
def atomically(path: Path) -> Iterator[BinaryIO]:
    """A file to write into: all of it appears at the end or nothing, even if the machine dies here."""
    part = path.with_name(path.name + ".part")
    with open(part, "wb") as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            part.unlink()
            raise
    os.replace(part, path)


def write_atomically(path: Path, content: bytes) -> None:
    """All of the content or nothing."""
    with atomically(path) as file:
        file.write(content)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One process a folder."""
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{folder} is being written by another run of the same command; wait for it"
            ) from None
        yield


def json_text(content: Any, indent: int | None = 2) -> str:
    """JSON that every reader reads: it has no infinity and no NaN, which become null."""
    return json.dumps(_finite(content), indent=indent, allow_nan=False) + "\n"


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
