"""SCAFFOLD (Karimireddy et al. 2020): control variates against client drift.

A local step follows g + c - c_k. After the round a client's variate c_k becomes

  option I   its gradient at the broadcast model, over all its data: a second pass;
  option II  c_k - c + (theta - w_k) / (lr steps): the mean of the gradients it has just used,

and c moves by the participants' part of the mean change, so that it stays the mean of all c_k. With momentum,
`steps` is the total weight of the gradients in w_k (steps.py): the plain number would make the variates
1 / (1 - momentum) times too large.

A client sends both its move and its variate's change: without DP, or under dp=ldp, where all that is made of
private gradients is private. Where the mechanism clips or noises the message itself (dp=cdp, ddp, duchi, ...)
it is refused: c would be off the mean of the c_k by the sum of all rounds' clipping errors and noise, and
every local step would follow that.

Departure: averages are the aggregator's, so agg=size weighs variates by size too and c is the mean by size;
agg=mean is the paper's. Where weights change from round to round (agg=pfa, weighted, selection) there is no
such mean; c then moves as with agg=mean, by the participants' part of the number of clients.
"""

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedpriv.algorithms.base import Correction
from fedpriv.algorithms.fedavg import FedAvg
from fedpriv.algorithms.steps import accumulated
from fedpriv.config.limits import Momentum, Positive
from fedpriv.parts.base import by_client
from fedpriv.parts.declarations import ALONE, AlgorithmFacts, Wiring
from fedpriv.rounds.setting import Round, Setting
from fedpriv.rounds.store import ClientStore

_BLOCK = 64  # clients looked at together


class Scaffold(FedAvg):
    def __init__(
        self, *, option: Literal["I", "II"] = "II", server_lr: Positive = 1.0, server_momentum: Momentum = 0.0
    ):
        super().__init__(server_lr=server_lr, server_momentum=server_momentum)
        self.option = option
        self.facts = AlgorithmFacts(adds_up=True, raw_gradients=option == "I", keeps=("control",))
        self._gradients: Tensor | None = None

    def setup(self, setting: Setting, wiring: Wiring = ALONE) -> None:
        super().setup(setting, wiring)
        self._control = torch.zeros(setting.layout.sent, device=setting.device)
        self._weights = accumulated(setting.steps, setting.momentum)  # [K]

    def correction(
        self, round_: Round, store: ClientStore, gradients: Tensor | None = None
    ) -> Correction | None:
        self._gradients, self._clients = gradients, round_.clients
        control, own, at = self._control, store["control"], store.at(round_.clients)

        def term(places: Tensor) -> Tensor:
            """c - c_k, made for the clients at hand: for all at once it would be the store a second time."""
            gathered = own[places]  # [c, D]
            return torch.sub(control, gathered, out=gathered)

        here = at[at < len(own)]
        if not store.anywhere(any(bool(term(some).any()) for some in here.split(_BLOCK))):
            return None  # FedAvg, to the last bit
        return lambda weights, rows: term(at[rows]).to(weights.dtype)

    @by_client
    def message(self, local: Tensor, round_: Round, store: ClientStore) -> Tensor:
        """[C, 2 D]: how far each model and each control variate moved."""
        own, at, width = store["control"], store.at(round_.clients), local.shape[1]
        both = local.new_empty(len(local), 2 * width)
        moved, change = both.split(width, 1)  # written in place: each is as large as the store
        torch.sub(local, round_.start, out=moved)
        if self._gradients is not None:
            some = torch.as_tensor(np.searchsorted(self._clients, round_.clients))
            change.copy_(self._gradients[some.to(at.device)]).sub_(own[at])
        else:
            scale = torch.as_tensor(self._weights[round_.clients] * round_.lr).to(moved)
            torch.div(moved, scale[:, None], out=change).neg_().sub_(self._control)
        own.index_add_(0, at, change.to(own.dtype))
        return both

    def move(self, update: Tensor, round_: Round) -> Tensor:
        self._gradients = None
        moved, change = update.chunk(2)
        assert self.wiring.aggregator is not None
        part = self.wiring.aggregator.part(round_)
        self._control = self._control + part * change.to(self._control.dtype)
        return super().move(moved, round_)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "control": self._control}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self._control = state["control"].to(self._control)
