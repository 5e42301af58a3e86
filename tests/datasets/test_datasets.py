"""Datasets: hand-made files in the official formats come back pixel for pixel, and mistakes give one line."""

import gzip
import inspect
import io
import os
import pickle
import urllib.error
import urllib.request
import warnings
import zipfile
import zlib
from email.message import Message
from pathlib import Path
from typing import Any, get_args

import joblib
import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from fedpriv.config.catalogue import targets
from fedpriv.datasets import Data, Dataset, default_data_dir
from fedpriv.datasets.chmnist import CHMNIST, FOLDERS, STEM
from fedpriv.datasets.commands import data_fetch, data_list, data_verify
from fedpriv.datasets.covtype import Covtype
from fedpriv.datasets.download import download
from fedpriv.datasets.features import Features
from fedpriv.datasets.imdb import IMDB
from fedpriv.datasets.mnist_sets import EMNIST, MNIST
from fedpriv.datasets.purchase100 import Purchase100
from fedpriv.datasets.readers import read_joblib
from fedpriv.datasets.vision_sets import CIFAR10, CIFAR100, SVHN
from fedpriv.errors import UserError
from tests.helpers.files import idx, tar

DATASETS = targets("dataset")
REAL = os.environ.get("FEDPRIV_DATA")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test reaches the network or the user's own cache."""

    def refuse(*_: Any, **__: Any) -> None:
        raise urllib.error.URLError("name not known")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda *_: str(tmp_path / "cache"))


