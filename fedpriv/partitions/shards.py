"""Label-sorted shards (McMahan et al. 2017), the non-IID setting of PFA (section 5.3).

The training data is sorted by label and cut into clients * shards_per_client shards of equal size, which are
dealt at random. PFA fixes 1200 samples a client in 10 shards of 120: when that needs less than everything, a
random subset is sorted and cut. Test samples are not cut into shards: each client gets of every class the
portion it holds in training, scaled up by one factor common to all clients until a class is used up.
"""

import numpy as np

from fedpriv.config.limits import Count
from fedpriv.errors import UserError
from fedpriv.partitions.base import Partition


class Shards(Partition):
    def __init__(self, *, shards_per_client: Count = 10, samples_per_client: Count | None = None) -> None:
        if shards_per_client < 1:
            raise UserError(f"partition.shards_per_client is {shards_per_client}: set it to at least 1")
        each = samples_per_client
        if each is not None and (each < 1 or each % shards_per_client):
            raise UserError(
                f"partition.samples_per_client is {each}: set it to null or a positive multiple "
                f"of partition.shards_per_client ({shards_per_client})"
            )
        self.shards_per_client = shards_per_client
        self.samples_per_client = samples_per_client

    def owners(self, y: np.ndarray, *, clients: int, classes: int, rng: np.random.Generator) -> np.ndarray:
        shards = clients * self.shards_per_client
        size = self._shard_size(len(y), clients)
        subset = rng.permutation(len(y))[: shards * size]
        by_label = subset[np.argsort(y[subset], kind="stable")]
        dealt = rng.permutation(np.repeat(np.arange(clients), self.shards_per_client))
        owner = np.full(len(y), -1, dtype=np.int64)
        owner[by_label] = np.repeat(dealt, size)
        return owner

    def _shard_size(self, samples: int, clients: int) -> int:
        if self.samples_per_client is None:
            size = samples // (clients * self.shards_per_client)
            if size == 0:
                raise UserError(
                    f"partition.shards_per_client is {self.shards_per_client} but {clients} clients share "
                    f"{samples} training samples: set it to at most {samples // clients} or use fewer clients"
                )
            return size
        if self.samples_per_client * clients > samples:
            raise UserError(
                f"partition.samples_per_client is {self.samples_per_client} but {clients} clients share "
                f"{samples} training samples: lower it, set it to null or use at most "
                f"{samples // self.samples_per_client} clients"
            )
        return self.samples_per_client // self.shards_per_client
