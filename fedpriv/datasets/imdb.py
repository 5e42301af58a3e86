"""IMDb film reviews, 25,000 + 25,000, positive or negative (Maas et al., 2011), as sequences of word ids."""

import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np

from fedpriv.config.limits import Count, Within
from fedpriv.datasets.base import Data, Dataset, Part, reading
from fedpriv.datasets.cache import Arrays, cached
from fedpriv.datasets.download import digest
from fedpriv.errors import UserError

ARCHIVE = "aclImdb_v1.tar.gz"
WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")
LABELS = {"neg": 0, "pos": 1}
WORDS = ("imdb's vocabulary: the most frequent words of everybody's training reviews, counted as they are",)
FORMAT = 1  # raise it when the tokens change, so that older prepared files are not used


class IMDB(Dataset):
    """The official archive, or the folder `aclImdb` it unpacks to.

    Id 0 is padding, 1 any word outside the vocabulary; the `vocabulary` most frequent words of the training
    reviews follow from 2 in order of frequency. The vocabulary is made from everybody's reviews, which no DP
    variant protects: the guarantee says so. A review is its first `length` words, padded on the left so that
    the last step is always a word.
    """

    name = "imdb"
    about = "film reviews as word ids, 2 classes"
    counts = (25_000, 25_000)

    def __init__(
        self,
        *,
        vocabulary: Count = 5000,
        length: Annotated[int, Within(least=1, most=10_000)] = 100,
        download: bool = True,
    ) -> None:
        super().__init__(download=download)
        if vocabulary < 1 or length < 1:
            raise UserError(
                f"dataset imdb: vocabulary={vocabulary} and length={length} must both be at least 1"
            )
        self.vocabulary = vocabulary
        self.length = length

    @property
    def parts(self) -> list[Part]:
        url = f"https://ai.stanford.edu/~amaas/data/sentiment/{ARCHIVE}"
        return [Part(ARCHIVE, (url,), "7c2ac02c03563afcf9b574c7e56c153a")]

    def on_disk(self, data_dir: Path) -> list[tuple[Path, str | None]]:
        unpacked = Path(data_dir) / "aclImdb"
        return super().on_disk(data_dir) or ([(unpacked, None)] if unpacked.is_dir() else [])

    def verify(self, data_dir: Path) -> str:
        """A repacked archive has another checksum but is as good if every labelled review is in it."""
        found = self.on_disk(data_dir)
        if not found or found[0][1] is None or digest(found[0][0]) == found[0][1]:
            return super().verify(data_dir)
        verdict = self.verify_counts(data_dir)  # of the archive itself, not of what was prepared from it
        if not verdict.startswith("ok"):
            return verdict
        return f"ok (the numbers of reviews are right, but the md5 of {ARCHIVE} is not the official one)"

    def verify_counts(self, data_dir: Path) -> str:
        source = self.on_disk(data_dir)[0][0]
        try:
            with reading(self.name, source):
                found = Counter((split, label) for split, label, _, _ in _reviews(source))
        except UserError as error:
            return f"damaged: {error}"
        for split, count in zip(("train", "test"), self.counts, strict=True):
            for label in LABELS:
                if (actual := found[split, label]) != count // 2:
                    return f"damaged: {actual} reviews in {split}/{label}, but {count // 2} expected"
        return "ok (by number of reviews)"

    def read(self, data_dir: Path) -> Data:
        source = self.on_disk(data_dir)[0][0]
        options = {"vocabulary": self.vocabulary, "length": self.length, "format": FORMAT}
        with reading(self.name, source):
            if source.is_dir():  # its time says nothing about the files inside
                arrays = self._encode(_reviews(source))
            else:
                arrays = cached(self.name, source, options, lambda: self._encode(_reviews(source)))
        import torch

        x_train, y_train, x_test, y_test = (
            torch.from_numpy(arrays[f"{kind}_{split}"].astype(np.int64))
            for split in ("train", "test")
            for kind in "xy"
        )
        size = self.vocabulary + 2
        return Data(
            self.name, x_train, y_train, x_test, y_test, classes=2, vocabulary=size, not_covered=WORDS
        )

    def _encode(self, reviews: Iterator[tuple[str, str, str, str]]) -> Arrays:
        """One pass: number words as they come, then renumber them by their frequency in training reviews."""
        numbers: dict[str, int] = {}
        counts = np.zeros(1 << 20, dtype=np.int64)
        starts: dict[tuple[str, str, str], np.ndarray] = {}
        for split, label, file, text in reviews:
            words = WORD.findall(text.lower().replace("<br />", " "))
            ids = np.array([numbers.setdefault(word, len(numbers)) for word in words], dtype=np.int64)
            if len(numbers) > len(counts):
                counts = np.concatenate([counts, np.zeros_like(counts)])
            if split == "train":
                np.add.at(counts, ids, 1)
            starts[split, label, file] = ids[: self.length]
        found = {(split, label) for split, label, _ in starts}
        if len(found) != 4:
            raise ValueError("reviews belong into train/pos, train/neg, test/pos and test/neg")
        seen = [word for word in numbers if counts[numbers[word]] > 0]
        kept = sorted(seen, key=lambda word: (-counts[numbers[word]], word))[: self.vocabulary]
        final = np.ones(len(numbers), dtype=np.int32)
        final[[numbers[word] for word in kept]] = np.arange(2, 2 + len(kept))
        arrays: Arrays = {}
        for split in ("train", "test"):
            keys = sorted(key for key in starts if key[0] == split)
            order = np.random.default_rng(0).permutation(len(keys))  # not one class, then the other
            keys = [keys[i] for i in order]
            x = np.zeros((len(keys), self.length), dtype=np.int32)  # [N, T]
            for row, key in zip(x, keys, strict=True):
                ids = starts[key]
                row[self.length - len(ids) :] = final[ids]
            arrays[f"x_{split}"] = x
            arrays[f"y_{split}"] = np.array([LABELS[label] for _, label, _ in keys], dtype=np.int8)
        return arrays


def _reviews(source: Path) -> Iterator[tuple[str, str, str, str]]:
    """Split, label, file name and text of every labelled review."""
    return _unpacked(source) if source.is_dir() else _archived(source)


def _archived(source: Path) -> Iterator[tuple[str, str, str, str]]:
    with tarfile.open(source, "r|gz") as archive:  # in sequence: seeking in a gzip file starts over
        for member in archive:
            place = member.name.split("/")[-3:]
            if member.isfile() and _is_review(place):
                content = archive.extractfile(member)
                assert content is not None  # a regular file
                yield place[0], place[1], place[2], content.read().decode()


def _unpacked(source: Path) -> Iterator[tuple[str, str, str, str]]:
    for path in source.glob("*/*/*.txt"):
        place = list(path.parts[-3:])
        if _is_review(place):
            yield place[0], place[1], place[2], path.read_text(encoding="utf-8")


def _is_review(place: list[str]) -> bool:
    folders = {("train", "neg"), ("train", "pos"), ("test", "neg"), ("test", "pos")}
    return len(place) == 3 and tuple(place[:2]) in folders and place[2].endswith(".txt")
