"""Server momentum, FedAvgM (Hsu, Qi and Brown 2019; Reddi et al. 2021, section 4):

m <- momentum m + Delta,    theta <- theta + lr m,    m = 0 at first.
"""

from typing import Any

import torch
from torch import Tensor

from fedpriv.config.limits import Momentum, Positive
from fedpriv.servers.base import Server


class ServerMomentum(Server):
    def __init__(self, *, lr: Positive = 1.0, momentum: Momentum = 0.9):
        self.lr, self.momentum = lr, momentum
        self._velocity: Tensor | None = None

    def step(self, theta: Tensor, move: Tensor) -> Tensor:
        before = torch.zeros_like(move) if self._velocity is None else self._velocity.to(move)
        self._velocity = self.momentum * before + move
        return theta + self.lr * self._velocity

    def state(self) -> dict[str, Any]:
        return {"velocity": self._velocity}

    def load(self, state: dict[str, Any]) -> None:
        self._velocity = state["velocity"]
