"""CIFAR-10, CIFAR-100 and SVHN in the folder layout torchvision uses, and what all torchvision sets share.

Addresses and checksums come from torchvision's classes. The files are read here, because torchvision
unpacks archives beside them first, which a read-only folder does not allow.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fedpriv.datasets.base import Data, Dataset, Part, reading
from fedpriv.datasets.normalize import SCALINGS, Colour
from fedpriv.datasets.readers import read_cifar, read_svhn
from fedpriv.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


class VisionSet(Dataset):
    """A dataset torchvision knows: `official` is its class there, asked for addresses and checksums only."""

    source: ClassVar[str]  # torchvision's class name
    classes: ClassVar[int] = 10
    normalize: str

    @property
    def official(self) -> Any:
        from fedpriv.vision import tv_datasets

        return getattr(tv_datasets, self.source)

    def assemble(self, train: "tuple[Tensor, Tensor]", test: "tuple[Tensor, Tensor]") -> Data:
        """Images and labels of both halves, as `Data`."""
        for images, labels in (train, test):
            if len(images) != len(labels):
                raise UserError(
                    f"dataset {self.name}: {len(images)} images but {len(labels)} labels; fetch it anew"
                )
        return Data(self.name, *train, *test, classes=self.classes, **SCALINGS[self.normalize])


class CIFAR10(VisionSet):
    """Small colour photographs of ten kinds of things, 32x32."""

    name, about, source, counts = "cifar10", "32x32 colour photos, 10 classes", "CIFAR10", (50_000, 10_000)

    def __init__(self, *, normalize: Colour = "half", download: bool = True) -> None:
        super().__init__(download=download)
        self.normalize = normalize

    @property
    def parts(self) -> list[Part]:
        return [Part(self.official.filename, (self.official.url,), self.official.tgz_md5)]

    def on_disk(self, data_dir: Path) -> list[tuple[Path, str | None]]:
        batches = [*self.official.train_list, *self.official.test_list]
        unpacked = [(Path(data_dir) / self.official.base_folder / file, md5) for file, md5 in batches]
        return unpacked if all(path.is_file() for path, _ in unpacked) else super().on_disk(data_dir)

    def read(self, data_dir: Path) -> Data:
        first = self.on_disk(data_dir)[0][0]
        source = first.parent if first.parent.name == self.official.base_folder else first
        with reading(self.name, source):
            train, test = read_cifar(
                source,
                [file for file, _ in self.official.train_list],
                [file for file, _ in self.official.test_list],
            )
        return self.assemble(train, test)


class CIFAR100(CIFAR10):
    """The hundred fine classes."""

    name, about, source, classes = "cifar100", "32x32 colour photos, 100 classes", "CIFAR100", 100


class SVHN(VisionSet):
    """Cropped house-number digits, 32x32; the "extra" part is not used."""

    name, about, source, counts = "svhn", "32x32 colour house-number digits", "SVHN", (73_257, 26_032)

    def __init__(self, *, normalize: Colour = "half", download: bool = True) -> None:
        super().__init__(download=download)
        self.normalize = normalize

    @property
    def parts(self) -> list[Part]:
        listed = (self.official.split_list[split] for split in ("train", "test"))
        return [Part(file, (url,), md5) for url, file, md5 in listed]

    def read(self, data_dir: Path) -> Data:
        train, test = (self._split(path) for path, _ in self.on_disk(data_dir))
        return self.assemble(train, test)

    def _split(self, path: Path) -> "tuple[Tensor, Tensor]":
        with reading(self.name, path):
            return read_svhn(path)
