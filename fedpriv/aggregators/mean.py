"""Uniform mean (PrivateFL Algorithm 1 line 7; FedAvg with equal clients): 1 / m for each of m participants.

m is the public number the round is normalised by: the actual count under fixed-size sampling, the expected
one under Poisson sampling.
"""

from torch import Tensor

from fedpriv.aggregators.base import Linear, constant
from fedpriv.parts.declarations import MEANS, AggregatorFacts
from fedpriv.rounds.setting import Round


class Mean(Linear):
    facts = AggregatorFacts(takes=MEANS, symmetric="values", bounded=True)

    def weights(self, round_: Round) -> Tensor:
        return constant(1.0 / round_.expected, round_)

    def largest_weight(self, round_: Round) -> float:
        return 1.0 / round_.expected
