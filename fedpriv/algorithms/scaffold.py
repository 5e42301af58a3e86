"""SCAFFOLD (Karimireddy et al. 2020): control variates against client drift.

A local step follows g + c - c_k. After the round a client's variate c_k becomes

  option I   its gradient at the broadcast model, over all its data: a second pass;
  option II  c_k - c + (theta - w_k) / (lr steps): the mean of the gradients it has just used,

and c moves by the participating share of the mean change. With momentum, `steps` is the total weight of the
gradients in w_k (steps.py): the plain number would make the variates 1 / (1 - momentum) times too large.

Without DP, and under dp=ldp, where all that is made of private gradients is private, a client sends both its
move and its variate's change. Where the mechanism makes the message itself private (dp=cdp, ddp), it sends
its move alone and the server takes c's change from the noisy update: post-processing, and exact if all
clients take equally many steps. c_k then stays at home like any personal state.

That c_k depends on past rounds does not cost the amplification by sampling. Whether a client joins a round is
decided by a coin of its own, independent of c_k; so, given everything released before, its part in the round
is with probability 1 - q nothing and with q some m of norm at most C, whose distribution depends on the
hidden c_k. The release is then (1 - q) N(0, s^2) + q E_m N(m, s^2), a mixture over m of the pairs that the
sampled Gaussian's bound is about, and Renyi divergence is jointly quasi-convex: no m is worse than the worst.

Departure: averages are the aggregator's, so agg=size weighs variates by size too; agg=mean is the paper's.
"""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedpriv.algorithms.fedavg import FedAvg
from fedpriv.algorithms.steps import accumulated
from fedpriv.engine.work import Rows
from fedpriv.errors import UserError
from fedpriv.mechanisms.base import Mechanism
from fedpriv.setting import Round, Setting
from fedpriv.store import ClientStore


class Scaffold(FedAvg):
    def __init__(
        self, *, option: Literal["I", "II"] = "II", server_lr: float = 1.0, server_momentum: float = 0.0
    ):
        super().__init__(server_lr=server_lr, server_momentum=server_momentum)
        self.option = option
        self._wide = True  # whether a client sends its variate's change beside its move
        self._gradients: Tensor | None = None

    def check(self, mechanism: Mechanism) -> None:
        if mechanism.unit == "none":
            return
        if self.option == "I":
            raise UserError(
                "algorithm.option=I makes variates of raw gradients, which no dp_variant here makes private; "
                "use algorithm.option=II, whose variates follow from what is private already"
            )
        self._wide = mechanism.per_sample
        if not self._wide and np.ptp(mechanism.setting.steps):
            raise UserError(
                "algorithm=scaffold: this dp_variant lets the server see the noisy update only, from which "
                "its variate follows if all clients take equally many steps; set local_steps"
            )

    def setup(self, setting: Setting, store: ClientStore) -> None:
        super().setup(setting, store)
        width = setting.layout.shared
        store.claim("control", torch.zeros(setting.clients, width, device=setting.device))
        self._control = torch.zeros(width, device=setting.device)
        self._weights = accumulated(setting.steps, setting.momentum)  # [K]

    def before(self, round_: Round, store: ClientStore, gradients: Callable[[], Tensor]) -> None:
        self._gradients = gradients() if self.option == "I" else None

    def correction(self, round_: Round, store: ClientStore) -> Callable[[Tensor, Rows], Tensor] | None:
        term = self._control - store["control"][round_.clients]  # [C, D]
        if not bool(term.any()):
            return None  # FedAvg, to the last bit
        return lambda weights, rows: term[rows].to(weights.dtype)

    def message(self, local: Tensor, round_: Round, store: ClientStore) -> Tensor:
        """[C, 2 D]: how far each model and each control variate moved; or the first half alone."""
        moved = super().message(local, round_, store)
        if self._gradients is not None:
            change = self._gradients - store["control"][round_.clients]
        else:
            scale = torch.as_tensor(self._weights[round_.clients] * round_.lr).to(moved)
            change = -self._control - moved / scale[:, None]
        store["control"][round_.clients] += change.to(store["control"].dtype)
        return torch.cat([moved, change.to(moved.dtype)], 1) if self._wide else moved

    def step(self, theta: Tensor, update: Tensor, round_: Round) -> Tensor:
        if self._wide:
            moved, change = update.split(len(theta))
        else:  # from what the mechanism released; all clients' weights are equal
            moved, change = update, -self._control - update / float(self._weights[0] * round_.lr)
        share = round_.expected / self.setting.clients
        self._control = self._control + share * change.to(self._control.dtype)
        return super().step(theta, moved, round_)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "control": self._control}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self._control = state["control"].to(self._control)
