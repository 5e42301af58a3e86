"""FedAdagrad, FedAdam and FedYogi (Reddi et al. 2021, Algorithm 2): a rate of its own for every weight.

m <- beta1 m + (1 - beta1) Delta
v <- v + Delta^2                                        FedAdagrad
v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)          FedYogi
v <- beta2 v + (1 - beta2) Delta^2                      FedAdam
theta <- theta + lr m / (sqrt(v) + tau)

Delta is how far the algorithm would go: the local objective is any algorithm's. m = 0 and v = tau^2 at first,
the least that the paper allows; there is no bias correction, as in the paper. Defaults are its section 5:
beta1 0.9 (FedAdagrad: 0), beta2 0.99, tau 1e-3; it tunes lr, and 0.01 is near what it finds for pictures.
"""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from fedpriv.config.limits import Momentum, Positive
from fedpriv.servers.base import Server


class Adaptive(Server):
    def __init__(self, lr: float, beta1: float, tau: float):
        self.lr, self.beta1, self.tau = lr, beta1, tau
        self._m: Tensor | None = None
        self._v: Tensor | None = None

    @abstractmethod
    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """The next v [D], given Delta^2 [D]."""

    def step(self, theta: Tensor, move: Tensor) -> Tensor:
        m = torch.zeros_like(move) if self._m is None else self._m.to(move)
        v = torch.full_like(move, self.tau**2) if self._v is None else self._v.to(move)
        self._m = self.beta1 * m + (1 - self.beta1) * move
        self._v = self.second(v, move * move)
        return theta + self.lr * self._m / (self._v.sqrt() + self.tau)

    def state(self) -> dict[str, Any]:
        return {"m": self._m, "v": self._v}

    def load(self, state: dict[str, Any]) -> None:
        self._m, self._v = state["m"], state["v"]


class FedAdagrad(Adaptive):
    def __init__(self, *, lr: Positive = 0.01, beta1: Momentum = 0.0, tau: Positive = 1e-3):
        super().__init__(lr, beta1, tau)

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


class FedAdam(Adaptive):
    def __init__(
        self, *, lr: Positive = 0.01, beta1: Momentum = 0.9, beta2: Momentum = 0.99, tau: Positive = 1e-3
    ):
        super().__init__(lr, beta1, tau)
        self.beta2 = beta2

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square


class FedYogi(Adaptive):
    def __init__(
        self, *, lr: Positive = 0.01, beta1: Momentum = 0.9, beta2: Momentum = 0.99, tau: Positive = 1e-3
    ):
        super().__init__(lr, beta1, tau)
        self.beta2 = beta2

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * torch.sign(v - square)
