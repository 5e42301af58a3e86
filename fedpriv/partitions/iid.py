"""IID partition (PFA, LDP-FL, PLDP-FL): disjoint random samples, the same number for every client.

PFA gives each client 1200 samples whatever the number of clients (`samples_per_client: 1200`); without a
number the whole training set is dealt and sizes differ by at most one. The whole test set is dealt evenly.
"""

import numpy as np

from fedpriv.config.limits import Count
from fedpriv.errors import UserError
from fedpriv.partitions.base import Partition


def even(samples: int, clients: int) -> np.ndarray:
    """Sizes that add up to `samples` and differ by at most one."""
    return samples // clients + (np.arange(clients) < samples % clients).astype(np.int64)


def random_owners(samples: int, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Client k owns sizes[k] samples picked at random; the others belong to nobody (-1)."""
    owner = np.full(samples, -1, dtype=np.int64)
    owner[rng.permutation(samples)[: sizes.sum()]] = np.repeat(np.arange(len(sizes)), sizes)
    return owner


class IID(Partition):
    def __init__(self, *, samples_per_client: Count | None = None) -> None:
        if samples_per_client is not None and samples_per_client < 1:
            raise UserError(
                f"partition.samples_per_client is {samples_per_client}: set it to at least 1 or null"
            )
        self.samples_per_client = samples_per_client

    def owners(self, y: np.ndarray, *, clients: int, classes: int, rng: np.random.Generator) -> np.ndarray:
        each = self.samples_per_client
        if each is None:
            return random_owners(len(y), even(len(y), clients), rng)
        if each * clients > len(y):
            raise UserError(
                f"partition.samples_per_client is {each} but {clients} clients share {len(y)} training "
                f"samples: set it to at most {len(y) // clients} or use at most {len(y) // each} clients"
            )
        return random_owners(len(y), np.full(clients, each, dtype=np.int64), rng)

    def test_owners(
        self, held: np.ndarray, y_train: np.ndarray, y_test: np.ndarray, *, rng: np.random.Generator
    ) -> np.ndarray:
        return random_owners(len(y_test), even(len(y_test), len(held)), rng)
