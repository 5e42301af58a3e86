"""A file that a run only appends to. If somebody else writes into it, the run refuses to go on with it."""

import os
import shutil
from pathlib import Path

from fedpriv.errors import UserError
from fedpriv.files import atomically, checksum, write_atomically
from fedpriv.session.screen import errors


class Growing:
    """Its length and checksum are known at any time, so that any other change is noticed."""

    def __init__(self, path: Path, content: bytes):
        """Begin with `content`; a file that is there is replaced."""
        self.path = path
        write_atomically(path, content)
        self._open(len(content), "")

    @classmethod
    def going_on(cls, path: Path, length: int, digest: str) -> "Growing":
        """Go on after the first `length` bytes, which must be the ones that were written."""
        log = cls.__new__(cls)
        log.path = path
        log._open(length, digest)
        return log

    def _open(self, length: int, digest: str) -> None:
        try:
            self.file = open(self.path, "r+b")  # noqa: SIM115 (open as long as the run)
        except FileNotFoundError:
            raise self._changed() from None
        self.length, self._sum = length, checksum(self.file, length)
        if digest and self._sum.hexdigest() != digest:
            raise self._changed()
        self.file.truncate(length)

    def _changed(self) -> UserError:
        return UserError(
            f"{self.path}: was removed or changed after the run wrote it; put it back as it was, or use "
            "resume=false to run again"
        )

    def add(self, content: bytes) -> None:
        self.check()
        self.file.seek(self.length)
        self.file.write(content)
        self.file.flush()
        self._sum.update(content)
        self.length += len(content)

    def check(self) -> None:
        """Put the file back if somebody removed or replaced it; refuse to go on if they wrote into it."""
        own = os.fstat(self.file.fileno())
        if own.st_size != self.length:
            raise self._changed()
        there = self.path.stat() if self.path.exists() else None
        if there is None or (there.st_dev, there.st_ino) != (own.st_dev, own.st_ino):
            errors.print(f"warning: {self.path} was removed during the run and is put back", soft_wrap=True)
            self.file.seek(0)
            with atomically(self.path) as copy:
                shutil.copyfileobj(self.file, copy)
            self._open(self.length, self.digest)

    @property
    def digest(self) -> str:
        digest: str = self._sum.hexdigest()
        return digest

    def sync(self) -> None:
        self.check()
        os.fsync(self.file.fileno())

    def close(self) -> None:
        """The last look: all of it is still what was written."""
        self.check()
        self.file.seek(0)
        if checksum(self.file).hexdigest() != self.digest:
            raise self._changed()
        self.file.close()
