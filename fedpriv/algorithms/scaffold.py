"""DP-SCAFFOLD (Noble et al. 2022, on Karimireddy et al. 2020): control variates against client drift.

A local step adds c - c_i to the private gradient. After the round c_i <- c_i - c + (theta - w_i) / (lr steps)
is the mean of the client's own private gradients, and the client sends w_i - theta and c_i's change; the
server moves theta by the mean of the first and c by the participating share of the mean of the second.

Everything is computed from gradients that DP-SGD has already clipped and noised, so under local DP the
variates are post-processing and cost nothing. Departure: noise and accounting are those of dp=ldp (add or
remove one sample, Poisson batches) instead of the paper's replace-one.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedpriv.algorithms.fedavg import FedAvg
from fedpriv.errors import UserError
from fedpriv.mechanisms.base import Mechanism
from fedpriv.setting import Round, Setting
from fedpriv.store import ClientStore


class DPScaffold(FedAvg):
    def check(self, mechanism: Mechanism) -> None:
        if mechanism.unit == "client":
            raise UserError(
                "algorithm=dp_scaffold makes control variates of a client's gradients, private only "
                "under dp=ldp; use that, or algorithm=fedavg with this dp_variant"
            )

    def setup(self, setting: Setting, store: ClientStore) -> None:
        super().setup(setting, store)
        width = setting.layout.shared
        store.claim("control", torch.zeros(setting.clients, width, device=setting.device))
        self._control = torch.zeros(width, device=setting.device)

    def correction(self, round_: Round, store: ClientStore) -> Callable[[Tensor, slice], Tensor]:
        term = self._control - store["control"][round_.clients]  # [C, D]
        return lambda weights, rows: term[rows].to(weights.dtype)

    def message(self, local: Tensor, round_: Round, store: ClientStore) -> Tensor:
        """[C, 2 D]: how far each model and each control variate moved."""
        moved = super().message(local, round_, store)
        scale = torch.as_tensor(round_.steps * round_.lr, device=moved.device, dtype=moved.dtype)
        change = -self._control - moved / scale[:, None]
        store["control"][round_.clients] += change.to(store["control"].dtype)
        return torch.cat([moved, change.to(moved.dtype)], 1)

    def step(self, theta: Tensor, update: Tensor, round_: Round) -> Tensor:
        moved, change = update.split(len(theta))
        share = round_.expected / self.setting.clients
        self._control = self._control + share * change.to(self._control.dtype)
        return super().step(theta, moved, round_)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "control": self._control}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self._control = state["control"].to(self._control)
