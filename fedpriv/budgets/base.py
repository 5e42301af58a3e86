"""Each client's budget, and which one it trains with: its own, or for all the smallest or the largest."""

from typing import Literal

import numpy as np

from fedpriv.errors import UserError

Use = Literal["own", "minimum", "maximum"]


class Budget:
    def __init__(self, *, use: Use = "own"):
        self.use = use

    def draw(self, clients: int, rng: np.random.Generator) -> np.ndarray:
        """Every client's own epsilon, [K]."""
        raise NotImplementedError

    def __call__(self, clients: int, rng: np.random.Generator) -> np.ndarray:
        """The epsilon every client trains with, [K] (PFA's baselines Minimum and Maximum via `use`)."""
        epsilon = np.asarray(self.draw(clients, rng), dtype=float)
        if not (epsilon > 0).all():
            raise UserError(f"budget: every epsilon must be positive, the smallest is {epsilon.min():g}")
        if self.use == "minimum":
            return np.full_like(epsilon, epsilon.min())
        if self.use == "maximum":
            return np.full_like(epsilon, epsilon.max())
        return epsilon
