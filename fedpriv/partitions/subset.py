"""One dominant class per client: the "Subset" partition of FedPD (section 4.1, after Zhao et al. 2018).

FedPD says only that each client has all classes while one far outnumbers the others, and that there is label
skew but no quantity skew. Our reading: all clients have the same size; the dominant class of client k is
k mod classes and makes up `share` of its data; the rest is spread evenly over the other classes. FedPD gives
no share: 0.9 is our choice. The size is the largest the scarcest class allows; what is left over is unused.
"""

from typing import Annotated

import numpy as np

from fedpriv.config.limits import Within
from fedpriv.errors import UserError
from fedpriv.partitions.base import Partition
from fedpriv.partitions.dealing import deal


def compose(size: int, clients: int, classes: int, share: float) -> np.ndarray:
    """Counts [clients, classes] of clients with `size` samples each."""
    main = int(np.floor(size * share + 0.5))
    each, extra = divmod(size - main, classes - 1)
    client = np.arange(clients)[:, None]
    step = np.arange(classes - 1)[None, :]
    # The odd samples start at another class in each cycle, or the next classes would get them all.
    others = (client + 1 + (client // classes + step) % (classes - 1)) % classes
    counts = np.zeros((clients, classes), dtype=np.int64)
    counts[client, others] = each + (step < extra)
    counts[client, client % classes] = main
    return counts


def largest(available: np.ndarray, clients: int, share: float) -> np.ndarray:
    """The same for the largest size that the available samples of every class allow (all 0 if none does)."""
    classes = len(available)
    dominated = np.bincount(np.arange(clients) % classes, minlength=classes)
    demand = dominated * share + (clients - dominated) * (1 - share) / (classes - 1)
    size = int((available[demand > 0] / demand[demand > 0]).min())
    # Rounding to whole samples can overdraw a class by a few, so the bound may need a step or two down.
    while (compose(size, clients, classes, share).sum(axis=0) > available).any():
        size -= 1
    return compose(size, clients, classes, share)


class Subset(Partition):
    def __init__(self, *, share: Annotated[float, Within(above=0, most=1)] = 0.9) -> None:
        if not 0 < share <= 1:
            raise UserError(f"partition.share is {share}: set it above 0 and at most 1")
        self.share = share

    def owners(self, y: np.ndarray, *, clients: int, classes: int, rng: np.random.Generator) -> np.ndarray:
        if classes < 2 or self.share <= 1 / classes:
            raise UserError(
                f"partition.share is {self.share} with {classes} classes: a dominant class needs at least "
                "2 classes and a share above 1/classes"
            )
        counts = largest(np.bincount(y, minlength=classes), clients, self.share)
        if not counts.any():
            raise UserError(
                f"partition.share is {self.share} but a class is too small for {clients} equal clients: "
                "use fewer clients, more data or data with samples of every class"
            )
        return deal(y, counts, rng)
