"""Arithmetic shared by the partitions (PrivateFL's rule: test data follows the training assignment).

Shares become whole samples by cumulative rounding: client k gets the samples between the rounded running
totals before and after it. All samples of a fully shared class are used, none twice, and whoever is due at
least one sample gets at least one.
"""

import numpy as np


def cut(samples: int, portions: np.ndarray, offset: float = 0.5) -> np.ndarray:
    """Whole samples per client for portions that sum to at most 1; `offset` in [0, 1) places the rounding."""
    # The tiny term keeps totals such as 2.9999999999 from losing a sample to floating point.
    edges = np.floor(np.cumsum(portions) * samples + offset + 1e-9).astype(np.int64)
    return np.diff(np.minimum(edges, samples), prepend=0)


def proportional(available: np.ndarray, portions: np.ndarray) -> np.ndarray:
    """Counts [clients, classes] for portions of each class [clients, classes]."""
    classes = len(available)
    # A different offset per class: otherwise the odd samples of every class would go to the same clients.
    columns = [cut(int(available[c]), portions[:, c], (c + 0.5) / classes) for c in range(classes)]
    return np.stack(columns, axis=1)


def followed(held: np.ndarray, available: np.ndarray) -> np.ndarray:
    """Portions of each class that repeat the training counts `held` out of `available` on another data set.

    If training left part of every class unused, all portions grow by one common factor until some class is
    used up: label proportions stay as they are, sets stay disjoint, and no more is wasted than necessary.
    """
    portions: np.ndarray = held / np.maximum(available, 1)
    portions /= portions.sum(axis=0).max()
    return portions


def deal(y: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Owner of each sample when client k draws counts[k, c] random samples of class c (-1: nobody)."""
    owner = np.full(len(y), -1, dtype=np.int64)
    clients = np.arange(len(counts))
    for c in range(counts.shape[1]):
        members = rng.permutation(np.flatnonzero(y == c))
        owner[members[: counts[:, c].sum()]] = np.repeat(clients, counts[:, c])
    return owner


def gather(owner: np.ndarray, clients: int) -> list[np.ndarray]:
    """Indices per client; samples owned by -1 are left out."""
    order = np.argsort(owner, kind="stable").astype(np.int64)
    edges = np.searchsorted(owner[order], np.arange(clients + 1))
    return [order[edges[k] : edges[k + 1]] for k in range(clients)]
