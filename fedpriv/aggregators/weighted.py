"""PLDP-FL's weighted average (Wu, Xu and Zhu 2023, eqs. 11 to 13): weights (1 / sigma_k) / sum of 1 / sigma.

The noise of the result has the standard deviation sqrt(N) / sum of 1 / sigma, that of the plain mean has
sqrt(sum of sigma^2) / N.
"""

import numpy as np
import torch
from torch import Tensor

from fedpriv.aggregators.base import Linear, public
from fedpriv.rounds.setting import Round

BUDGETS = "each client's privacy budget, which the weights reveal"


def shares(noise: np.ndarray) -> Tensor:
    """Each participant's part of the sum of 1 / sigma, [C]; those without noise share all of it."""
    inverse = 1 / noise if noise.all() else (noise == 0).astype(float)
    return torch.as_tensor(inverse / inverse.sum(), dtype=torch.float32)


class Weighted(Linear):
    facts = public(Linear.facts, BUDGETS)

    def weights(self, round_: Round) -> Tensor:
        return shares(round_.noise)
