"""What the variants share that perturb the local model itself (LDP-FL, PLDP-FL) instead of its update.

A client's weights are the broadcast model plus its message; their perturbed values are sent, and the
aggregate of these is the next model, so the update is the aggregate minus the broadcast model. Local
differential privacy: the noise is the client's own, so what holds, holds against the server too.
"""

import torch
from torch import Tensor

from fedpriv.aggregators.base import Aggregator
from fedpriv.errors import UserError
from fedpriv.mechanisms.base import DIAGNOSTICS, TUNING, Mechanism
from fedpriv.randomness.source import Source
from fedpriv.setting import Round
from fedpriv.uploads.plain import Plain

RELATION = "replace all data of one client by any other, as seen by the server (local differential privacy)"
NOT_COVERED = (
    "personal layers and personal models, which stay at home and must not be released",
    "who takes part in which round",
    "each client's privacy budget, which its noise follows",
    TUNING,
    DIAGNOSTICS,
)


class SendsModels(Mechanism):
    unit = "client"
    replaces = True

    def check(self, aggregator: Aggregator, upload: Plain) -> None:
        if aggregator.updates_only:
            raise UserError(
                f"aggregator: {type(aggregator).__name__} makes something of updates, but this dp_variant "
                "sends whole models, which only a mean makes a model of; use aggregator=mean"
            )
        aggregator.models = True

    @property
    def rounds_charged(self) -> int:
        return self.setting.most  # every round that draws it: the stated epsilon is never spent

    def perturb(self, weights: Tensor, round_: Round, source: Source) -> Tensor:
        """What is sent, [C, D], from local models of finite weights, [C, D]."""
        raise NotImplementedError

    def client(self, messages: Tensor, round_: Round, source: Source) -> Tensor:
        if messages.shape[1] != self.setting.layout.shared:
            raise UserError(
                "dp_variant: this one perturbs the model's own weights, but the algorithm sends more; use "
                "algorithm=fedavg"
            )
        # A weight that is not a number has diverged and must not be told apart from others.
        return self.perturb(torch.nan_to_num(round_.start + messages), round_, source)

    def server(self, aggregate: Tensor, round_: Round, largest_weight: float, source: Source) -> Tensor:
        if not len(round_.clients):
            return torch.zeros_like(round_.start)
        return aggregate - round_.start
