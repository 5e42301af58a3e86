"""WeiAvg (PFA section 4.3, equation 4): weights epsilon_m / sum epsilon over the participants.

The introduction's "tighter budgets get larger weight" contradicts the equation; the equation is meant.
"""

import torch
from torch import Tensor

from fedpriv.aggregators.base import Linear, public
from fedpriv.rounds.setting import Round


def budget_weights(round_: Round) -> Tensor:
    """[C], adding up to one."""
    return torch.as_tensor(round_.budgets / round_.budgets.sum(), dtype=torch.float32)


class WeiAvg(Linear):
    facts = public(Linear.facts, "each client's epsilon, which the server weighs the clients by")

    def weights(self, round_: Round) -> Tensor:
        return budget_weights(round_)

    def part(self, round_: Round) -> float:
        return float(round_.budgets.sum() / self.setting.budgets.sum())
