"""PFA, projected federated averaging (PFA Algorithms 2 and 3).

update = sum_pub w_m x_m + V^T V sum_pri w_m x_m,   w_m = epsilon_m / sum epsilon

V spans the top k right singular vectors of the public participants' stacked updates, per tensor. As printed,
Algorithm 3 decomposes the second moment of the public *mean*, which has rank one (`rank1`); the authors' code
decomposes the centred updates (`centred`). Its last line adds the private mean unprojected, which must be a
slip. Everything happens after the mechanism, so it costs no privacy.
"""

from typing import Literal

import torch
from torch import Tensor

from fedpriv.aggregators import subspace
from fedpriv.aggregators.division import Divided, Division
from fedpriv.aggregators.subspace import Subspace
from fedpriv.aggregators.weiavg import budget_weights
from fedpriv.errors import UserError
from fedpriv.rounds.setting import Round


class PFA(Divided):
    # It takes updates only: what of a model lies outside of the subspace would be lost.

    def __init__(
        self,
        *,
        k: int = 1,
        rank1: bool = False,
        centred: bool = False,
        projection: Literal["public", "random"] = "public",
        division: Division = "top",
        fraction: float = 0.1,
    ):
        super().__init__(division=division, fraction=fraction)
        if k < 1:
            raise UserError(f"aggregator.k={k}: the dimension of the subspace must be at least 1")
        if rank1 and centred:
            raise UserError(
                "aggregator.rank1, aggregator.centred: centred updates have mean zero; choose one"
            )
        self.device_needs = () if projection == "random" else ("eigh",)
        self.k, self.rank1, self.centred, self.projection = k, rank1, centred, projection

    def draw(self, round_: Round, generator: torch.Generator) -> None:
        self._generator = generator

    def __call__(self, uploads: Tensor, round_: Round) -> Tensor:
        public = self.public_rows(round_, uploads.device)
        found = self.subspace_of(uploads[public], round_)
        return self.combine(uploads, round_, found)

    def combine(self, uploads: Tensor, round_: Round, onto: Subspace) -> Tensor:
        """The public participants' weighted sum plus the private ones', projected."""
        public = self.public_rows(round_, uploads.device)
        weights = budget_weights(round_).to(uploads)
        update = weights[public] @ uploads[public]
        share = weights[~public].sum()
        if bool(public.all()):
            return update
        mean = (weights[~public] / share) @ uploads[~public]
        return update + share * onto.project(mean[None])[0]

    def subspace_of(self, updates: Tensor, round_: Round) -> Subspace:
        """From the public updates [m, D] of this round."""
        layout = self.setting.layout
        if self.projection == "random":
            return subspace.at_random(updates[0], layout, k=self.k, generator=self._generator)
        if self.rank1:
            weights = torch.as_tensor(round_.budgets[self.public[round_.clients]]).to(updates)
            updates = (weights / weights.sum() @ updates)[None]
        return subspace.of_updates(updates, layout, k=self.k, centred=self.centred)
