"""Partitions: hand-computed small cases, and the properties every plug-in must have."""

import csv
from pathlib import Path

import numpy as np
import pytest

from fedpriv.errors import UserError
from fedpriv.partitions import Partition, Split, label_counts, picture
from fedpriv.partitions.classes import Classes, draw_classes
from fedpriv.partitions.dealing import cut, deal, followed, gather, proportional
from fedpriv.partitions.dirichlet import Dirichlet
from fedpriv.partitions.iid import IID, even
from fedpriv.partitions.shards import Shards
from fedpriv.partitions.subset import Subset, compose, largest

# Class sizes of MNIST's training and test set.
TRAIN = np.array([5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])
TEST = np.array([980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009])

PLUGINS = {
    "iid": IID(),
    "iid-1200": IID(samples_per_client=1200),
    "classes": Classes(),
    "classes-random": Classes(classes_per_client=3, share="random"),
    "dirichlet": Dirichlet(),
    "shards": Shards(),
    "shards-1200": Shards(samples_per_client=1200),
    "subset": Subset(),
}


def labels(sizes: np.ndarray, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))


Y_TRAIN, Y_TEST = labels(TRAIN), labels(TEST, 1)


def split(plugin: Partition, clients: int, seed: int = 7) -> Split:
    rng = np.random.default_rng(seed)
    return plugin.split(Y_TRAIN, Y_TEST, clients=clients, classes=10, rng=rng)


