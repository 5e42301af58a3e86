"""Feature vectors computed beforehand, for example by `fedpriv features`: one .npz file."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedpriv.datasets.base import Data, Dataset, Part, reading
from fedpriv.datasets.feature_norm import DN, collected
from fedpriv.errors import UserError

if TYPE_CHECKING:  # a data set that is only named needs no torch
    from torch import Tensor

PARTS = ("train", "test")
CLASSES = 100_000
LARGEST = 1e15  # of a feature: what is squared on the way must fit into float32
ARRAYS = ("x_train", "y_train", "x_test", "y_test")


class Features(Dataset):
    """`path` is absolute, or below the data folder's `features`, the data folder or the current one.

    `dn` is PrivateFL's data normalisation (section 6.2.1, after Tramer and Boneh 2021): `half` takes 0.5 for
    mean and variance, the paper's text for CLIP and SimCLR; `unit` takes 0 and 1 as the authors' code does,
    which leaves the features as they are; `source` takes what was collected from other, public features, the
    .npz file `statistics`: the paper uses CIFAR-100's for its ResNeXt. Statistics of the private training
    features themselves are never used, for they are not private. With `after_transform` the clients'
    transform sees the features as stored and its outcome is normalised, as in the authors' code.
    """

    name = "features"
    about = "feature vectors from an .npz file"

    def __init__(
        self,
        *,
        path: str | None = None,
        dn: DN = "none",
        statistics: str | None = None,
        after_transform: bool = False,
    ) -> None:
        super().__init__(download=False)
        self.path, self.dn, self.statistics, self.after_transform = path, dn, statistics, after_transform
        if dn != "source" and statistics is not None:
            raise UserError(
                f"dataset.statistics={statistics} is not used with dn={dn}; set dataset.dn=source"
            )

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
        found = [self._find(name, data_dir) for name in (self.path, self.statistics) if name is not None]
        return [(path, None) for path in found if path is not None] if all(found) else []

    def _find(self, name: str, data_dir: Path) -> Path | None:
        places = (folder / name for folder in (self.folder(data_dir), Path(data_dir), Path.cwd()))
        return next((place for place in places if place.is_file()), None)  # an absolute name ignores folders

    def fetch(self, data_dir: Path) -> None:
        raise UserError(
            f"dataset {self.name}: no official files to fetch; put .npz files in {self.folder(data_dir)}"
        )

    def load(self, data_dir: Path) -> Data:
        return self.read(data_dir)

    def verify(self, data_dir: Path) -> str:
        """Read the file, or without `path` every file there is."""
        found = self.on_disk(data_dir)
        for path, _ in found[:1] if self.path else found:
            try:
                self._read(path)
            except UserError as error:
                return f"damaged: {error}"
        return "ok (arrays complete; no published checksum)" if found else "missing"

    def read(self, data_dir: Path) -> Data:
        found = self._required("path", self.path, data_dir)
        data = self._read(found)
        standard = self._standard(data, found, data_dir)
        if standard is None:
            return data
        if self.after_transform:
            return replace(data, standard=standard)
        mean, deviation = standard
        for x in (data.x_train, data.x_test):
            x.sub_(mean).div_(deviation)
        return data

    def _standard(self, data: Data, path: Path, data_dir: Path) -> "tuple[Tensor, Tensor] | None":
        """Mean and deviation of every feature, [d]; None where nothing is to be done."""
        if self.dn == "half":
            import torch

            half = torch.full(data.shape, 0.5)
            return half, half.sqrt()
        if self.dn == "source":
            return self._collected(data, path, self._required("statistics", self.statistics, data_dir))
        return None

    def _required(self, option: str, name: str | None, data_dir: Path) -> Path:
        if name is not None and (found := self._find(name, data_dir)):
            return found
        names = ", ".join(path.name for path in self.available(data_dir)) or "no .npz file"
        what = f"no {option} given" if name is None else f"no file {name}"
        raise UserError(
            f"dataset {self.name}: {what}; set dataset.{option} to an .npz file "
            f"({self.folder(data_dir)} has {names})"
        )

    def _collected(self, data: Data, path: Path, statistics: Path) -> "tuple[Tensor, Tensor]":
        if statistics.samefile(path):
            raise UserError(
                f"dataset.statistics={statistics} is dataset.path itself, and statistics of the private "
                "training features are not private; name features of a public dataset"
            )
        with reading(self.name, statistics):
            mean, variance = collected(statistics, data.y_train.numpy(), data.shape[0])
        import torch

        return torch.from_numpy(mean).float(), torch.from_numpy(variance).sqrt().float()

    def _read(self, path: Path) -> Data:
        with reading(self.name, path), np.load(path, allow_pickle=False) as content:
            if missing := [name for name in ARRAYS if name not in content]:
                raise UserError(
                    f"dataset {self.name}: {path} has no {', '.join(missing)}; it needs {', '.join(ARRAYS)}"
                )
            arrays = {name: content[name] for name in ARRAYS}
        if problem := _problem(arrays):
            raise UserError(f"dataset {self.name}: {path}: {problem}; write the file anew")
        import torch

        x_train, x_test = (torch.from_numpy(arrays[f"x_{p}"].astype(np.float32)) for p in PARTS)  # [N, d]
        y_train, y_test = (torch.from_numpy(arrays[f"y_{p}"].astype(np.int64)) for p in PARTS)  # [N]
        classes = int(torch.cat([y_train, y_test]).max()) + 1
        return Data(self.name, x_train, y_train, x_test, y_test, classes=classes)


def _problem(arrays: dict[str, np.ndarray]) -> str:
    for part in PARTS:
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        if x.ndim != 2 or y.ndim != 1:
            return f"x_{part} must have two axes and y_{part} one, not {x.ndim} and {y.ndim}"
        if len(x) != len(y) or len(y) == 0:
            return f"x_{part} has {len(x)} rows and y_{part} {len(y)}"
        if x.shape[1] == 0:
            return f"x_{part} has no columns"
        if x.dtype.kind not in "fiub":
            return f"x_{part} holds {x.dtype}, not real numbers"
        if not np.isfinite(x).all() or float(np.abs(x).max()) > LARGEST:
            return f"x_{part} holds infinity, what is no number, or numbers beyond {LARGEST:g}"
        if y.dtype.kind not in "fiub":
            return f"y_{part} holds {y.dtype}, not whole numbers"
        if not np.isfinite(y).all() or (y != np.floor(y)).any():
            return f"y_{part} holds labels that are not whole numbers"
        if y.min() < 0:
            return f"y_{part} has negative labels"
        if y.max() >= CLASSES:
            return f"y_{part} has a label {int(y.max())}; there can be {CLASSES:,} classes, numbered from 0"
    if arrays["x_train"].shape[1] != arrays["x_test"].shape[1]:
        return f"x_train has {arrays['x_train'].shape[1]} features and x_test {arrays['x_test'].shape[1]}"
    return ""
