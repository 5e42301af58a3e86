"""Feature vectors computed beforehand, for example by a pretrained image model: one .npz file."""

from pathlib import Path

import numpy as np
import torch

from fedpriv.datasets.base import Data, Dataset, Part, reading
from fedpriv.errors import UserError

ARRAYS = ("x_train", "y_train", "x_test", "y_test")


class Features(Dataset):
    """`path` is absolute or relative to the data folder's `features` or the data folder itself."""

    name = "features"
    about = "feature vectors from an .npz file"

    def __init__(self, *, path: str | None = None) -> None:
        super().__init__(download=False)
        self.path = path

    @property
    def parts(self) -> list[Part]:
        return [Part(f"features/{self.path or '*.npz'}")]

    def folder(self, data_dir: Path) -> Path:
        return Path(data_dir) / "features"

    def available(self, data_dir: Path) -> list[Path]:
        """Every .npz file `path` could name."""
        return [*sorted(self.folder(data_dir).glob("*.npz")), *sorted(Path(data_dir).glob("*.npz"))]

    def on_disk(self, data_dir: Path) -> list[tuple[Path, str | None]]:
        if self.path is None:
            return [(path, None) for path in self.available(data_dir)]
        for parent in (self.folder(data_dir), Path(data_dir)):
            if (place := parent / self.path).is_file():  # an absolute path ignores its parent
                return [(place, None)]
        return []

    def fetch(self, data_dir: Path) -> None:
        raise UserError(
            f"dataset {self.name}: no official files to fetch; put .npz files in {self.folder(data_dir)}"
        )

    def load(self, data_dir: Path) -> Data:
        return self.read(data_dir)

    def verify(self, data_dir: Path) -> str:
        """Read the file, or without `path` every file there is."""
        found = self.on_disk(data_dir)
        for path, _ in found:
            try:
                self._read(path)
            except UserError as error:
                return f"damaged: {error}"
        return "ok (arrays complete; no published checksum)" if found else "missing"

    def read(self, data_dir: Path) -> Data:
        found = self.on_disk(data_dir)
        if self.path is None or not found:
            names = ", ".join(path.name for path in self.available(data_dir)) or "no .npz file"
            what = "no path given" if self.path is None else f"no file {self.path}"
            raise UserError(
                f"dataset {self.name}: {what}; set dataset.path to an .npz file "
                f"({self.folder(data_dir)} has {names})"
            )
        return self._read(found[0][0])

    def _read(self, path: Path) -> Data:
        with reading(self.name, path), np.load(path, allow_pickle=False) as content:
            if missing := [name for name in ARRAYS if name not in content]:
                raise UserError(
                    f"dataset {self.name}: {path} has no {', '.join(missing)}; it needs {', '.join(ARRAYS)}"
                )
            arrays = [content[name] for name in ARRAYS]
        x_train, x_test = (torch.from_numpy(arrays[i].astype(np.float32)) for i in (0, 2))  # [N, d]
        y_train, y_test = (torch.from_numpy(arrays[i].astype(np.int64)) for i in (1, 3))  # [N]
        if problem := _problem(x_train, y_train, x_test, y_test):
            raise UserError(f"dataset {self.name}: {path}: {problem}; write the file anew")
        classes = int(torch.cat([y_train, y_test]).max()) + 1
        return Data(self.name, x_train, y_train, x_test, y_test, classes=classes)


def _problem(x_train: torch.Tensor, y_train: torch.Tensor, x_test: torch.Tensor, y_test: torch.Tensor) -> str:
    for x, y, part in ((x_train, y_train, "train"), (x_test, y_test, "test")):
        if x.ndim != 2 or y.ndim != 1:
            return f"x_{part} must have two axes and y_{part} one, not {x.ndim} and {y.ndim}"
        if len(x) != len(y) or len(y) == 0:
            return f"x_{part} has {len(x)} rows and y_{part} {len(y)}"
        if int(y.min()) < 0:
            return f"y_{part} has negative labels"
    if x_train.shape[1] != x_test.shape[1]:
        return f"x_train has {x_train.shape[1]} features and x_test {x_test.shape[1]}"
    return ""
