"""FedAvg (McMahan et al. 2017): local SGD, then theta <- theta + server_lr * update, with server momentum.

The base of every algorithm: each method is one place where another one differs.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.aggregators.base import Aggregator
from fedpriv.engine.work import Rows
from fedpriv.limits import Momentum, Positive
from fedpriv.mechanisms.base import Mechanism
from fedpriv.setting import Round, Setting
from fedpriv.store import ClientStore


class FedAvg:
    personal = False  # whether clients start from models of their own
    not_covered: tuple[str, ...] = ()  # what it takes as public that a DP variant does not protect

    def __init__(self, *, server_lr: Positive = 1.0, server_momentum: Momentum = 0.0):
        self.server_lr, self.server_momentum = server_lr, server_momentum
        self._velocity: Tensor | None = None

    def home(self, network: nn.Module) -> set[str]:
        """Names of model parameters that never leave a client."""
        return set()

    def check(self, mechanism: Mechanism) -> None:
        """Refuse a DP variant this algorithm has no guarantee or no meaning with, and say why."""

    def meet(self, aggregator: Aggregator) -> None:
        """Learn how the server will weigh uploads, or refuse an aggregator."""

    def setup(self, setting: Setting, store: ClientStore) -> None:
        """Learn the facts of the run and claim per-client state in the store."""
        self.setting = setting

    def start(self, theta: Tensor, clients: Tensor, store: ClientStore) -> Tensor:
        """The shared weights each client trains and is judged from, [C, D]."""
        return theta.expand(len(clients), -1)

    def before(self, round_: Round, store: ClientStore, gradients: Callable[[], Tensor]) -> None:
        """Before local training. `gradients()` costs a pass over the data: each participant's gradient at the
        model it starts from, [C, D]; raw, so what is made of it must not leave round the mechanism."""

    def rates(self, round_: Round, steps: int) -> list[float]:
        """The learning rate of every local step."""
        return [round_.lr] * steps

    def home_rate(self, own: float | None, round_: Round) -> float | None:
        """The learning rate of what stays at home, given its own option; None: as the shared weights."""
        return own

    def correction(self, round_: Round, store: ClientStore) -> Callable[[Tensor, Rows], Tensor] | None:
        """A term added to the shared gradient at each local step: (weights [c, D], rows) -> [c, D]."""
        return None

    def message(self, local: Tensor, round_: Round, store: ClientStore) -> Tensor:
        """What a client wants the server to know, [C, D']: here how far it moved from the broadcast model."""
        return local - round_.start

    def step(self, theta: Tensor, update: Tensor, round_: Round) -> Tensor:
        """The next global model."""
        if self.server_momentum:
            previous = torch.zeros_like(update) if self._velocity is None else self._velocity.to(update)
            self._velocity = update = self.server_momentum * previous + update
        return theta + self.server_lr * update

    def state(self) -> dict[str, Any]:
        return {"velocity": self._velocity}

    def load(self, state: dict[str, Any]) -> None:
        self._velocity = state["velocity"]