def small(dataset: Dataset, data_dir: Path) -> Data:
    """Load a hand-made file, which is smaller than the official one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*expected")
        return dataset.load(data_dir)


RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (5, 28, 28), dtype=np.uint8)
LABELS = np.array([3, 1, 4, 1, 5], dtype=np.uint8)


def write_mnist(folder: Path, packed: bool = True) -> None:
    folder.mkdir(parents=True)
    for split in ("train", "t10k"):
        for kind, array in (("images-idx3", IMAGES), ("labels-idx1", LABELS)):
            name, content = f"{split}-{kind}-ubyte", idx(array)
            (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(content) if packed else content)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fmnist", "FashionMNIST")])
def test_mnist_files(tmp_path: Path, name: str, folder: str, packed: bool) -> None:
    write_mnist(tmp_path / folder / "raw", packed)
    data = small(DATASETS[name](), tmp_path)
    assert data.x_train.dtype == torch.uint8 and data.y_train.dtype == torch.int64
    assert data.shape == (1, 28, 28) and data.classes == 10
    assert np.array_equal(data.x_train[:, 0].numpy(), IMAGES)
    assert data.y_test.tolist() == [3, 1, 4, 1, 5]


def test_unusual_size_warns(tmp_path: Path) -> None:
    write_mnist(tmp_path / "MNIST" / "raw")
    with pytest.warns(UserWarning, match=r"\(5, 5\) samples, but \(60000, 10000\)"):
        MNIST().load(tmp_path)


@pytest.mark.parametrize("layout", ["archive", "gzip", "plain"])
def test_emnist_is_turned_upright(tmp_path: Path, layout: str) -> None:
    raw = tmp_path / "EMNIST" / "raw"
    raw.mkdir(parents=True)
    arrays = (IMAGES.transpose(0, 2, 1).copy(), LABELS) * 2  # as stored: columns first
    contents = {name: idx(array) for name, array in zip(EMNIST.members, arrays, strict=True)}
    if layout == "archive":
        with zipfile.ZipFile(raw / "gzip.zip", "w") as archive:
            for name, content in contents.items():
                archive.writestr(f"gzip/{name}", gzip.compress(content))
    for name, content in contents.items():
        if layout == "gzip":
            (raw / name).write_bytes(gzip.compress(content))
        elif layout == "plain":
            (raw / name.removesuffix(".gz")).write_bytes(content)
    data = small(EMNIST(), tmp_path)
    assert np.array_equal(data.x_train[:, 0].numpy(), IMAGES)
    assert data.y_train.tolist() == LABELS.tolist()


def cifar_batches(kind: type[CIFAR10]) -> tuple[dict[str, bytes], np.ndarray]:
    key = "fine_labels" if kind is CIFAR100 else "labels"
    lists = kind().official.train_list + kind().official.test_list
    pixels = RANDOM.integers(0, 256, (len(lists), 2, 3, 32, 32), dtype=np.uint8)
    return {
        name: pickle.dumps({"data": pixels[i].reshape(2, 3072), key: [i, 9]}, protocol=2)
        for i, (name, _) in enumerate(lists)
    }, pixels


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("kind", [CIFAR10, CIFAR100])
def test_cifar(tmp_path: Path, kind: type[CIFAR10], packed: bool) -> None:
    batches, pixels = cifar_batches(kind)
    folder = tmp_path / kind().official.base_folder
    if packed:
        tar(
            tmp_path / kind().official.filename,
            {f"{folder.name}/{name}": raw for name, raw in batches.items()},
        )
    else:
        folder.mkdir()
        for name, raw in batches.items():
            (folder / name).write_bytes(raw)
    data = small(kind(), tmp_path)
    assert np.array_equal(
        data.x_train.numpy(), pixels[:-1].reshape(-1, 3, 32, 32)
    )  # channels first, in order
    assert np.array_equal(data.x_test.numpy(), pixels[-1])
    assert data.y_train[:2].tolist() == [0, 9]
    assert data.classes == (100 if kind is CIFAR100 else 10)


def test_cifar_runs_no_foreign_pickle(tmp_path: Path) -> None:
    batches, _ = cifar_batches(CIFAR100)
    (tmp_path / "cifar-100-python").mkdir()
    for name in batches:
        (tmp_path / "cifar-100-python" / name).write_bytes(pickle.dumps(os.getcwd))
    with pytest.raises(UserError, match="does not belong"):
        CIFAR100().load(tmp_path)


def test_svhn_calls_ten_zero(tmp_path: Path) -> None:
    pixels = RANDOM.integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
    for split in ("train", "test"):
        savemat(
            tmp_path / f"{split}_32x32.mat",
            {"X": pixels, "y": np.array([[10], [1], [9], [2]], dtype=np.uint8)},
        )
    data = small(SVHN(), tmp_path)
    assert data.x_train.shape == (4, 3, 32, 32) and data.y_train.tolist() == [0, 1, 9, 2]
    assert data.x_train[2, 1, 5, 7] == pixels[5, 7, 1, 2]


def test_digits() -> None:
    data = DATASETS["digits"]().load(Path("unused"))
    assert data.x_train.shape == (1437, 1, 8, 8) and data.x_test.shape == (360, 1, 8, 8)
    assert data.x_train.max() == 255 and set(data.y_test.tolist()) == set(range(10))
    assert torch.equal(data.x_train, DATASETS["digits"]().load(Path("unused")).x_train)


def test_covtype_is_split_and_scaled(tmp_path: Path) -> None:
    folder = tmp_path / "scikit_learn_data" / "covertype"
    folder.mkdir(parents=True)
    features = RANDOM.normal(50, 9, (100, 54))
    features[:, 53] = 0  # an absent soil type
    joblib.dump(features, folder / "samples_py3")
    joblib.dump(np.arange(100, dtype=np.int32) % 7 + 1, folder / "targets_py3")
    data = Covtype(train_size=60, test_size=20).load(tmp_path)
    assert data.x_train.shape == (60, 54) and data.x_train.dtype == torch.float32 and len(data.y_test) == 20
    spread = torch.cat([data.x_train, data.x_test]).std(0)
    assert torch.allclose(spread[0], torch.tensor(9 / 279.98), rtol=0.3)
    absent = -0.025 / (0.025 * 0.975) ** 0.5  # none of forty
    assert torch.allclose(data.x_train[:, 53], torch.tensor(absent)) and "covtype" in data.not_covered[0]
    assert set(data.y_train.tolist()) == set(range(7))
    assert "does not have the 581,012" in Covtype().verify(tmp_path)
    with pytest.raises(UserError, match="together at most 100"):
        Covtype(train_size=90, test_size=20).load(tmp_path)


@pytest.mark.parametrize("packed", [True, False])
def test_chmnist(tmp_path: Path, packed: bool) -> None:
    source = tmp_path / "made" / STEM
    for i, name in enumerate(FOLDERS):
        (source / name).mkdir(parents=True)
        for j in range(5):
            tile = np.full((6, 6, 3), (10 * i, j, 200), dtype=np.uint8)
            Image.fromarray(tile).save(source / name / f"{j}.tif")
    if packed:
        with zipfile.ZipFile(tmp_path / f"{STEM}.zip", "w") as archive:
            for file in source.rglob("*.tif"):
                archive.write(file, file.relative_to(tmp_path / "made"))
                archive.writestr(f"__MACOSX/{file.relative_to(tmp_path / 'made')}", b"shadow")
    else:
        source.rename(tmp_path / STEM)
    data = small(CHMNIST(size=6), tmp_path)
    assert len(data.y_train) == 36 and len(data.y_test) == 4 and data.shape == (3, 6, 6)
    assert torch.equal(data.x_train[:, 0, 2, 2], (10 * data.y_train).to(torch.uint8))  # red tells the class
    assert torch.all(data.x_train[:, 2] == 200)
    assert small(CHMNIST(size=3), tmp_path).shape == (3, 3, 3)


class Hostile:
    """A pickle that runs a command when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("compress", [0, 3])
