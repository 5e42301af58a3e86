"""A few classes per client (PrivateFL, section 5; also FedPD's "#C = k").

Every class has clients * N / classes slots. One client after another takes N distinct classes among those
with most slots left. The holders of a class then divide all its samples: equally, as the published
PrivateFL code does, or in proportion to weights drawn from Uniform(0.4, 0.6), as the paper writes.
"""

from typing import Literal

import numpy as np

from fedpriv.config.limits import Count
from fedpriv.errors import UserError
from fedpriv.partitions.base import Partition
from fedpriv.partitions.dealing import deal, proportional


def draw_classes(clients: int, classes: int, each: int, rng: np.random.Generator) -> np.ndarray:
    """Which classes each client holds, boolean [clients, classes], `each` per row and columns within one."""
    slots = np.full(classes, clients * each // classes)
    slots[rng.permutation(classes)[: clients * each % classes]] += 1
    holds = np.zeros((clients, classes), dtype=bool)
    for row in holds:
        # Most slots first, ties in random order; serving the fullest classes keeps every draw feasible.
        taken = np.lexsort((rng.random(classes), -slots))[:each]
        row[taken] = True
        slots[taken] -= 1
    return holds


class Classes(Partition):
    def __init__(self, *, classes_per_client: Count = 2, share: Literal["equal", "random"] = "equal") -> None:
        if classes_per_client < 1:
            raise UserError(f"partition.classes_per_client is {classes_per_client}: set it to at least 1")
        self.classes_per_client = classes_per_client
        self.share = share

    def owners(self, y: np.ndarray, *, clients: int, classes: int, rng: np.random.Generator) -> np.ndarray:
        if self.classes_per_client > classes:
            raise UserError(
                f"partition.classes_per_client is {self.classes_per_client} but the data has "
                f"{classes} classes: set it to at most {classes}"
            )
        holds = draw_classes(clients, classes, self.classes_per_client, rng)
        weights = rng.uniform(0.4, 0.6, size=holds.shape) if self.share == "random" else np.ones(holds.shape)
        weights = weights * holds
        # A class without holders keeps an all-zero column: its samples stay unused.
        portions = weights / np.where(holds.any(axis=0), weights.sum(axis=0), 1.0)
        return deal(y, proportional(np.bincount(y, minlength=classes), portions), rng)
