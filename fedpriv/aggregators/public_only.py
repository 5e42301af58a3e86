"""The baseline PFA has to beat: WeiAvg over the public participants, everybody else ignored."""

from dataclasses import replace

import torch
from torch import Tensor

from fedpriv.aggregators.base import Linear
from fedpriv.aggregators.division import Divided
from fedpriv.rounds.setting import Round


class PublicOnly(Divided, Linear):
    facts = replace(Divided.facts, takes=Linear.facts.takes)

    def weights(self, round_: Round) -> Tensor:
        budgets = round_.budgets * self.public[round_.clients]
        return torch.as_tensor(budgets / budgets.sum(), dtype=torch.float32)
