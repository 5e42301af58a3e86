"""Your own data: an .npz file, a CSV file or a folder of images, in the current folder or the data folder.

.npz    x_train, y_train, x_test, y_test: images [N, H, W] or [N, C, H, W], vectors [N, d]; uint8 are pixels,
        all else numbers as they are. With x and y alone a fixed part of each class is the test set.
        client_train, client_test or client: whose a sample is.
.csv    a column of labels (`label`), perhaps one that says whose a row is (`client`), all others numbers;
        a second file `test`, or a fixed part of the one.
folder  FOLDER/train/CLASS/image and FOLDER/test/CLASS/image, or FOLDER/CLASS/image, as torchvision's
        ImageFolder has it.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from fedpriv.config.limits import Within
from fedpriv.datasets.base import Data, Dataset, Part, reading
from fedpriv.datasets.normalize import SCALINGS
from fedpriv.datasets.own_arrays import PARTS, Arrays, checked, divided
from fedpriv.errors import UserError

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")


class Files(Dataset):
    name = "files"
    about = "your own .npz, .csv or folder of images"

    def __init__(
        self,
        *,
        path: str | None = None,
        test: str | None = None,
        label: str = "label",
        client: str | None = None,
        test_share: Annotated[float, Within(above=0, below=1)] = 0.2,
        size: Annotated[int, Within(least=1, most=1024)] | None = None,
        normalize: Literal["half", "unit"] = "half",
    ) -> None:
        super().__init__(download=False)
        self.path, self.test, self.label, self.client = path, test, label, client
        self.test_share, self.size, self.normalize = test_share, size, normalize

    @property
    def parts(self) -> list[Part]:
        return [Part(name) for name in (self.path or "*", self.test) if name]

    def folder(self, data_dir: Path) -> Path:
        return Path(data_dir)

    def _find(self, name: str, data_dir: Path) -> Path | None:
        places = (folder / Path(name).expanduser() for folder in (Path.cwd(), Path(data_dir)))
        return next((place for place in places if place.exists()), None)

    def on_disk(self, data_dir: Path) -> list[tuple[Path, str | None]]:
        if self.path is None:
            return []
        found = [self._find(name, data_dir) for name in (self.path, self.test) if name]
        listed = [file for place in found if place for file in _files(place)]
        return [(file, None) for file in listed] if all(found) else []

    def load(self, data_dir: Path) -> Data:
        return self.read(data_dir)

    def fetch(self, data_dir: Path) -> None:
        raise UserError(f"dataset {self.name}: these are your own files; set dataset.path to one")

    def verify(self, data_dir: Path) -> str:
        return "missing" if self.path is None else self.verify_counts(data_dir)

    def read(self, data_dir: Path) -> Data:
        import torch

        source = self._required("path", self.path, data_dir)
        with reading(self.name, source):
            if source.is_dir():
                arrays = self._images(source)
            elif source.suffix == ".npz":
                arrays = self._npz(source)
            elif source.suffix == ".csv":
                arrays = self._csv(source, data_dir)
            else:
                raise UserError(f"dataset {self.name}: {source} is no .npz or .csv file and no folder")
        where = f"dataset {self.name}: {source}"
        if "x" in arrays:
            arrays = divided(arrays, self.test_share, where)
        x, y, owners = checked(arrays, where)
        pixels = x["train"].dtype == np.uint8
        scaling: Any = SCALINGS[self.normalize] if pixels else {}
        return Data(
            self.name,
            torch.from_numpy(x["train"]),
            torch.from_numpy(y["train"]),
            torch.from_numpy(x["test"]),
            torch.from_numpy(y["test"]),
            classes=int(max(y[part].max() for part in PARTS)) + 1,
            owners=tuple(torch.from_numpy(owners[part]) for part in owners),
            **scaling,
        )

    def _required(self, option: str, name: str | None, data_dir: Path) -> Path:
        if name is not None and (found := self._find(name, data_dir)):
            return found
        what = f"no {option} given" if name is None else f"no {name} in {Path.cwd()} or {data_dir}"
        raise UserError(
            f"dataset {self.name}: {what}; set dataset.{option} to an .npz or .csv file or a folder of images"
        )

    def _npz(self, path: Path) -> Arrays:
        with np.load(path, allow_pickle=False) as content:
            known = {f"{kind}{part}" for kind in ("x", "y", "client") for part in ("", "_train", "_test")}
            found = {name: content[name] for name in content if name in known}
        whole = {"x", "y"} <= set(found)
        if not whole and (missing := [f"{k}_{p}" for p in PARTS for k in "xy" if f"{k}_{p}" not in found]):
            raise UserError(
                f"dataset {self.name}: {path} has no {', '.join(missing)}; it needs x_train, y_train, "
                "x_test, y_test, or x and y"
            )
        return {n: v for n, v in found.items() if whole == ("_" not in n)}

    def _csv(self, path: Path, data_dir: Path) -> Arrays:
        if self.test is None:
            return self._table(path, "")
        other = self._required("test", self.test, data_dir)
        with reading(self.name, other):
            return self._table(path, "_train") | self._table(other, "_test")

    def _table(self, path: Path, part: str) -> Arrays:
        import pandas as pd

        frame = pd.read_csv(path)
        where = f"dataset {self.name}: {path}"
        for option, column in (("label", self.label), ("client", self.client)):
            if column is not None and column not in frame:
                raise UserError(
                    f"{where} has no column {column}; set dataset.{option} to one of "
                    f"{', '.join(map(str, frame.columns[:20]))}"
                )
        features = frame.drop(columns=[c for c in (self.label, self.client) if c])
        for name, values in features.items():
            if values.dtype.kind not in "fiub":
                text = str(values.dropna().iloc[0])[:40]
                raise UserError(
                    f"{where}: column {name} holds texts such as {text!r}; give numbers, or take it out"
                )
        arrays = {f"x{part}": features.to_numpy(np.float32), f"y{part}": frame[self.label].to_numpy()}
        if self.client is not None:
            arrays[f"client{part}"] = frame[self.client].to_numpy()
        return arrays

    def _images(self, folder: Path) -> Arrays:
        halves = [folder / part for part in PARTS]
        if not all(half.is_dir() for half in halves):
            return self._tree(folder, "", None)
        classes = _classes(halves[0])
        return self._tree(halves[0], "_train", classes) | self._tree(halves[1], "_test", classes)

    def _tree(self, folder: Path, part: str, classes: list[str] | None) -> Arrays:
        from PIL import Image

        where, names = f"dataset {self.name}: {folder}", classes or _classes(folder)
        if len(names) < 2:
            raise UserError(f"{where}: needs a folder of images for each of two classes or more")
        if unknown := [name for name in _classes(folder) if name not in names]:
            raise UserError(f"{where}: class {unknown[0]} has no folder among the training images")
        images, labels, grey = [], [], True
        for number, name in enumerate(names):
            for file in _files(folder / name):
                with reading(self.name, file), Image.open(file) as image:
                    grey = grey and image.mode in ("1", "L", "I;16")
                    square = image.convert("RGB")
                    images.append(square.resize((self.size, self.size)) if self.size else square)
                    labels.append(number)
                if images[-1].size != images[0].size:
                    raise UserError(
                        f"{where}: {file.name} is {images[-1].size[0]}x{images[-1].size[1]}, others are "
                        f"{images[0].size[0]}x{images[0].size[1]}; set dataset.size to resize all"
                    )
        if not images:
            raise UserError(f"{where}: holds no image ({', '.join(IMAGES)})")
        pixels = np.stack([np.asarray(image) for image in images]).transpose(0, 3, 1, 2)  # [N, 3, H, W]
        return {f"x{part}": pixels[:, :1] if grey else pixels, f"y{part}": np.array(labels)}


def _classes(folder: Path) -> list[str]:
    return sorted(
        entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    )


def _files(place: Path) -> list[Path]:
    """A file itself, or the images below a folder."""
    if not place.is_dir():
        return [place]
    return sorted(file for file in place.rglob("*") if file.suffix.lower() in IMAGES and file.is_file())
