"""The 8x8 handwritten digits that come inside scikit-learn: 1,797 images, no files needed."""

from pathlib import Path

import numpy as np
import torch

from fedpriv.datasets.base import Data, Dataset, Part
from fedpriv.datasets.normalize import SCALINGS, Gray


class Digits(Dataset):
    """Stratified 80/20 split with a fixed seed; grey levels 0..16 stretched to 0..255."""

    name = "digits"
    about = "8x8 handwritten digits inside scikit-learn"
    counts = (1437, 360)

    def __init__(self, *, normalize: Gray = "half") -> None:
        super().__init__(download=False)
        self.normalize = normalize

    @property
    def parts(self) -> list[Part]:
        return []

    def folder(self, data_dir: Path) -> Path:
        import sklearn.datasets

        return Path(sklearn.datasets.__file__).parent

    def load(self, data_dir: Path) -> Data:
        return self.read(data_dir)

    def fetch(self, data_dir: Path) -> None:
        """Nothing to fetch."""

    def verify(self, data_dir: Path) -> str:
        return self.verify_counts(data_dir)

    def read(self, data_dir: Path) -> Data:
        from sklearn.datasets import load_digits  # here, as in every loader: other datasets do without
        from sklearn.model_selection import train_test_split

        images, labels = load_digits(return_X_y=True)
        pixels = np.rint(images * 255 / 16).astype(np.uint8).reshape(-1, 1, 8, 8)  # [N, 1, 8, 8]
        split = train_test_split(
            pixels, labels.astype(np.int64), test_size=0.2, stratify=labels, random_state=0
        )
        x_train, x_test, y_train, y_test = (torch.from_numpy(np.ascontiguousarray(part)) for part in split)
        return Data(self.name, x_train, y_train, x_test, y_test, classes=10, **SCALINGS[self.normalize])
