"""dataset=files: what each kind of file becomes, whose a sample is, and one line for everything wrong."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedpriv.datasets.features import Features
from fedpriv.datasets.files import Files
from fedpriv.errors import UserError
from tests.conftest import SMALL

RANDOM = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def arrays(n=12, shape=(5, 4), dtype=np.uint8, classes=3):
    x = RANDOM.integers(0, 200, (n, *shape)).astype(dtype)
    return {
        "x_train": x,
        "y_train": np.arange(n) % classes,
        "x_test": x[:6],
        "y_test": np.arange(6) % classes,
    }


def refused(options, *words, data_dir="nowhere"):
    with pytest.raises(UserError) as problem:
        Files(**options).load(Path(data_dir))
    text = str(problem.value)
    assert "\n" not in text and all(word in text for word in words), text


@pytest.mark.parametrize(
    ("shape", "dtype", "stored", "sample"),
    [
        ((5, 4), np.uint8, torch.uint8, (1, 5, 4)),
        ((3, 5, 4), np.uint8, torch.uint8, (3, 5, 4)),
        ((5, 4), np.float64, torch.float32, (1, 5, 4)),
        ((7,), np.int64, torch.float32, (7,)),
    ],
)
def test_arrays_become_images_or_vectors(shape, dtype, stored, sample):
    given = arrays(shape=shape, dtype=dtype)
    np.savez("mine.npz", **given)
    data = Files(path="mine.npz").load(Path("nowhere"))  # in the current folder
    assert data.x_train.dtype is stored and data.shape == sample and data.classes == 3
    assert data.x_train.flatten().tolist() == given["x_train"].flatten().tolist()
    assert data.y_test.tolist() == given["y_test"].tolist()
    half = data.prepare(data.x_train[:1])
    expected = given["x_train"][:1] / 127.5 - 1 if stored is torch.uint8 else given["x_train"][:1]
    assert np.allclose(half.numpy().reshape(-1), expected.reshape(-1), atol=1e-6)


def test_x_and_y_alone_are_divided_class_by_class_and_always_alike():
    x = np.arange(40, dtype=np.float32)[:, None]
    np.savez("mine.npz", x=x, y=np.repeat([0, 1], [30, 10]))
    data = Files(path="mine.npz", test_share=0.2).load(Path())
    assert data.y_test.tolist().count(0) == 6 and data.y_test.tolist().count(1) == 2
    assert sorted(torch.cat([data.x_train, data.x_test]).flatten().tolist()) == list(range(40))
    assert Files(path="mine.npz", test_share=0.2).load(Path()).fingerprint == data.fingerprint


def test_a_table_with_clients_of_its_own_trains_with_the_natural_partition(fedpriv, one_run):
    rows = ["a,who,b,species"]
    for n in range(90):
        rows.append(f"{n % 3 + RANDOM.normal(0, 0.1):.3f},site-{n % 5},{n % 3},{n % 3}")
    Path("mine.csv").write_text("\n".join(rows))
    told = ("dataset=files", "dataset.path=mine.csv", "dataset.label=species", "dataset.client=who")
    data = Files(path="mine.csv", label="species", client="who").load(Path())
    assert data.shape == (2,) and data.classes == 3
    assert (
        torch.bincount(data.owners[0]).tolist() == [14] * 5
        and torch.bincount(data.owners[1]).tolist() == [4] * 5
    )
    run = ("run", *SMALL[2:], *told, "partition=natural", "model=logreg", "dp=none", "lr=1")
    wrong = fedpriv(*run, "clients=4")
    assert wrong.code == 2 and "the data have 5 clients; set clients=5" in wrong.err
    done = fedpriv(*run, "clients=5")
    assert done.code == 0, done.err
    lines = (one_run() / "partition.csv").read_text().splitlines()
    assert [line.split(",")[2] for line in lines[1:]] == ["14"] * 5 + ["4"] * 5
    assert fedpriv("evaluate", str(one_run())).code == 0
    other = fedpriv("evaluate", str(one_run()), "dataset.path=none.csv")
    assert other.code == 2 and "none.csv" in other.err


def test_a_second_table_is_the_test_set():
    Path("a.csv").write_text("x,label\n1,0\n2,1\n3,1\n")
    Path("b.csv").write_text("x,label\n9,1\n")
    data = Files(path="a.csv", test="b.csv").load(Path())
    assert data.x_train.flatten().tolist() == [1, 2, 3] and data.x_test.flatten().tolist() == [9]


def test_whose_an_image_is_stands_in_the_file():
    given = arrays()
    np.savez("mine.npz", **given, client_train=np.repeat([10, 9], 6), client_test=np.repeat([9, 7], 3))
    data = Files(path="mine.npz").load(Path())
    assert data.owners[0].tolist() == [1] * 6 + [0] * 6  # 9 before 10, as numbers
    assert data.owners[1].tolist() == [0] * 3 + [-1] * 3  # 7 has no training sample
    before = data.fingerprint
    np.savez("mine.npz", **given, client_train=np.repeat([9, 10], 6), client_test=np.repeat([9, 7], 3))
    assert Files(path="mine.npz").load(Path()).fingerprint != before


def folder_of_images(root, sizes=((6, 5),), mode="L", names=("cat", "dog")):
    for part in ("train", "test"):
        for label, name in enumerate(names):
            (root / part / name).mkdir(parents=True, exist_ok=True)
            for n, size in enumerate(sizes * 3):
                Image.new(mode, size, 100 * label + n).save(root / part / name / f"{n}.png")


def test_a_folder_of_images():
    folder_of_images(Path("pets"))
    data = Files(path="pets").load(Path())
    assert data.shape == (1, 5, 6) and data.y_train.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.x_train[:, 0, 0, 0].tolist() == [0, 1, 2, 100, 101, 102]
    assert len(Files(path="pets").on_disk(Path())) == 12
    folder_of_images(Path("colour"), mode="RGB")
    assert Files(path="colour", size=8).load(Path()).shape == (3, 8, 8)
    assert Files(path="pets/train").load(Path()).y_test.tolist() == [0, 1]  # a tree without two halves


def test_images_of_several_sizes_and_classes_that_do_not_fit():
    folder_of_images(Path("pets"), sizes=((6, 5), (7, 5)))
    refused({"path": "pets"}, "1.png is 7x5", "dataset.size")
    folder_of_images(Path("more"))
    (Path("more") / "test" / "bird").mkdir()
    refused({"path": "more"}, "class bird")
    (Path("lone") / "cat").mkdir(parents=True)
    refused({"path": "lone"}, "two classes")
    (Path("more") / "test" / "bird").rmdir()
    (Path("more") / "train" / "cat" / "bad.png").write_bytes(b"no image")
    refused({"path": "more"}, "cannot read", "bad.png")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"y_train": np.arange(12) / 2}, ["y_train", "no whole numbers", "0.5 of sample 1"]),
        ({"y_train": np.array([np.nan] + [0.0] * 11)}, ["y_train", "nan of sample 0"]),
        ({"y_test": np.array(list("abcabc"))}, ["y_test holds texts such as 'a'"]),
        ({"y_test": np.arange(6) - 1}, ["y_test has the label -1"]),
        ({"y_test": np.arange(5)}, ["y_test", "6 samples"]),
        ({"x_train": np.full((12, 5, 4), np.nan)}, ["x_train sample 0", "no finite number"]),
        ({"x_train": np.zeros((12, 5, 4), dtype="U2")}, ["x_train holds <U2"]),
        ({"x_train": np.zeros((12, 28, 28, 3), dtype=np.uint8)}, ["channels must come first"]),
        ({"x_train": np.zeros((12, 6, 4))}, ["one shape", "[6, 4]", "[5, 4]"]),
        ({"x_train": np.zeros(12)}, ["[N, H, W]", "[12]"]),
        ({"x_train": np.zeros((12, 0))}, ["empty"]),
        ({"client_train": np.zeros(3)}, ["client_train has the shape [3]"]),
        ({"client_test": np.zeros(6)}, ["no client_train"]),
    ],
)
def test_arrays_that_are_wrong(change, words):
    np.savez("mine.npz", **(arrays() | change))
    refused({"path": "mine.npz"}, "mine.npz", *words)


def test_files_that_are_wrong():
    refused({}, "no path given", "dataset.path")
    refused({"path": "mine.npz"}, "no mine.npz in", "nowhere")
    np.savez("part.npz", x_train=np.zeros((3, 2)))
    refused({"path": "part.npz"}, "has no y_train, x_test, y_test")
    np.savez("pickle.npz", **(arrays() | {"y_train": np.array([None] * 12)}))
    refused({"path": "pickle.npz"}, "cannot read", "pickle.npz")
    Path("torn.npz").write_bytes(b"PK\x03\x04 torn")
    refused({"path": "torn.npz"}, "cannot read", "torn.npz")
    Path("mine.txt").write_text("1")
    refused({"path": "mine.txt"}, "no .npz or .csv file")
    Path("a.csv").write_text("x,colour,label\n1,red,0\n2,blue,1\n")
    refused({"path": "a.csv"}, "column colour holds texts such as 'red'")
    refused({"path": "a.csv", "label": "kind"}, "no column kind", "x, colour, label")
    refused({"path": "a.csv", "label": "colour"}, "y holds texts such as 'red'")
    Path("b.csv").write_text("x,label\n1,0\n,1\n3,1\n4,0\n5,1\n6,0\n")
    refused({"path": "b.csv"}, "no finite number")
    Path("c.csv").write_text("x,who,label\n1,a,0\n2,,1\n3,a,1\n4,a,1\n")
    refused({"path": "c.csv", "client": "who", "test": "c.csv"}, "client_train is empty for sample 1")


def test_features_are_found_in_the_current_folder(tmp_path):
    np.savez("mine.npz", **arrays(shape=(7,), dtype=np.float32))
    assert Features(path="mine.npz").load(tmp_path / "elsewhere").shape == (7,)


def test_natural_needs_data_that_name_clients(fedpriv):
    done = fedpriv("run", *SMALL, "partition=natural")
    assert done.code == 2 and "dataset digits does not say whose a sample is" in done.err
    assert done.err.count("\n") == 1
