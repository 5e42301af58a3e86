"""FedNova (Wang et al. 2020): moves are divided by the local work behind them before they are averaged.

theta <- theta + tau_eff sum_k p_k Delta_k / ||a_k||_1, with tau_eff = sum_k p_k ||a_k||_1

p_k are the aggregator's weights (agg=size is the paper's) and ||a_k||_1 the total weight of the gradients in
a client's move: its number of steps, or more with momentum (steps.py). Equal work makes it FedAvg. A message
is the whole of tau_eff Delta_k / ||a_k||_1, so a mechanism clips and noises what is averaged.

Numbers of steps follow from numbers of samples, which are taken as public. Where weights must not depend on
who takes part (dp=cdp, ddp), tau_eff is that of all clients; `effective_steps` sets a constant instead.
"""

from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from fedpriv.aggregators.base import Linear
from fedpriv.algorithms.fedavg import FedAvg
from fedpriv.algorithms.steps import accumulated
from fedpriv.config.limits import Momentum, Positive
from fedpriv.errors import positive
from fedpriv.parts.declarations import ALONE, AlgorithmFacts, Wiring
from fedpriv.rounds.setting import Round, Setting
from fedpriv.rounds.store import ClientStore


class FedNova(FedAvg):
    def __init__(
        self,
        *,
        effective_steps: Positive | None = None,
        server_lr: Positive = 1.0,
        server_momentum: Momentum = 0.0,
    ):
        super().__init__(server_lr=server_lr, server_momentum=server_momentum)
        positive("algorithm", "must be positive, or null", effective_steps=effective_steps)
        self.effective_steps = effective_steps
        self.facts = AlgorithmFacts(
            needs_weights=effective_steps is None,
            not_covered=("how many local steps each client takes, by which its update is divided",),
        )

    def setup(self, setting: Setting, wiring: Wiring = ALONE) -> None:
        super().setup(setting, wiring)
        self._work = accumulated(setting.steps, setting.momentum)  # [K]

    def message(self, local: Tensor, round_: Round, store: ClientStore) -> Tensor:
        moved = super().message(local, round_, store)
        if not len(round_.clients):
            return moved
        factor = self._effective(round_) / self._work[round_.clients]
        return moved * torch.as_tensor(factor).to(moved)[:, None]

    def _effective(self, round_: Round) -> float:
        """tau_eff; exactly the work of each client where that is equal."""
        if self.effective_steps is not None:
            return self.effective_steps
        if round_.constant_weights:
            everyone, setting = np.arange(self.setting.clients), self.setting
            round_ = replace(
                round_,
                clients=everyone,
                sizes=setting.sizes,
                steps=setting.steps,
                budgets=setting.budgets,
                noise=np.ones(setting.clients),
            )
        aggregator = cast(Linear, self.wiring.aggregator)  # its facts need weights
        work, weights = self._work[round_.clients], aggregator.weights(round_).cpu().double().numpy()
        if not weights.any():  # nobody was selected
            return float(work.min())
        return float(work.min() + weights @ (work - work.min()) / weights.sum())
