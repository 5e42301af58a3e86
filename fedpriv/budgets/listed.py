"""A written list: one epsilon per client, in the order of the clients."""

import numpy as np

from fedpriv.budgets.base import Budget, Use
from fedpriv.config.limits import Epsilon
from fedpriv.errors import UserError


class Listed(Budget):
    def __init__(self, *, epsilons: list[Epsilon], use: Use = "own"):
        super().__init__(use=use)
        self.epsilons = epsilons

    def draw(self, clients: int, rng: np.random.Generator) -> np.ndarray:
        if len(self.epsilons) != clients:
            raise UserError(
                f"budget.epsilons has {len(self.epsilons)} numbers and clients={clients}: give one a client"
            )
        return np.array(self.epsilons, dtype=float)