def test_covtype_runs_nothing_that_lies_in_its_files(tmp_path: Path, compress: int) -> None:
    folder, mark = tmp_path / "scikit_learn_data" / "covertype", tmp_path / "ran"
    folder.mkdir(parents=True)
    joblib.dump(Hostile(mark), folder / "samples_py3", compress=compress)
    joblib.dump(np.ones(9, dtype=np.int32), folder / "targets_py3", compress=compress)
    one_line(lambda: Covtype().load(tmp_path), "samples_py3")
    assert not mark.exists()
    joblib.load(folder / "samples_py3")
    assert mark.exists()  # so it would have been seen


@pytest.mark.parametrize("compress", [0, 9])
@pytest.mark.parametrize(
    "array",
    [
        RANDOM.normal(size=(7, 3)),
        np.asfortranarray(RANDOM.normal(size=(7, 3))).astype(np.float32),
        np.arange(9, dtype=np.int32),
        np.arange(4, dtype=">i8"),
        np.arange(300, dtype=np.uint8).reshape(3, 100),
        np.zeros((0, 54)),
    ],
    ids=str,
)
def test_an_array_of_joblib_is_read_as_joblib_reads_it(tmp_path: Path, array: Any, compress: int) -> None:
    joblib.dump(array, tmp_path / "a", compress=compress)
    found = read_joblib(tmp_path / "a")
    assert found.dtype == array.dtype and np.array_equal(found, array)


@pytest.mark.parametrize(
    "content", [b"", b"\x80", b"x\xda", b"\x80\x04.", zlib.compress(b"\x80\x04N."), b"abc"]
)
def test_what_is_no_array_of_joblib_is_one_line(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "scikit_learn_data" / "covertype"
    folder.mkdir(parents=True)
    for kind in ("samples", "targets"):
        (folder / f"{kind}_py3").write_bytes(content)
    one_line(lambda: Covtype().load(tmp_path), "samples_py3")


def test_purchase100_remembers_what_was_fetched_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = RANDOM.integers(0, 2, (50, 600))
    text = [
        "\n".join(",".join(map(str, [i % 100 + 1, *r])) for i, r in enumerate(x)) for x in (rows, 1 - rows)
    ]
    monkeypatch.setattr(Purchase100, "counts", (40, 10))
    (tmp_path / "dataset_purchase").write_text(text[0])
    assert Purchase100().verify(tmp_path).startswith("ok")
    Purchase100().fetch(tmp_path)
    assert len((tmp_path / "dataset_purchase.sha256").read_text()) == 65
    (tmp_path / "dataset_purchase").write_text(text[1])
    assert "not the one remembered" in Purchase100().verify(tmp_path)
    one_line(lambda: Purchase100().load(tmp_path), "dataset_purchase.sha256")


@pytest.mark.parametrize("md5", [None, "0" * 32])
def test_https_is_tried_first_and_http_only_where_a_checksum_protects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, md5: str | None
) -> None:
    asked: list[str] = []

    def refuse(request: Any, timeout: float) -> Any:
        asked.append(request.full_url)
        raise urllib.error.URLError("nobody there")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    urls = ["http://a/x", "https://b/x"]
    one_line(lambda: download(urls, tmp_path / "x", label="dataset t", md5=md5), "nobody there")
    assert asked == ["https://a/x", "https://b/x", *(["http://a/x"] if md5 else [])]


