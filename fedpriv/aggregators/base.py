"""How uploads become one update. `Linear` has a weight for each participant."""

from abc import ABC, abstractmethod
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedpriv.parts.base import Part, by_client
from fedpriv.parts.declarations import MEANS, AggregatorFacts
from fedpriv.rounds.setting import Round


class Aggregator(Part, ABC):
    """An ordinary one is its facts and `__call__`."""

    facts = AggregatorFacts()

    def accepts(self, clients: np.ndarray) -> bool:
        """Whether a round of these clients [C] can be aggregated; if not, the round is drawn again."""
        return True

    def draw(self, round_: Round, generator: torch.Generator) -> None:
        """Draw what is random about the round, before its uploads are seen."""

    @abstractmethod
    def __call__(self, uploads: Tensor, round_: Round) -> Tensor:
        """[C, D'] -> [D'], of at least one upload."""

    def largest_weight(self, round_: Round) -> float:
        """The most any one client can weigh, over all rounds like this one; asked if the facts say `bounded`.

        A mechanism that adds noise on the server (cdp) calibrates to it, so it must not depend on who
        happens to take part.
        """
        raise NotImplementedError

    def part(self, round_: Round) -> float:
        """What makes the round's aggregate its part of an average over all clients.

        Times that, a participant's weight is the one it has among everybody. Here for equal weights, and for
        weights that change from round to round, which have no such average.
        """
        return round_.expected / self.setting.clients


class Linear(Aggregator):
    """A weight for each participant, whatever it sends."""

    facts = AggregatorFacts(takes=MEANS)

    @abstractmethod
    def weights(self, round_: Round) -> Tensor:
        """Each participant's weight, [C]; may use only what the server knows."""

    @by_client
    def __call__(self, uploads: Tensor, round_: Round) -> Tensor:
        return self.weights(round_).to(uploads) @ uploads


def public(facts: AggregatorFacts, *what: str) -> AggregatorFacts:
    """The same facts, of an aggregator that takes this as public."""
    return replace(facts, not_covered=what)


def constant(value: float, round_: Round) -> Tensor:
    return torch.full((len(round_.clients),), value)
