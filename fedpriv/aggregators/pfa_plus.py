"""PFA+ (PFA Algorithms 4 and 5): private clients send k numbers per tensor, in the last round's subspace.

The first round is a warm-up: everybody sends everything and PFA aggregates it. From then on private clients
send V[t-1] x (upload=projected); the server reconstructs, adds the public updates, and finds V[t] from those.
"""

from dataclasses import replace
from typing import Any

from torch import Tensor

from fedpriv.aggregators.pfa import PFA
from fedpriv.aggregators.subspace import Subspace, spans_of
from fedpriv.aggregators.weiavg import budget_weights
from fedpriv.rounds.setting import Round


class PFAPlus(PFA):
    facts = replace(PFA.facts, subspace=True)
    subspace: Subspace | None = None  # of the last round; None: warm-up

    def __call__(self, uploads: Tensor, round_: Round) -> Tensor:
        found = self.subspace_of(uploads[self.public_rows(round_, uploads.device)], round_)
        if self.subspace is None:
            update = self.combine(uploads, round_, found)
        elif self.wiring.projected:
            update = budget_weights(round_).to(uploads) @ uploads
        else:
            update = self.combine(uploads, round_, self.subspace)
        self.subspace = found
        return update

    def state(self) -> dict[str, Any]:
        if self.subspace is None:
            return {}
        return {"bases": self.subspace.bases, "centre": self.subspace.centre}

    def load(self, state: dict[str, Any]) -> None:
        if state:
            device, centre = self.setting.device, state["centre"]
            spans = spans_of(self.setting.layout, len(centre))
            self.subspace = Subspace([b.to(device) for b in state["bases"]], centre.to(device), spans)