BAD: dict[str, tuple[Any, Any, str]] = {
    "nan": (np.full((6, 3), np.nan), np.arange(6), "x_train"),
    "infinite": (np.full((6, 3), np.inf), np.arange(6), "x_train"),
    "huge": (np.full((6, 3), 1e300), np.arange(6), "1e+15"),
    "complex": (np.ones((6, 3), dtype=complex), np.arange(6), "complex128"),
    "texts": (np.full((6, 3), "a"), np.arange(6), "real numbers"),
    "fractional label": (np.ones((6, 3)), np.arange(6) + 0.5, "whole numbers"),
    "nan label": (np.ones((6, 3)), np.full(6, np.nan), "whole numbers"),
    "text label": (np.ones((6, 3)), np.array(list("abcdef")), "whole numbers"),
    "huge label": (np.ones((6, 3)), np.array([0, 1, 2, 3, 4, 10**9]), "1000000000"),
    "negative label": (np.ones((6, 3)), np.arange(6) - 1, "negative"),
    "no columns": (np.ones((6, 0)), np.arange(6), "no columns"),
    "no rows": (np.ones((0, 3)), np.arange(0), "0 rows"),
}


@pytest.mark.parametrize(("x", "y", "word"), BAD.values(), ids=BAD)
def test_features_that_are_none(tmp_path: Path, x: Any, y: Any, word: str) -> None:
    np.savez(tmp_path / "f.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    one_line(lambda: Features(path="f.npz").load(tmp_path), "f.npz", word)


@pytest.mark.parametrize("packed", [True, False])
def test_purchase100(tmp_path: Path, packed: bool) -> None:
    bits = RANDOM.integers(0, 2, (20, 600))
    bits[:, 0], labels = 1, np.arange(1, 21) * 5
    text = "".join(",".join(map(str, [label, *row])) + "\n" for label, row in zip(labels, bits, strict=True))
    if packed:
        tar(tmp_path / "dataset_purchase.tgz", {"dataset_purchase": text.encode()})
    else:
        (tmp_path / "dataset_purchase").write_text(text)
    data = small(Purchase100(), tmp_path)
    assert data.x_train.shape == (16, 600) and data.x_test.shape == (4, 600)
    for x, y in zip(data.x_train, data.y_train, strict=True):
        assert np.array_equal(x.numpy(), bits[(int(y) + 1) // 5 - 1])
    assert Purchase100().verify(tmp_path).startswith("damaged: (16, 4) samples")


REVIEWS = {
    "aclImdb/train/pos/0_9.txt": b"Good good GOOD film.<br /><br />Don't miss",
    "aclImdb/train/neg/0_1.txt": b"bad film",
    "aclImdb/train/unsup/0_0.txt": b"unlabelled unlabelled unlabelled unlabelled",
    "aclImdb/test/pos/0_9.txt": b"good unseen film",
    "aclImdb/test/neg/0_1.txt": b"bad",
}


def check_reviews(data: Data) -> None:
    # By frequency, then alphabet: good = 2, film = 3, bad = 4, don't = 5; "unseen" is unknown.
    rows = {int(y): x.tolist() for x, y in zip(data.x_train, data.y_train, strict=True)}
    assert rows == {1: [2, 2, 2, 3], 0: [0, 0, 4, 3]}
    rows = {int(y): x.tolist() for x, y in zip(data.x_test, data.y_test, strict=True)}
    assert rows == {1: [0, 2, 1, 3], 0: [0, 0, 0, 4]}
    assert data.vocabulary == 6 and data.x_train.dtype == torch.int64


def test_imdb_archive_is_prepared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IMDB, "counts", (2, 2))
    tar(tmp_path / "aclImdb_v1.tar.gz", REVIEWS)
    dataset = IMDB(vocabulary=4, length=4)
    check_reviews(dataset.load(tmp_path))
    assert "md5 of aclImdb_v1.tar.gz is not the official" in dataset.verify(tmp_path)
    monkeypatch.setattr(IMDB, "_encode", None)  # would fail if called again
    check_reviews(dataset.load(tmp_path))
    tar(tmp_path / "aclImdb_v1.tar.gz", {**REVIEWS, "aclImdb/train/pos/1_9.txt": b"one too many"})
    assert dataset.verify(tmp_path) == "damaged: 2 reviews in train/pos, but 1 expected"


def test_imdb_folder_and_unwritable_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IMDB, "counts", (2, 2))
    (tmp_path / "cache").write_text("a file where the cache folder should be")
    tar(tmp_path / "aclImdb_v1.tar.gz", REVIEWS)
    with pytest.warns(UserWarning, match="not kept"):
        check_reviews(IMDB(vocabulary=4, length=4).load(tmp_path))
    (tmp_path / "aclImdb_v1.tar.gz").unlink()
    for name, text in REVIEWS.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(text)
    check_reviews(IMDB(vocabulary=4, length=4).load(tmp_path))


def test_features(tmp_path: Path) -> None:
    (tmp_path / "features").mkdir()
    x, y = RANDOM.normal(size=(6, 3)).astype(np.float16), np.array([0, 1, 2, 2, 1, 0], dtype=np.uint8)
    path = tmp_path / "features" / "some.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])
    for given in ("some.npz", "features/some.npz", str(path)):
        data = Features(path=given).load(tmp_path)
        assert data.x_train.dtype == torch.float32 and data.classes == 3 and data.shape == (3,)
        assert np.array_equal(data.x_train.numpy(), x.astype(np.float32))
    for options in ({}, {"path": "other.npz"}):
        one_line(lambda options=options: Features(**options).load(tmp_path), "some.npz", str(tmp_path))
    np.savez(path, x_train=x, y_train=y[:5], x_test=x, y_test=y)
    one_line(lambda: Features(path="some.npz").load(tmp_path), "6 rows", "some.npz")
    np.savez(path, x_train=x, y_train=y)
    one_line(lambda: Features(path="some.npz").load(tmp_path), "no x_test, y_test")


def one_line(call: Any, *parts: str) -> None:
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value) and all(part in str(caught.value) for part in parts), caught.value


