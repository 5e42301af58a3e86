"""FedAvg's own rule (McMahan et al. 2017): weights n_k / sum n, which takes client sizes as public.

Under Poisson sampling of clients the sum runs over all clients times the sampling rate, a constant.
"""

import numpy as np
import torch
from torch import Tensor

from fedpriv.aggregators.base import Linear
from fedpriv.parts.declarations import MEANS, AggregatorFacts
from fedpriv.rounds.setting import Round


class SizeWeighted(Linear):
    facts = AggregatorFacts(
        takes=MEANS,
        bounded=True,
        not_covered=("how many samples each client has, which the weights reveal",),
    )

    def _constant_total(self, round_: Round) -> float:
        return float(self.setting.sizes.sum()) * round_.expected / self.setting.clients

    def weights(self, round_: Round) -> Tensor:
        total = self._constant_total(round_) if round_.constant_weights else float(round_.sizes.sum())
        return torch.as_tensor(round_.sizes / total, dtype=torch.float32)

    def part(self, round_: Round) -> float:
        if round_.constant_weights:
            return super().part(round_)
        return float(round_.sizes.sum() / self.setting.sizes.sum())

    def largest_weight(self, round_: Round) -> float:
        return float(np.max(self.setting.sizes)) / self._constant_total(round_)
