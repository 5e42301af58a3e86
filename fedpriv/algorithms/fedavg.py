"""FedAvg (McMahan et al. 2017): local SGD, then a move of server_lr * update, with server momentum.

Other server steps (FedAdam, ...) are options of `server` and go with every algorithm.
"""

from typing import Any

import torch
from torch import Tensor

from fedpriv.algorithms.base import Algorithm
from fedpriv.config.limits import Momentum, Positive
from fedpriv.rounds.setting import Round


class FedAvg(Algorithm):
    def __init__(self, *, server_lr: Positive = 1.0, server_momentum: Momentum = 0.0):
        self.server_lr, self.server_momentum = server_lr, server_momentum
        self._velocity: Tensor | None = None

    def move(self, update: Tensor, round_: Round) -> Tensor:
        if self.server_momentum:
            previous = torch.zeros_like(update) if self._velocity is None else self._velocity.to(update)
            self._velocity = update = self.server_momentum * previous + update
        return self.server_lr * update

    def state(self) -> dict[str, Any]:
        return {"velocity": self._velocity}

    def load(self, state: dict[str, Any]) -> None:
        self._velocity = state["velocity"]
