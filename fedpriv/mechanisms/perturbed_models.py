"""What the variants share that perturb the local model itself (LDP-FL, PLDP-FL) instead of its update.

A client's weights are the broadcast model plus its message; their perturbed values are sent, and the
aggregate of these is the next model, so the update is the aggregate minus the broadcast model. Local
differential privacy: the noise is the client's own, so what holds, holds against the server too.
"""

from abc import abstractmethod

import torch
from torch import Tensor

from fedpriv.errors import UserError
from fedpriv.mechanisms.base import DIAGNOSTICS, TUNING, Mechanism
from fedpriv.mechanisms.participation import FixedNumber
from fedpriv.parts.declarations import MechanismFacts
from fedpriv.randomness.source import Source
from fedpriv.rounds.setting import Round

NOT_COVERED = (
    "personal layers and personal models, which stay at home and must not be released",
    "who takes part in which round",
    "each client's privacy budget, which its noise follows",
    TUNING,
    DIAGNOSTICS,
)


class SendsModels(Mechanism):
    # The stated epsilon is never spent, so a client pays for every round that draws it.
    facts = MechanismFacts(
        unit="client", replaces=True, participation=FixedNumber(ends=False), sends="models", weights="any"
    )

    @abstractmethod
    def perturb(self, weights: Tensor, round_: Round, source: Source) -> Tensor:
        """What is sent, [C, D], from local models of finite weights, [C, D]."""

    def apart(self, method: str) -> bool:
        """What leaves a client is made of its own model where that is so of its perturbed one."""
        return super().apart("perturb" if method == "client" else method)

    def client(self, messages: Tensor, round_: Round, source: Source) -> Tensor:
        if messages.shape[1] != self.setting.layout.sent:
            raise UserError(
                "dp_variant: this one perturbs the model's own weights, but the algorithm sends more; use "
                "algorithm=fedavg"
            )
        # A weight that is not a number has diverged and must not be told apart from others.
        return self.perturb(torch.nan_to_num(round_.start + messages), round_, source)

    def server(self, aggregate: Tensor, round_: Round, largest_weight: float, source: Source) -> Tensor:
        return aggregate - round_.start
