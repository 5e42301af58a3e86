"""Purchase-100: which of 600 products a shopper bought, in 100 clusters of shoppers (Shokri et al., 2017)."""

import hashlib
import tarfile
from pathlib import Path
from typing import IO

import numpy as np

from fedpriv.datasets.base import Data, Dataset, Part, reading
from fedpriv.files import write_atomically

FEATURES = 600
RECORD = "dataset_purchase.sha256"


class Purchase100(Dataset):
    """The text file `dataset_purchase`, or the official archive of it.

    No checksum is published for either. The content of what is fetched first, once its rows and columns are
    right, is remembered beside it (`dataset_purchase.sha256`, of the numbers, so that both forms share it);
    from then on other content is refused.
    """

    name = "purchase100"
    about = "600 binary features of shoppers, 100 classes"
    counts = (157_859, 39_465)  # 197,324 rows

    def __init__(self, *, download: bool = True) -> None:
        super().__init__(download=download)

    @property
    def parts(self) -> list[Part]:
        urls = (
            "https://www.comp.nus.edu.sg/~reza/files/dataset_purchase.tgz",
            "https://github.com/privacytrustlab/datasets/raw/master/dataset_purchase.tgz",
        )
        return [Part("dataset_purchase.tgz", urls)]

    def fetch(self, data_dir: Path) -> None:
        super().fetch(data_dir)
        if not (record := Path(data_dir) / RECORD).exists() and self.verify(data_dir).startswith("ok"):
            write_atomically(record, f"{_content(self._rows(data_dir))}\n".encode())

    def on_disk(self, data_dir: Path) -> list[tuple[Path, str | None]]:
        unpacked = Path(data_dir) / "dataset_purchase"
        return [(unpacked, None)] if unpacked.is_file() else super().on_disk(data_dir)

    def read(self, data_dir: Path) -> Data:
        from sklearn.model_selection import train_test_split

        rows = self._rows(data_dir)
        train, test = train_test_split(np.arange(len(rows)), test_size=0.2, random_state=1)
        import torch

        y = torch.from_numpy(rows[:, 0].astype(np.int64) - 1)
        x_train, x_test = (torch.from_numpy(rows[part, 1:].astype(np.float32)) for part in (train, test))
        return Data(self.name, x_train, y[train], x_test, y[test], classes=100)

    def _rows(self, data_dir: Path) -> np.ndarray:
        path, record = self.on_disk(data_dir)[0][0], Path(data_dir) / RECORD
        with reading(self.name, path):
            rows = _unpack(path) if path.suffix == ".tgz" else _parse(path)  # [N, 1 + 600]
            if rows.shape[1] != 1 + FEATURES or not 1 <= rows[:, 0].min() <= rows[:, 0].max() <= 100:
                raise ValueError("a row is a label from 1 to 100 and 600 zeros and ones")
            if rows[:, 1:].max() > 1:
                raise ValueError("a feature is neither 0 nor 1")
            if record.exists() and record.read_text().strip() != _content(rows):
                raise ValueError(f"its content is not the one remembered in {RECORD}")
        return rows


def _content(rows: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(rows).data).hexdigest()


def _parse(source: Path | IO[bytes]) -> np.ndarray:
    import pandas as pd  # parses these 240 MB several times faster than NumPy

    return pd.read_csv(source, header=None, dtype=np.uint8).to_numpy()


def _unpack(path: Path) -> np.ndarray:
    with tarfile.open(path, "r|gz") as archive:
        for member in archive:
            content = archive.extractfile(member) if Path(member.name).name == "dataset_purchase" else None
            if content is not None:
                return _parse(content)
    raise ValueError("no file dataset_purchase inside")