FIRST = {
    "mnist": "train-images-idx3-ubyte.gz",
    "fmnist": "train-images-idx3-ubyte.gz",
    "emnist": "gzip.zip",
    "cifar10": "cifar-10-python.tar.gz",
    "cifar100": "cifar-100-python.tar.gz",
    "svhn": "train_32x32.mat",
    "chmnist": f"{STEM}.zip",
    "purchase100": "dataset_purchase.tgz",
    "imdb": "aclImdb_v1.tar.gz",
}


@pytest.mark.parametrize("name", FIRST)
def test_absent_files_give_one_line(tmp_path: Path, name: str) -> None:
    folder = str(DATASETS[name]().folder(tmp_path))
    one_line(lambda: DATASETS[name]().load(tmp_path), f"dataset {name}", folder, FIRST[name], "no network")
    one_line(lambda: DATASETS[name](download=False).load(tmp_path), folder, FIRST[name], "download=false")
    assert DATASETS[name]().verify(tmp_path) == "missing"
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_absent_covtype_gives_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise urllib.error.URLError("name not known")

    monkeypatch.setattr("sklearn.datasets._base.urlretrieve", refuse)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn announces its retry
        one_line(lambda: Covtype().load(tmp_path), str(tmp_path), "covtype.data.gz")


def test_damaged_files_are_named(tmp_path: Path) -> None:
    write_mnist(tmp_path / "MNIST" / "raw")
    assert MNIST().verify(tmp_path).startswith("damaged: the md5 of train-images-idx3-ubyte.gz")
    path = tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:20])
    one_line(lambda: MNIST().load(tmp_path), "cannot read", path.name)


