"""Forest cover types: 54 cartographic features of 581,012 patches of land, seven kinds of forest."""

import math
import socket
from pathlib import Path

import numpy as np

from fedpriv.config.limits import Count
from fedpriv.datasets.base import Data, Dataset, Part, reading
from fedpriv.datasets.download import TIMEOUT_SECONDS, one_line
from fedpriv.datasets.readers import read_joblib
from fedpriv.errors import UserError

# Means and deviations of the ten measured features, as the data set's donors published them (covtype.info,
# "basic summary statistics"). From elevation to the distance to fire points, in the order of the file.
MEASURED = (
    (2959.36, 279.98), (155.65, 111.91), (14.10, 7.49), (269.43, 212.55), (46.42, 58.30), (2350.15, 1559.25),
    (212.15, 26.77), (223.32, 19.77), (142.53, 38.27), (1980.29, 1324.19),
)  # fmt: skip
KINDS = (4, 40)  # wilderness areas and soil types follow, a column of zeros and ones for each
PER_CLASS = (211_840, 283_301, 35_754, 2_747, 9_493, 17_367, 20_510)


def scales() -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of every feature, [54] each."""
    pairs = [*MEASURED, *((1 / n, math.sqrt(1 / n * (1 - 1 / n))) for n in KINDS for _ in range(n))]
    mean, std = np.array(pairs, dtype=np.float32).T
    return mean, std


class Covtype(Dataset):
    """Fetched through scikit-learn and read from the files it keeps; a random split with a fixed seed.

    Features are scaled by constants, so that no sample changes how another one is scaled. The constants are
    published statistics where there are some; columns of zeros and ones are scaled as if all kinds were
    equally frequent.
    """

    name = "covtype"
    about = "forest cover types, 54 features, 7 classes"

    def __init__(
        self, *, train_size: Count = 500_000, test_size: Count = 30_000, download: bool = True
    ) -> None:
        super().__init__(download=download)
        self.counts = (train_size, test_size)

    @property
    def parts(self) -> list[Part]:
        """scikit-learn checks the archive it downloads and keeps these, which have no published checksum."""
        return [Part(f"scikit_learn_data/covertype/{kind}_py3") for kind in ("samples", "targets")]

    def fetch(self, data_dir: Path) -> None:
        from sklearn.datasets import fetch_covtype

        if self.on_disk(data_dir):
            return
        before = socket.getdefaulttimeout()
        socket.setdefaulttimeout(TIMEOUT_SECONDS)  # scikit-learn sets none of its own
        try:
            fetch_covtype(data_home=str(Path(data_dir) / "scikit_learn_data"), n_retries=1)
        except OSError as error:  # no network, a wrong checksum, or a folder that cannot be written
            raise UserError(
                f"dataset {self.name}: no samples_py3 in {self.folder(data_dir)} and covtype.data.gz cannot "
                f"be fetched ({one_line(error)}); put both files there or set data_dir (or FEDPRIV_DATA)"
            ) from error
        finally:
            socket.setdefaulttimeout(before)

    def verify_counts(self, data_dir: Path) -> str:
        try:
            _, labels = self._arrays(data_dir)
        except UserError as error:
            return f"damaged: {error}"
        if tuple(np.bincount(labels)[1:].tolist()) != PER_CLASS:
            return f"damaged: {self.folder(data_dir)} does not have the {sum(PER_CLASS):,} official samples"
        return "ok (by number of samples per class; no published checksum)"

    def read(self, data_dir: Path) -> Data:
        from sklearn.model_selection import train_test_split

        features, labels = self._arrays(data_dir)
        train_size, test_size = self.counts or (0, 0)
        if min(train_size, test_size) < 1 or train_size + test_size > len(labels):
            raise UserError(
                f"dataset {self.name}: train_size={train_size} and test_size={test_size} must be positive "
                f"and together at most {len(labels)}; lower them"
            )
        train, test = train_test_split(
            np.arange(len(labels)), train_size=train_size, test_size=test_size, random_state=1
        )
        x_train = features[train].astype(np.float32)  # [N, 54]
        x_test = features[test].astype(np.float32)
        mean, std = scales()
        for part in (x_train, x_test):
            part -= mean
            part /= std
        import torch

        targets = torch.from_numpy(labels.astype(np.int64) - 1)  # 1..7 on disk
        return Data(
            self.name,
            torch.from_numpy(x_train),
            targets[train],
            torch.from_numpy(x_test),
            targets[test],
            classes=7,
            not_covered=(
                "the scale of covtype's features: means and deviations of all its samples, which its donors "
                "published",
            ),
        )

    def _arrays(self, data_dir: Path) -> tuple[np.ndarray, np.ndarray]:
        arrays = []
        for path, _ in self.on_disk(data_dir):
            with reading(self.name, path):
                arrays.append(read_joblib(path))
        features, labels = arrays
        with reading(self.name, self.folder(data_dir)):
            if features.shape != (len(labels), 54) or labels.ndim != 1 or labels.dtype.kind not in "iu":
                raise ValueError(
                    f"shapes {features.shape} and {labels.shape} are not 54 features and a label"
                )
            if not np.isfinite(features).all() or not 1 <= labels.min() <= labels.max() <= 7:
                raise ValueError("features must be finite and labels lie between 1 and 7")
        return features, labels
