"""Budgets drawn from a distribution (PFA, Table 1), none below a stated positive floor.

The paper's second parameter of a Gaussian is taken as its standard deviation; it does not say which it is.
"""

from typing import Annotated, Literal

import numpy as np

from fedpriv.budgets.base import Budget, Use
from fedpriv.config.limits import Epsilon, Fraction, NotNegative, Within
from fedpriv.errors import UserError, positive

_TRIES = 10_000  # of drawing all budgets again


class Drawn(Budget):
    def __init__(self, *, floor: float, use: Use):
        super().__init__(use=use)
        positive("budget", "must be positive, for no client has an epsilon of zero", floor=floor)
        self.floor = floor

    def draw(self, clients: int, rng: np.random.Generator) -> np.ndarray:
        return self.raw(clients, rng).clip(min=self.floor)

    def raw(self, clients: int, rng: np.random.Generator) -> np.ndarray:
        raise NotImplementedError


class Uniform(Drawn):
    def __init__(self, *, low: Epsilon = 1.0, high: Epsilon = 10.0, floor: Epsilon = 0.01, use: Use = "own"):
        super().__init__(floor=floor, use=use)
        if high < low:
            raise UserError(f"budget.high={high:g}: must not be below budget.low={low:g}")
        self.low, self.high = low, high

    def raw(self, clients: int, rng: np.random.Generator) -> np.ndarray:
        return rng.uniform(self.low, self.high, clients)


class Pareto(Drawn):
    """P(epsilon > x) = (scale / x)^shape for x above scale; the values are those of the authors' code."""

    def __init__(
        self,
        *,
        shape: Annotated[float, Within(least=0.01, most=1e6)] = 1.0,
        scale: Epsilon = 0.5,
        floor: Epsilon = 0.01,
        use: Use = "own",
    ):
        super().__init__(floor=floor, use=use)
        positive("budget", shape=shape, scale=scale)
        self.shape, self.scale = shape, scale

    def raw(self, clients: int, rng: np.random.Generator) -> np.ndarray:
        return self.scale * (1 + rng.pareto(self.shape, clients))


class Mixture(Drawn):
    """Gaussians with weights. `exact` gives each its share of the clients in whole numbers, dealt at random
    (PFA's Figure 7 has 5 of 50 clients at weight 0.1); `drawn` draws every client's Gaussian; `redrawn` does
    so again until a client has the largest one, as the authors' code does.
    """

    def __init__(
        self,
        *,
        weights: list[Fraction],
        means: list[Epsilon],
        deviations: list[NotNegative],
        components: Literal["exact", "drawn", "redrawn"] = "exact",
        floor: Epsilon = 0.01,
        use: Use = "own",
    ):
        super().__init__(floor=floor, use=use)
        if not len(weights) == len(means) == len(deviations) >= 1:
            raise UserError("budget: weights, means and deviations must be lists of one length")
        if min(weights) < 0 or abs(sum(weights) - 1) > 1e-6:
            raise UserError(f"budget.weights={weights}: must not be negative and add up to 1")
        if min(deviations) < 0:
            raise UserError(f"budget.deviations={deviations}: must not be negative")
        self.weights, self.components = np.array(weights), components
        self.means, self.deviations = np.array(means), np.array(deviations)

    def raw(self, clients: int, rng: np.random.Generator) -> np.ndarray:
        if self.components == "exact":
            which = rng.permutation(np.repeat(np.arange(len(self.weights)), self._shares(clients)))
        else:
            which = self._chosen(clients, rng)
        drawn: np.ndarray = rng.normal(self.means[which], self.deviations[which])
        return drawn

    def _chosen(self, clients: int, rng: np.random.Generator) -> np.ndarray:
        largest = np.where(self.weights > 0, self.means, 0).argmax()
        for _ in range(_TRIES):
            which: np.ndarray = rng.choice(len(self.weights), clients, p=self.weights)
            if self.components == "drawn" or (which == largest).any():
                return which
        raise UserError(
            f"budget.components=redrawn: nobody's epsilon is around {self.means[largest]:g} in {_TRIES:,} "
            f"draws of {clients} clients; give it more weight or take components=exact"
        )

    def _shares(self, clients: int) -> np.ndarray:
        """Whole numbers near weights * clients, of sum `clients`: the largest remainders are rounded up."""
        wanted = self.weights * clients
        shares = np.floor(wanted + 1e-9).astype(np.int64)
        remainders = np.argsort(-(wanted - shares), kind="stable")
        shares[remainders[: clients - shares.sum()]] += 1
        return shares
