"""FedProx (Li et al. 2020): local loss + mu / 2 ||w - theta||^2, so a local gradient gains mu (w - theta).

The term depends on no sample: under DP-SGD it is added after clipping and costs no privacy.
"""

from torch import Tensor

from fedpriv.algorithms.base import Correction
from fedpriv.algorithms.fedavg import FedAvg
from fedpriv.config.limits import Momentum, NotNegative, Positive
from fedpriv.errors import UserError
from fedpriv.rounds.setting import Round
from fedpriv.rounds.store import ClientStore


class FedProx(FedAvg):
    def __init__(self, *, mu: NotNegative = 0.01, server_lr: Positive = 1.0, server_momentum: Momentum = 0.0):
        super().__init__(server_lr=server_lr, server_momentum=server_momentum)
        if mu < 0:
            raise UserError(f"algorithm.mu={mu:g}: must not be negative")
        self.mu = mu

    def correction(
        self, round_: Round, store: ClientStore, gradients: Tensor | None = None
    ) -> Correction | None:
        if not self.mu:
            return None  # FedAvg, to the last bit
        return lambda weights, _: self.mu * (weights - round_.start)
