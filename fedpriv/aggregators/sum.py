"""The plain sum of what arrives: one row already summed by a secure sum, or every participant's."""

from torch import Tensor

from fedpriv.aggregators.base import Linear, constant
from fedpriv.parts.declarations import SHARES, UPDATES, AggregatorFacts
from fedpriv.rounds.setting import Round


class Sum(Linear):
    facts = AggregatorFacts(takes=UPDATES | SHARES, symmetric="values", bounded=True)

    def weights(self, round_: Round) -> Tensor:
        return constant(1.0, round_)

    def part(self, round_: Round) -> float:
        return 1 / self.setting.clients

    def __call__(self, uploads: Tensor, round_: Round) -> Tensor:
        return uploads.sum(0)

    def largest_weight(self, round_: Round) -> float:
        return 1.0
