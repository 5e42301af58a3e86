"""PLDP-FL's probability-based selection (Wu, Xu and Zhu 2023, eqs. 14 to 16): the mean of a few clients.

P_k = (1 / sigma_k) / sum of 1 / sigma. As printed, one number omega from U(0, 1) selects every client with
P_k > omega; since the P_k add up to 1, often nobody is, which the text does not mention. `rule` says what
then:

  redraw       draw omega again until somebody is selected, that is from U(0, max P);
  keep         keep the old model;
  independent  an omega for each client, all drawn again while nobody is selected;
  draws        instead: `draws` draws of a client with probabilities P; one drawn twice counts twice.
"""

from typing import Literal

import torch
from torch import Tensor

from fedpriv.aggregators.base import Linear, public
from fedpriv.aggregators.weighted import BUDGETS, shares
from fedpriv.errors import UserError
from fedpriv.rounds.setting import Round


class Selection(Linear):
    facts = public(Linear.facts, BUDGETS)

    def __init__(self, *, rule: Literal["redraw", "keep", "independent", "draws"] = "redraw", draws: int = 1):
        if draws < 1:
            raise UserError(f"aggregator.draws={draws}: must be at least 1")
        if draws > 1 and rule != "draws":
            raise UserError(f"aggregator.draws={draws}: only aggregator.rule=draws draws so often")
        self.rule, self.draws = rule, draws

    def draw(self, round_: Round, generator: torch.Generator) -> None:
        """How often each participant is in the mean, [C]."""
        chance = shares(round_.noise).to(generator.device)
        self._times = self._select(chance, generator)

    def _select(self, chance: Tensor, generator: torch.Generator) -> Tensor:
        where = generator.device
        if self.rule == "draws":
            drawn = torch.multinomial(chance, self.draws, replacement=True, generator=generator)
            return torch.bincount(drawn, minlength=len(chance)).float()
        if self.rule == "independent":
            while True:
                selected = torch.rand(len(chance), generator=generator, device=where) < chance
                if selected.any():
                    return selected.float()
        omega = torch.rand(1, generator=generator, device=where)
        return (chance > (omega * chance.max() if self.rule == "redraw" else omega)).float()

    def weights(self, round_: Round) -> Tensor:
        return self._times / self._times.sum().clamp(min=1)

    def __call__(self, uploads: Tensor, round_: Round) -> Tensor:
        if self.wiring.sends != "updates" and not self._times.any():
            return round_.start.to(uploads)
        return super().__call__(uploads, round_)
