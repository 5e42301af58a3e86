"""Small data sets in the official formats, with every class in them, for tests that train on them."""

import io
import pickle
import struct
import tarfile
from pathlib import Path

import joblib
import numpy as np
from scipy.io import savemat

from fedpriv.datasets.mnist_sets import EMNIST
from fedpriv.datasets.vision_sets import CIFAR10, CIFAR100

SAMPLES = 400  # of training and of testing
RANDOM = np.random.default_rng(0)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def _mnist(folder: Path) -> None:
    for side in ("train", "t10k"):
        images = RANDOM.integers(0, 256, (SAMPLES, 28, 28), dtype=np.uint8)
        labels = np.arange(SAMPLES, dtype=np.uint8) % 10
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            (folder / f"{side}-{kind}-ubyte").write_bytes(idx(array))


def _emnist(folder: Path) -> None:
    images = RANDOM.integers(0, 256, (SAMPLES, 28, 28), dtype=np.uint8)
    arrays = (images, np.arange(SAMPLES, dtype=np.uint8) % 10) * 2
    for name, array in zip(EMNIST.members, arrays, strict=True):
        (folder / name.removesuffix(".gz")).write_bytes(idx(array))


def _cifar(folder: Path, kind: type[CIFAR10]) -> None:
    classes = 100 if kind is CIFAR100 else 10
    key = "fine_labels" if kind is CIFAR100 else "labels"
    for name, _ in kind().official.train_list + kind().official.test_list:
        pixels = RANDOM.integers(0, 256, (SAMPLES, 3072), dtype=np.uint8)
        labels = (np.arange(SAMPLES) % classes).tolist()
        (folder / name).write_bytes(pickle.dumps({"data": pixels, key: labels}, protocol=2))


def _svhn(folder: Path) -> None:
    pixels = RANDOM.integers(0, 256, (32, 32, 3, SAMPLES), dtype=np.uint8)
    labels = (np.arange(SAMPLES, dtype=np.uint8) % 10 + 1)[:, None]
    for split in ("train", "test"):
        savemat(folder / f"{split}_32x32.mat", {"X": pixels, "y": labels})


def _covtype(folder: Path) -> None:
    joblib.dump(RANDOM.normal(size=(SAMPLES, 54)), folder / "samples_py3")
    joblib.dump(np.arange(SAMPLES, dtype=np.int32) % 7 + 1, folder / "targets_py3")


def _imdb(folder: Path) -> None:
    folders = [f"aclImdb/{split}/{label}" for split in ("train", "test") for label in ("pos", "neg")]
    names = [f"{name}/{i}_1.txt" for name in folders for i in range(60)]
    tar(folder / "aclImdb_v1.tar.gz", {name: f"a film, {name[13:20]}".encode() for name in names})


def features(path: Path, classes: int) -> None:
    x, y = RANDOM.normal(size=(SAMPLES, 6)), np.arange(SAMPLES) % classes
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)


def write(data_dir: Path) -> None:
    """Every data set that the first cell of a recipe needs."""
    makers = {
        "MNIST/raw": _mnist,
        "FashionMNIST/raw": _mnist,
        "EMNIST/raw": _emnist,
        CIFAR10().official.base_folder: lambda folder: _cifar(folder, CIFAR10),
        CIFAR100().official.base_folder: lambda folder: _cifar(folder, CIFAR100),
        ".": _svhn,
        "scikit_learn_data/covertype": _covtype,
        "features": lambda folder: features(folder / "cifar10_clip_vitb32.npz", 10),
    }
    for name, make in makers.items():
        (data_dir / name).mkdir(parents=True, exist_ok=True)
        make(data_dir / name)
    _imdb(data_dir)
