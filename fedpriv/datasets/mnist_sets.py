"""MNIST and its relatives in the same file format: Fashion-MNIST and the digits of EMNIST."""

import gzip
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.datasets.base import Data, Dataset, Part, reading
from fedpriv.datasets.normalize import Gray
from fedpriv.datasets.readers import parse_idx, read_idx
from fedpriv.datasets.vision_sets import VisionSet

if TYPE_CHECKING:
    from torch import Tensor


class MNIST(VisionSet):
    """Handwritten digits, 28x28."""

    name, about, source, counts = "mnist", "28x28 handwritten digits", "MNIST", (60_000, 10_000)

    def __init__(self, *, normalize: Gray = "half", download: bool = True) -> None:
        super().__init__(download=download)
        self.normalize = normalize

    @property
    def parts(self) -> list[Part]:
        mirrors = self.official.mirrors
        return [
            Part(f"{self.source}/raw/{file}", tuple(mirror + file for mirror in mirrors), md5)
            for file, md5 in self.official.resources
        ]

    def on_disk(self, data_dir: Path) -> list[tuple[Path, str | None]]:
        found: list[tuple[Path, str | None]] = []
        for part in self.parts:
            packed = Path(data_dir) / part.path
            unpacked = packed.with_suffix("")  # what torchvision leaves behind; no checksum is published
            found.append((packed, part.md5) if packed.is_file() else (unpacked, None))
        return found if all(path.is_file() for path, _ in found) else []

    def read(self, data_dir: Path) -> Data:
        train_x, train_y, test_x, test_y = (self._array(path) for path, _ in self.on_disk(data_dir))
        return self.assemble((train_x.unsqueeze(1), train_y.long()), (test_x.unsqueeze(1), test_y.long()))

    def _array(self, path: Path) -> "Tensor":
        with reading(self.name, path):
            return read_idx(path)


class FashionMNIST(MNIST):
    """Articles of clothing, 28x28."""

    name, about, source = "fmnist", "28x28 articles of clothing", "FashionMNIST"


class EMNIST(MNIST):
    """The "digits" split of EMNIST; all splits share one archive, read without unpacking it."""

    name, about, source, counts = "emnist", "28x28 handwritten digits, EMNIST", "EMNIST", (240_000, 40_000)
    members = tuple(
        f"emnist-digits-{split}-{kind}-ubyte.gz"
        for split in ("train", "test")
        for kind in ("images-idx3", "labels-idx1")
    )

    @property
    def parts(self) -> list[Part]:
        return [Part("EMNIST/raw/gzip.zip", (self.official.url,), self.official.md5)]

    def on_disk(self, data_dir: Path) -> list[tuple[Path, str | None]]:
        if archive := Dataset.on_disk(self, data_dir):
            return archive
        packed = [self.folder(data_dir) / member for member in self.members]
        found = [path if path.is_file() else path.with_suffix("") for path in packed]
        return [(path, None) for path in found] if all(path.is_file() for path in found) else []

    def read(self, data_dir: Path) -> Data:
        paths = [path for path, _ in self.on_disk(data_dir)]
        if len(paths) == 1:
            with reading(self.name, paths[0]), zipfile.ZipFile(paths[0]) as archive:
                arrays = [self._member(archive, member) for member in self.members]
        else:
            arrays = [self._array(path) for path in paths]
        train_x, train_y, test_x, test_y = arrays
        upright = [x.transpose(1, 2).unsqueeze(1).contiguous() for x in (train_x, test_x)]  # stored by column
        return self.assemble((upright[0], train_y.long()), (upright[1], test_y.long()))

    @staticmethod
    def _member(archive: zipfile.ZipFile, member: str) -> "Tensor":
        return parse_idx(gzip.decompress(archive.read(f"gzip/{member}")))