class Response(io.BytesIO):
    headers = Message()


def test_download_checks_and_cleans_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: Response(b"hello"))
    target = tmp_path / "new" / "hello.txt"
    wrong = "0" * 32
    one_line(lambda: download(["http://a/b"], target, label="x", md5=wrong), "wrong md5", "hello.txt", "new")
    assert list(target.parent.iterdir()) == []
    download(["http://a/b"], target, label="x", md5="5d41402abc4b2a76b9719d911017c592")
    assert target.read_bytes() == b"hello" and list(target.parent.iterdir()) == [target]
    blocked = target / "below-a-file" / "x.bin"
    one_line(lambda: download(["http://a/b"], blocked, label="x"), "x.bin")


def test_prepare() -> None:
    x = torch.tensor([0, 51, 255], dtype=torch.uint8).view(3, 1, 1, 1).expand(3, 3, 2, 2)
    y = torch.zeros(3, dtype=torch.int64)
    half = Data("a", x, y, x, y, 10, mean=(0.5,), std=(0.5,))
    assert torch.allclose(half.prepare(x)[:, 0, 0, 0], torch.tensor([-1.0, -0.6, 1.0]))
    assert half.prepare(x, torch.float64).dtype == torch.float64
    channels = Data("a", x, y, x, y, 10, mean=(0.1, 0.2, 0.3), std=(0.5, 1.0, 2.0))
    shown = channels.prepare(x.reshape(1, 3, 3, 2, 2))
    assert shown.shape == (1, 3, 3, 2, 2)
    assert torch.allclose(shown[0, 1, :, 0, 0], torch.tensor([0.2, 0.0, -0.05]), atol=1e-6)
    vectors = torch.rand(3, 4)
    assert Data("a", vectors, y, vectors, y, 2).prepare(vectors) is vectors
    assert torch.allclose(
        Data("a", vectors, y, vectors, y, 2, (1.0,), (2.0,)).prepare(vectors), (vectors - 1) / 2
    )
    tokens = torch.ones(3, 4, dtype=torch.int64)
    assert Data("a", tokens, y, tokens, y, 2, vocabulary=5).prepare(tokens) is tokens


@pytest.mark.parametrize("name", DATASETS)
def test_configuration_matches_the_constructor(name: str) -> None:
    kind = DATASETS[name]
    parameters = inspect.signature(kind).parameters
    assert kind.name == name and all(entry.kind is entry.KEYWORD_ONLY for entry in parameters.values())
    if "normalize" in parameters:
        for choice in get_args(parameters["normalize"].annotation):
            kind(**{"normalize": choice})


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_mnist(tmp_path / "MNIST" / "raw")
    (tmp_path / "features").mkdir()
    (tmp_path / "features" / "mine.npz").write_bytes(b"")
    assert data_list(tmp_path) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in DATASETS) and "mine.npz" in shown
    assert data_verify(["digits"], tmp_path) == 0
    assert data_verify(["mnist"], tmp_path) == 1 and "damaged" in capsys.readouterr().out
    assert data_fetch(["cifar10"], tmp_path) == 1 and "no network" in capsys.readouterr().err
    one_line(lambda: data_verify(["minst"], tmp_path), "minst", "mnist", "purchase100")


def test_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDPRIV_DATA", str(tmp_path))
    assert default_data_dir() == tmp_path
    monkeypatch.delenv("FEDPRIV_DATA")
    assert default_data_dir() == tmp_path / "cache"


@pytest.mark.parametrize("name", ["mnist", "fmnist", "covtype", "imdb"])
def test_real_files(name: str) -> None:
    dataset = DATASETS[name]()
    if REAL is None or not dataset.on_disk(Path(REAL)):
        pytest.skip("FEDPRIV_DATA names no folder with these files")
    assert dataset.verify(Path(REAL)).startswith("ok")
    data = dataset.load(Path(REAL))
    assert (len(data.y_train), len(data.y_test)) == dataset.counts
    assert int(data.y_train.min()) == 0 and int(data.y_train.max()) == data.classes - 1
