"""Dirichlet label skew (Hsu et al. 2019), used by FedPD (alpha 0.1 and 0.05) and PLDP-FL (alpha not stated).

For each class the proportions over the clients are drawn from Dir(alpha, ..., alpha); smaller is more skewed.
As in FedPD's successor code the draw is repeated until every client has enough training samples, by default
as many as there are classes.
"""

import math
from typing import Annotated

import numpy as np

from fedpriv.config.limits import Count, Within
from fedpriv.errors import UserError
from fedpriv.partitions.base import Partition
from fedpriv.partitions.dealing import deal, proportional

TRIES = 1000


class Dirichlet(Partition):
    def __init__(
        self, *, alpha: Annotated[float, Within(least=1e-6, most=1e6)] = 0.1, min_samples: Count | None = None
    ) -> None:
        if not (alpha > 0 and math.isfinite(alpha)):
            raise UserError(f"partition.alpha is {alpha}: set it to a positive number such as 0.1")
        if min_samples is not None and min_samples < 1:
            raise UserError(f"partition.min_samples is {min_samples}: set it to at least 1 or null")
        self.alpha = alpha
        self.min_samples = min_samples

    def owners(self, y: np.ndarray, *, clients: int, classes: int, rng: np.random.Generator) -> np.ndarray:
        least = classes if self.min_samples is None else self.min_samples
        if least * clients > len(y):
            raise UserError(
                f"partition.min_samples is {least} but {clients} clients share {len(y)} training samples: "
                f"set partition.min_samples to at most {len(y) // clients} or use fewer clients"
            )
        available = np.bincount(y, minlength=classes)
        for _ in range(TRIES):
            portions = rng.dirichlet(np.full(clients, self.alpha), size=classes).T
            counts = proportional(available, portions)
            if counts.sum(axis=1).min() >= least:
                return deal(y, counts, rng)
        raise UserError(
            f"partition.alpha {self.alpha} never gave each of {clients} clients {least} samples in "
            f"{TRIES} draws: raise partition.alpha, lower partition.min_samples or use fewer clients"
        )
