"""The 8x8 handwritten digits that come inside scikit-learn: 1,797 images, no files needed."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from fedpriv.config.limits import Within
from fedpriv.datasets.base import Data, Dataset, Part
from fedpriv.datasets.cache import cached
from fedpriv.datasets.normalize import SCALINGS, Scaling
from fedpriv.errors import UserError

PARTS = ("x_train", "y_train", "x_test", "y_test")
AS_STORED: Scaling = {"mean": (0.0,), "std": (1 / 16,)}  # grey levels from 0 to 16


class Digits(Dataset):
    """Stratified split with a fixed seed; grey levels 0..16 stretched to 0..255."""

    name = "digits"
    about = "8x8 handwritten digits inside scikit-learn"
    samples = 1797

    def __init__(
        self,
        *,
        normalize: Literal["half", "unit", "raw"] = "half",
        test_size: Annotated[int, Within(least=10, most=1787)] = 360,
    ) -> None:
        super().__init__(download=False)
        if not 10 <= test_size <= self.samples - 10:
            raise UserError(
                f"dataset.test_size={test_size}: must lie between 10 and {self.samples - 10}, for there are "
                f"{self.samples:,} samples of ten classes"
            )
        self.normalize = normalize
        self.test_size, self.counts = test_size, (self.samples - test_size, test_size)

    @property
    def parts(self) -> list[Part]:
        return []

    def folder(self, data_dir: Path) -> Path:
        sklearn = find_spec("sklearn")  # found, not imported
        assert sklearn is not None and sklearn.origin
        return Path(sklearn.origin).parent / "datasets"

    def on_disk(self, data_dir: Path) -> list[tuple[Path, str | None]]:
        """scikit-learn's own file, by whose date a finished run knows that its data are the same."""
        return [(self.folder(data_dir) / "data" / "digits.csv.gz", None)]

    def load(self, data_dir: Path) -> Data:
        return self.read(data_dir)

    def fetch(self, data_dir: Path) -> None:
        """Nothing to fetch."""

    def verify(self, data_dir: Path) -> str:
        return self.verify_counts(data_dir)

    def read(self, data_dir: Path) -> Data:
        import torch

        file = self.on_disk(data_dir)[0][0]
        # Kept once split: scikit-learn takes longer to import than the digits take to train a round.
        arrays = cached(self.name, file, {"test_size": self.test_size}, self._split, needed=False)
        scaling = AS_STORED if self.normalize == "raw" else SCALINGS[self.normalize]
        x_train, y_train, x_test, y_test = (torch.from_numpy(arrays[name]) for name in PARTS)
        return Data(self.name, x_train, y_train, x_test, y_test, classes=10, **scaling)

    def _split(self) -> dict[str, np.ndarray]:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        images, labels = load_digits(return_X_y=True)
        pixels = np.rint(images * 255 / 16).astype(np.uint8).reshape(-1, 1, 8, 8)  # [N, 1, 8, 8]
        split = train_test_split(
            pixels, labels.astype(np.int64), test_size=self.test_size, stratify=labels, random_state=0
        )
        x_train, x_test, y_train, y_test = map(np.ascontiguousarray, split)
        return dict(zip(PARTS, (x_train, y_train, x_test, y_test), strict=True))
