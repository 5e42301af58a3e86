"""The same epsilon for every client."""

import numpy as np

from fedpriv.budgets.base import Budget, Use
from fedpriv.config.limits import Epsilon


class Constant(Budget):
    def __init__(self, *, epsilon: Epsilon, use: Use = "own"):
        super().__init__(use=use)
        self.epsilon = epsilon

    def draw(self, clients: int, rng: np.random.Generator) -> np.ndarray:
        return np.full(clients, float(self.epsilon))
