"""What every dataset offers: load, fetch, verify; and where its files live."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import platformdirs

from fedpriv.datasets.data import Data
from fedpriv.datasets.download import digest, download, one_line
from fedpriv.errors import UserError

__all__ = ["Data", "Dataset", "Part", "default_data_dir", "reading"]


def default_data_dir() -> Path:
    """The folder in the environment variable FEDPRIV_DATA, else the user's cache folder."""
    chosen = os.environ.get("FEDPRIV_DATA")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("fedpriv"))


@dataclass(frozen=True)
class Part:
    """One official file: its place below the data folder, where to fetch it, its published md5 if any."""

    path: str
    urls: tuple[str, ...] = ()
    md5: str | None = None


@contextmanager
def reading(name: str, path: Path) -> Iterator[None]:
    """Turn whatever a damaged file makes its reader raise into one line naming the file."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:  # readers of pickles, archives and images raise nearly anything
        raise UserError(
            f"dataset {name}: cannot read {path} ({type(error).__name__}: {one_line(error)}); "
            f"check it with `fedpriv data verify {name}`"
        ) from error


class Dataset:
    """Base class; a subclass names its official files and turns those on disk into `Data`."""

    name: ClassVar[str]
    about: ClassVar[str]
    counts: tuple[int, int] | None = None  # official numbers of training and test samples

    def __init__(self, *, download: bool = True) -> None:
        self.download = download

    @property
    def parts(self) -> list[Part]:
        """The official files."""
        raise NotImplementedError

    @property
    def files(self) -> list[str]:
        """Official file names, relative to the data folder."""
        return [part.path for part in self.parts]

    def folder(self, data_dir: Path) -> Path:
        """Where the files belong."""
        return (Path(data_dir) / self.files[0]).parent

    def on_disk(self, data_dir: Path) -> list[tuple[Path, str | None]]:
        """The files `load` would read, each with its official md5 if known; empty if any is absent."""
        found = [(Path(data_dir) / part.path, part.md5) for part in self.parts]
        return found if all(path.is_file() for path, _ in found) else []

    def read(self, data_dir: Path) -> Data:
        """Read the files, which are all there."""
        raise NotImplementedError

    def load(self, data_dir: Path) -> Data:
        """Read the files from disk, fetching them first if they are absent."""
        if not self.on_disk(data_dir):
            if not self.download:
                raise UserError(
                    f"dataset {self.name}: no {Path(self.files[0]).name} in {self.folder(data_dir)} and "
                    "download=false; put the files there or set data_dir, FEDPRIV_DATA or download=true"
                )
            self.fetch(data_dir)
        data = self.read(data_dir)
        sizes = (len(data.y_train), len(data.y_test))
        if self.counts is not None and sizes != self.counts:
            warnings.warn(f"dataset {self.name}: {sizes} samples, but {self.counts} expected", stacklevel=2)
        return data

    def fetch(self, data_dir: Path) -> None:
        """Download what is missing or damaged, checking checksums."""
        if self.verify(data_dir).startswith("ok"):
            return
        for part in self.parts:
            path = Path(data_dir) / part.path
            if path.is_file() and part.md5 is not None and digest(path) == part.md5:
                continue
            download(part.urls, path, label=f"dataset {self.name}", md5=part.md5)

    def verify(self, data_dir: Path) -> str:
        """Say "ok", "missing" or which file is damaged: by checksum where published, else by count."""
        found = self.on_disk(data_dir)
        if not found:
            return "missing"
        for path, md5 in found:
            if md5 is not None and digest(path) != md5:
                return f"damaged: the md5 of {path.name} is not the official one"
        return "ok" if all(md5 for _, md5 in found) else self.verify_counts(data_dir)

    def verify_counts(self, data_dir: Path) -> str:
        """Read everything and compare the numbers of samples, for files without a published checksum."""
        try:
            data = self.read(data_dir)
        except UserError as error:
            return f"damaged: {error}"
        sizes = (len(data.y_train), len(data.y_test))
        if self.counts is not None and sizes != self.counts:
            return f"damaged: {sizes} samples in {self.folder(data_dir)}, but {self.counts} expected"
        return "ok (by number of samples; no published checksum)"