def refusal(call) -> str:
    with pytest.raises(UserError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- properties of all plug-ins


@pytest.mark.parametrize("clients", [1, 3, 20, 50])
@pytest.mark.parametrize("name", PLUGINS)
def test_disjoint_nobody_empty_int64(name: str, clients: int) -> None:
    parts = split(PLUGINS[name], clients)
    for side, y in ((parts.train, Y_TRAIN), (parts.test, Y_TEST)):
        assert len(side) == clients
        assert all(part.dtype == np.int64 for part in side)
        used = np.concatenate(side)
        assert len(used) == len(np.unique(used))
        assert used.min() >= 0 and used.max() < len(y)
    assert min(map(len, parts.train)) >= 1


@pytest.mark.parametrize("name", PLUGINS)
def test_same_generator_same_split_other_seed_other_split(name: str) -> None:
    first, again, other = (split(PLUGINS[name], 10, seed) for seed in (3, 3, 4))
    for a, b in zip(first.train + first.test, again.train + again.test, strict=True):
        np.testing.assert_array_equal(a, b)
    assert any(not np.array_equal(a, b) for a, b in zip(first.train, other.train, strict=True))


@pytest.mark.parametrize("name", [name for name in PLUGINS if not name.startswith("iid")])
def test_test_side_follows_training_side(name: str) -> None:
    parts = split(PLUGINS[name], 20)
    train, test = label_counts(parts.train, Y_TRAIN, 10), label_counts(parts.test, Y_TEST, 10)
    assert not test[train == 0].any()
    portions = train / TRAIN
    # One common factor, and never more than one sample away from the exact portion.
    factor = 1 / portions.sum(axis=0).max()
    assert np.abs(test - factor * portions * TEST).max() <= 1 + 1e-6


@pytest.mark.parametrize("name", ["iid", "classes", "classes-random", "dirichlet"])
def test_full_partitions_use_every_sample(name: str) -> None:
    parts = split(PLUGINS[name], 13)
    assert sum(map(len, parts.train)) == 60000
    assert sum(map(len, parts.test)) == 10000


@pytest.mark.parametrize("name", PLUGINS)
def test_too_many_clients_is_one_line(name: str) -> None:
    y = np.arange(30) % 10
    rng = np.random.default_rng(0)
    message = refusal(lambda: PLUGINS[name].split(y, y, clients=31, classes=10, rng=rng))
    assert "31 clients" in message and "30 training samples" in message


def test_no_client_and_wrong_labels_are_refused() -> None:
    y, rng = np.arange(30) % 10, np.random.default_rng(0)
    assert "at least 1" in refusal(lambda: IID().split(y, y, clients=0, classes=10, rng=rng))
    assert "declares 9 classes" in refusal(lambda: IID().split(y, y, clients=2, classes=9, rng=rng))


def test_empty_test_set_is_allowed() -> None:
    none = np.array([], dtype=np.int64)
    for plugin in PLUGINS.values():
        parts = plugin.split(Y_TRAIN, none, clients=4, classes=10, rng=np.random.default_rng(0))
        assert [len(part) for part in parts.test] == [0, 0, 0, 0]


# --- dealing


def test_cut_by_hand() -> None:
    # Running totals 0.5, 1, 1.5, 2 round (half up) to 1, 1, 2, 2.
    assert cut(2, np.full(4, 0.25)).tolist() == [1, 0, 1, 0]
    assert cut(10, np.array([0.5, 0.0, 0.25])).tolist() == [5, 0, 3]
    assert cut(7, np.full(3, 1 / 3)).sum() == 7


def test_odd_samples_of_different_classes_go_to_different_clients() -> None:
    counts = proportional(np.full(10, 10), np.full((100, 10), 0.01))
    assert counts.sum(axis=0).tolist() == [10] * 10
    assert counts.sum(axis=1).tolist() == [1] * 100


def test_followed_by_hand() -> None:
    # Class 0 is half used and class 1 a quarter: the common factor is 2.
    np.testing.assert_allclose(
        followed(np.array([[3, 0], [2, 5]]), np.array([10, 20])), [[0.6, 0.0], [0.4, 0.5]]
    )


def test_deal_and_gather() -> None:
    y = np.array([0, 1, 0, 1, 0])
    owner = deal(y, np.array([[1, 2], [1, 0]]), np.random.default_rng(0))
    parts = gather(owner, 2)
    assert label_counts(parts, y, 2).tolist() == [[1, 2], [1, 0]]
    assert (owner == -1).sum() == 1
    assert [part.tolist() for part in gather(np.array([1, -1, 0, 1]), 3)] == [[2], [0, 3], []]


# --- iid


def test_iid_sizes() -> None:
    assert even(10, 4).tolist() == [3, 3, 2, 2]
    parts = split(IID(samples_per_client=1200), 20)
    assert {len(part) for part in parts.train} == {1200}
    assert {len(part) for part in parts.test} == {500}
    # Each class is near its global share of the 1200.
    assert np.abs(label_counts(parts.train, Y_TRAIN, 10) - 1200 * TRAIN / 60000).max() < 50


def test_iid_refuses_more_than_there_is() -> None:
    message = refusal(lambda: split(IID(samples_per_client=1200), 51))
    assert "partition.samples_per_client is 1200" in message and "at most 1176" in message
    assert "at most 50 clients" in message
    assert "partition.samples_per_client is 0" in refusal(lambda: IID(samples_per_client=0))


# --- classes per client


@pytest.mark.parametrize(("clients", "each"), [(10, 2), (3400, 2), (7, 3), (3, 2), (1, 10), (100, 10)])
def test_class_slots(clients: int, each: int) -> None:
    holds = draw_classes(clients, 10, each, np.random.default_rng(0))
    assert (holds.sum(axis=1) == each).all()
    assert np.ptp(holds.sum(axis=0)) <= 1


def test_equal_shares_by_hand() -> None:
    # 4 clients, 4 classes of 8 samples, 2 classes each: every class has 2 holders with 4 samples.
    y = np.repeat(np.arange(4), 8)
    parts = Classes().split(y, y[::2], clients=4, classes=4, rng=np.random.default_rng(0))
    train = label_counts(parts.train, y, 4)
    assert sorted(map(sorted, train.tolist())) == [[0, 0, 4, 4]] * 4
    assert (label_counts(parts.test, y[::2], 4) * 2 == train).all()


def test_random_shares_stay_between_the_weights() -> None:
    parts = split(Classes(share="random"), 10)
    counts = label_counts(parts.train, Y_TRAIN, 10)
    portions = (counts / TRAIN)[counts > 0]
    # Two holders with weights in (0.4, 0.6): portions between 0.4/1.0 and 0.6/1.0.
    assert len(portions) == 20 and portions.min() > 0.399 and portions.max() < 0.601
    assert np.ptp(portions) > 0.02


def test_thousands_of_clients() -> None:
    parts = split(Classes(), 3400)
    assert sum(map(len, parts.train)) == 60000
    sizes = [len(part) for part in parts.train]
    assert min(sizes) >= 14 and max(sizes) <= 20
    assert min(map(len, parts.test)) >= 2


def test_fewer_slots_than_classes_leave_classes_unused() -> None:
    parts = split(Classes(), 3)
    held = label_counts(parts.train, Y_TRAIN, 10)
    assert (held > 0).sum() == 6
    assert set(held.sum(axis=0)) <= {0, *TRAIN.tolist()}


def test_more_classes_than_there_are() -> None:
    message = refusal(lambda: split(Classes(classes_per_client=12), 5))
    assert "partition.classes_per_client is 12" in message and "at most 10" in message
    assert "at least 1" in refusal(lambda: Classes(classes_per_client=0))


def test_clients_without_samples_are_refused() -> None:
    y = np.array([0] * 29 + [1])
    message = refusal(
        lambda: Classes(classes_per_client=1).split(y, y, clients=10, classes=2, rng=np.random.default_rng(0))
    )
    assert "4 of 10 clients" in message and "fewer clients" in message


# --- dirichlet


def test_dirichlet_skew_grows_as_alpha_shrinks() -> None:
    def top_class(alpha: float) -> float:
        counts = label_counts(split(Dirichlet(alpha=alpha), 10).train, Y_TRAIN, 10)
        return float(np.mean(counts.max(axis=1) / counts.sum(axis=1)))

    assert top_class(0.1) > 0.4 > 0.2 > top_class(1000.0)


def test_dirichlet_minimum_is_kept() -> None:
    assert min(len(part) for part in split(Dirichlet(alpha=0.5, min_samples=3000), 10).train) >= 3000
    assert min(len(part) for part in split(Dirichlet(), 100).train) >= 10


def test_dirichlet_refusals() -> None:
    for alpha in (0.0, -1.0, float("nan"), float("inf")):
        assert "partition.alpha" in refusal(lambda alpha=alpha: Dirichlet(alpha=alpha))
    assert "partition.min_samples" in refusal(lambda: Dirichlet(min_samples=0))
    assert "at most 6000" in refusal(lambda: split(Dirichlet(min_samples=6001), 10))
    assert "raise partition.alpha" in refusal(lambda: split(Dirichlet(alpha=0.01, min_samples=5000), 10))


# --- shards


def test_shards_by_hand() -> None:
    # 2 clients with 2 shards of 3; 4 classes of 3 samples: each shard is one class, each client has two.
    y = np.array([0, 1, 2, 3] * 3)
    parts = Shards(shards_per_client=2).split(y, y, clients=2, classes=4, rng=np.random.default_rng(0))
    train = label_counts(parts.train, y, 4)
    assert sorted(train[0].tolist()) == [0, 0, 3, 3] and train.sum(axis=0).tolist() == [3] * 4
    assert (label_counts(parts.test, y, 4) == train).all()


def test_shards_of_pfa() -> None:
    parts = split(Shards(samples_per_client=1200), 20)
    assert {len(part) for part in parts.train} == {1200}
    counts = label_counts(parts.train, Y_TRAIN, 10)
    # 200 shards of 120 over 10 classes: at most one cut per class border gives a partial count.
    assert (counts % 120 != 0).sum() <= 18
    test = label_counts(parts.test, Y_TEST, 10)
    # The random subset takes about 40% of each class; the test side is scaled up until a class is used up.
    assert test.sum() > 9000
    assert np.abs(test / test.sum(axis=1, keepdims=True) - counts / 1200).max() < 0.02


def test_shards_refusals() -> None:
    assert "multiple" in refusal(lambda: Shards(samples_per_client=1205))
    assert "at least 1" in refusal(lambda: Shards(shards_per_client=0))
    assert "at most 50 clients" in refusal(lambda: split(Shards(samples_per_client=1200), 51))
    assert "at most 20" in refusal(lambda: split(Shards(shards_per_client=21), 3000))


# --- subset


def test_subset_by_hand() -> None:
    # 10 samples, 70% dominant: 7, and 3 left for the 2 other classes; the odd one moves on after each cycle.
    assert compose(10, 4, 3, 0.7).tolist() == [[7, 2, 1], [1, 7, 2], [2, 1, 7], [7, 1, 2]]
    # Class 0 is dominant twice, so 10 samples limit the size to 10 / (0.7 * 2 + 0.15 * 2) = 5.88 -> 5.
    counts = largest(np.array([10, 100, 100]), 4, 0.7)
    assert counts.sum(axis=1).tolist() == [5] * 4 and counts.sum(axis=0)[0] <= 10


@pytest.mark.parametrize("clients", [3, 10, 100, 3400])
def test_subset_has_label_skew_but_no_quantity_skew(clients: int) -> None:
    parts = split(Subset(share=0.8), clients)
    counts = label_counts(parts.train, Y_TRAIN, 10)
    sizes = counts.sum(axis=1)
    assert np.ptp(sizes) == 0
    assert (counts.argmax(axis=1) == np.arange(clients) % 10).all()
    assert np.abs(counts.max(axis=1) / sizes - 0.8).max() <= 0.5 / sizes[0] + 1e-9
    if clients <= 100:
        assert (counts > 0).all()
    if clients == 10:
        assert counts.sum() > 0.88 * 60000


def test_subset_refusals() -> None:
    assert "partition.share" in refusal(lambda: Subset(share=0.0))
    assert "partition.share" in refusal(lambda: Subset(share=1.1))
    assert "above 1/classes" in refusal(lambda: split(Subset(share=0.1), 10))
    y = np.repeat(np.arange(3), [1, 50, 50])
    message = refusal(lambda: Subset().split(y, y, clients=9, classes=3, rng=np.random.default_rng(0)))
    assert "fewer clients" in message


# --- picture and configuration


def test_picture(tmp_path: Path) -> None:
    parts = split(Classes(), 5)
    picture.save(parts, Y_TRAIN, Y_TEST, 10, tmp_path / "new")
    with (tmp_path / "new" / "partition.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["client", "side", "samples", *(f"class_{c}" for c in range(10))]
    assert [(row["client"], row["side"]) for row in rows[4:6]] == [("4", "train"), ("0", "test")]
    assert sum(int(row["samples"]) for row in rows) == 70000
    assert int(rows[2]["samples"]) == sum(int(rows[2][f"class_{c}"]) for c in range(10))
    assert (tmp_path / "new" / "partition.png").read_bytes().startswith(b"\x89PNG")


def test_picture_says_when_it_is_cut() -> None:
    assert "first 200 of 250" in picture.draw(np.ones((250, 10), dtype=np.int64)).get_suptitle()
