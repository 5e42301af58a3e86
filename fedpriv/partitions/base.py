"""The contract of every partition, with PrivateFL's rule that the test set follows the training assignment.

A plug-in only says who owns each training sample (`owners`). The base class checks the request, gathers the
indices and deals the test set so that client k gets of class c the same portion as it got in training.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np

from fedpriv.datasets.data import Data
from fedpriv.errors import UserError
from fedpriv.partitions.dealing import deal, followed, gather, proportional


@dataclass(frozen=True)
class Split:
    """Per client, the int64 indices (ascending) into the training set and into the test set."""

    train: list[np.ndarray]
    test: list[np.ndarray]
    validation: list[np.ndarray] = field(default_factory=list)  # into the training set; or no list at all


def label_counts(parts: list[np.ndarray], y: np.ndarray, classes: int) -> np.ndarray:
    """How many samples of each class each client holds, shape [clients, classes]."""
    return np.stack([np.bincount(y[part], minlength=classes) for part in parts])


class Partition(ABC):
    """Base of the plug-ins; a client may end up without test samples, never without training samples."""

    def split(
        self, y_train: np.ndarray, y_test: np.ndarray, *, clients: int, classes: int, rng: np.random.Generator
    ) -> Split:
        y_train, y_test = np.asarray(y_train), np.asarray(y_test)
        _check_request(y_train, y_test, clients, classes)
        train = gather(self.owners(y_train, clients=clients, classes=classes, rng=rng), clients)
        _check_nobody_empty(train)
        held = label_counts(train, y_train, classes)
        test = gather(self.test_owners(held, y_train, y_test, rng=rng), clients)
        return Split(train, test)

    def know(self, data: Data) -> None:  # noqa: B027 (most need nothing)
        """What a partition needs of the data besides their labels."""

    @abstractmethod
    def owners(self, y: np.ndarray, *, clients: int, classes: int, rng: np.random.Generator) -> np.ndarray:
        """The client that owns each training sample, -1 for a sample nobody gets."""

    def test_owners(
        self, held: np.ndarray, y_train: np.ndarray, y_test: np.ndarray, *, rng: np.random.Generator
    ) -> np.ndarray:
        """The same for the test samples; `held` are the training label counts [clients, classes]."""
        classes = held.shape[1]
        portions = followed(held, np.bincount(y_train, minlength=classes))
        return deal(y_test, proportional(np.bincount(y_test, minlength=classes), portions), rng)


def _check_request(y_train: np.ndarray, y_test: np.ndarray, clients: int, classes: int) -> None:
    if clients < 1:
        raise UserError(f"the number of clients is {clients}: set it to at least 1")
    if clients > len(y_train):
        raise UserError(
            f"{clients} clients cannot share {len(y_train)} training samples: "
            f"use at most {len(y_train)} clients or more data"
        )
    for side, y in (("training", y_train), ("test", y_test)):
        if len(y) and not 0 <= y.min() <= y.max() < classes:
            raise UserError(
                f"{side} labels run from {y.min()} to {y.max()} but the data declares {classes} classes: "
                f"number the labels 0 to {classes - 1}"
            )


def _check_nobody_empty(train: list[np.ndarray]) -> None:
    empty = [client for client, part in enumerate(train) if len(part) == 0]
    if empty:
        raise UserError(
            f"the partition leaves {len(empty)} of {len(train)} clients (first: client {empty[0]}) without "
            "training samples: use fewer clients, more data or a less skewed partition"
        )
