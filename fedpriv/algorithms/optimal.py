"""scikit-learn's learning rate "optimal" (SGDClassifier; PLDP-FL, section 5.2): eta_t = 1 / (alpha (t0 + t)).

t counts weight updates from 0 and t0 = 1 / (alpha eta_0), where eta_0 = alpha^(-1/4) is Bottou's guess at the
size of a typical weight, as scikit-learn uses it for the logistic loss: alpha = 0.0001 starts at 10. alpha
is also the strength of the L2 penalty, alpha / 2 ||w||^2, on everything but biases.

Departures from scikit-learn: a step takes the mean over a batch, and classes share one softmax instead of a
binary model each. `restart` begins the schedule anew in every round, as fitting again does.
"""

from typing import Annotated

import torch
from torch import Tensor

from fedpriv.algorithms.base import Correction, Rates
from fedpriv.algorithms.fedavg import FedAvg
from fedpriv.config.limits import Momentum, Positive, Within
from fedpriv.errors import positive
from fedpriv.parts.declarations import ALONE, AlgorithmFacts, Wiring
from fedpriv.rounds.setting import Round, Setting
from fedpriv.rounds.store import ClientStore


class Optimal(FedAvg):
    def __init__(
        self,
        *,
        alpha: Annotated[float, Within(least=1e-9, most=1e6)] = 1e-4,
        restart: bool = True,
        server_lr: Positive = 1.0,
        server_momentum: Momentum = 0.0,
    ):
        super().__init__(server_lr=server_lr, server_momentum=server_momentum)
        positive("algorithm", "must be positive, for the learning rate divides by it", alpha=alpha)
        self.alpha, self.restart = alpha, restart
        if not restart:
            self.facts = AlgorithmFacts(
                not_covered=("how many steps the client with most data takes, which all rates follow",)
            )

    def setup(self, setting: Setting, wiring: Wiring = ALONE) -> None:
        super().setup(setting, wiring)
        entries = setting.layout.sent_entries
        penalty = [torch.full((e.stop - e.start,), self.alpha * (len(e.shape) > 1)) for e in entries]
        self._penalty = torch.cat(penalty).to(setting.device)  # [D]

    def rates(self, round_: Round, steps: int) -> Rates:
        before = 0 if self.restart else round_.number * int(self.setting.steps.max())
        first = self.alpha**-0.75  # t0
        return Rates([1 / (self.alpha * (first + before + step)) for step in range(steps)])

    def correction(self, round_: Round, store: ClientStore, gradients: Tensor | None = None) -> Correction:
        return lambda weights, _: self._penalty.to(weights.dtype) * weights
