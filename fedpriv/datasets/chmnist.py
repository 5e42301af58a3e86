"""CH-MNIST: 5,000 tiles of human colorectal tissue in eight classes (Kather et al., 2016)."""

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated

import numpy as np

from fedpriv.config.limits import Within
from fedpriv.datasets.base import Data, Dataset, Part, reading
from fedpriv.datasets.normalize import SCALINGS, Colour
from fedpriv.errors import UserError

STEM = "Kather_texture_2016_image_tiles_5000"
FOLDERS = (
    "01_TUMOR",
    "02_STROMA",
    "03_COMPLEX",
    "04_LYMPHO",
    "05_DEBRIS",
    "06_MUCOSA",
    "07_ADIPOSE",
    "08_EMPTY",
)


class CHMNIST(Dataset):
    """The official archive, or the folder it unpacks to; 90/10 split of the tiles sorted by name."""

    name = "chmnist"
    about = "150x150 colour tiles of colorectal tissue, 8 classes"
    counts = (4500, 500)

    def __init__(
        self,
        *,
        normalize: Colour = "imagenet",
        size: Annotated[int, Within(least=1, most=1024)] = 150,
        download: bool = True,
    ) -> None:
        super().__init__(download=download)
        self.normalize = normalize
        self.size = size

    @property
    def parts(self) -> list[Part]:
        url = f"https://zenodo.org/records/53169/files/{STEM}.zip?download=1"
        return [Part(f"{STEM}.zip", (url,), "0ddbebfc56344752028fda72602aaade")]  # md5 as shown by Zenodo

    def on_disk(self, data_dir: Path) -> list[tuple[Path, str | None]]:
        unpacked = Path(data_dir) / STEM
        return super().on_disk(data_dir) or ([(unpacked, None)] if unpacked.is_dir() else [])

    def read(self, data_dir: Path) -> Data:
        from sklearn.model_selection import train_test_split

        if self.size < 1:
            raise UserError(
                f"dataset {self.name}: size={self.size} must be at least 1; 150 keeps the tiles as they are"
            )
        source = self.on_disk(data_dir)[0][0]
        with reading(self.name, source):
            tiles = sorted(_zipped(source) if source.is_file() else _unpacked(source))
            images = np.stack([self._decode(content) for _, _, content in tiles])  # [N, 3, size, size]
        labels = np.array([FOLDERS.index(folder) for folder, _, _ in tiles], dtype=np.int64)
        train, test = train_test_split(np.arange(len(labels)), test_size=0.1, random_state=1)
        import torch

        x, y = torch.from_numpy(images), torch.from_numpy(labels)
        return Data(self.name, x[train], y[train], x[test], y[test], classes=8, **SCALINGS[self.normalize])

    def _decode(self, content: bytes) -> np.ndarray:
        from PIL import Image

        with Image.open(io.BytesIO(content)) as tile:
            image = tile.convert("RGB")
        if image.size != (self.size, self.size):
            image = image.resize((self.size, self.size), Image.Resampling.BILINEAR)
        return np.asarray(image).transpose(2, 0, 1)  # [3, size, size]


def _is_tile(path: PurePosixPath | Path) -> bool:
    # Archives packed on a Mac carry a shadow file for every real one.
    return path.suffix == ".tif" and path.parent.name in FOLDERS and "__MACOSX" not in path.parts


def _zipped(source: Path) -> Iterator[tuple[str, str, bytes]]:
    with zipfile.ZipFile(source) as archive:
        for member in archive.namelist():
            path = PurePosixPath(member)
            if _is_tile(path):
                yield path.parent.name, path.name, archive.read(member)


def _unpacked(source: Path) -> Iterator[tuple[str, str, bytes]]:
    for path in source.rglob("*.tif"):
        if _is_tile(path):
            yield path.parent.name, path.name, path.read_bytes()
