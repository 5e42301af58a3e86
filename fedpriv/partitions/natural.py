"""The clients the data themselves name: whose a sample is stands in the data (`dataset=files`).

Test samples that say whose they are stay with their client, others are dealt as in every partition; those of
a client without training samples belong to nobody and count in the view on the whole test set only.
"""

import numpy as np

from fedpriv.datasets.data import Data
from fedpriv.errors import UserError
from fedpriv.partitions.base import Partition


class Natural(Partition):
    def know(self, data: Data) -> None:
        if not data.owners:
            raise UserError(
                f"partition=natural: dataset {data.name} does not say whose a sample is; use dataset=files "
                "with dataset.client or an array client_train, or another partition"
            )
        self.named = [part.numpy() for part in data.owners]

    def owners(self, y: np.ndarray, *, clients: int, classes: int, rng: np.random.Generator) -> np.ndarray:
        there = int(self.named[0].max()) + 1
        if clients != there:
            raise UserError(f"clients={clients}: the data have {there} clients; set clients={there}")
        return self.named[0]

    def test_owners(
        self, held: np.ndarray, y_train: np.ndarray, y_test: np.ndarray, *, rng: np.random.Generator
    ) -> np.ndarray:
        if len(self.named) > 1:
            return self.named[1]
        return super().test_owners(held, y_train, y_test, rng=rng)
