"""Who counts as public: the clients with the loosest budgets (PFA section 4.4, client division).

"Public" clients still add noise of their own budgets; the word only says that theirs is the smaller. The
division is made once, over all clients, from their budgets, which the server knows.
"""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedpriv.aggregators.base import Aggregator, public
from fedpriv.errors import UserError
from fedpriv.parts.declarations import ALONE, Wiring
from fedpriv.rounds.setting import Round, Setting

Division = Literal["top", "kmeans", "gmm"]


def public_clients(budgets: np.ndarray, division: Division, fraction: float) -> np.ndarray:
    """Which clients are public, [K] bool: the top fraction, or the cluster around the larger budgets."""
    if division == "top":
        count = max(1, round(fraction * len(budgets)))
        public = np.zeros(len(budgets), dtype=bool)
        public[np.argsort(-budgets, kind="stable")[:count]] = True
        return public
    if len(np.unique(budgets)) < 2:
        raise UserError(
            f"aggregator.division={division}: all budgets are equal, so there are no two groups; choose a "
            "budget that differs between clients, or aggregator.division=top"
        )
    column = budgets[:, None]
    if division == "kmeans":
        from sklearn.cluster import KMeans

        found = KMeans(2, n_init=10, random_state=0).fit(column)
        among: np.ndarray = found.labels_ == found.cluster_centers_[:, 0].argmax()
        return among
    from sklearn.mixture import GaussianMixture

    mixture = GaussianMixture(2, n_init=3, random_state=0).fit(column)
    loosest: np.ndarray = mixture.predict(column) == mixture.means_[:, 0].argmax()
    return loosest


class Divided(Aggregator):
    """An aggregator that needs a public client in every round."""

    facts = public(
        Aggregator.facts, "each client's epsilon, which the server divides and weighs the clients by"
    )

    def __init__(self, *, division: Division = "top", fraction: float = 0.1):
        if not 0 < fraction <= 1:
            raise UserError(f"aggregator.fraction={fraction:g}: must be above 0 and at most 1")
        self.division, self.fraction = division, fraction

    def setup(self, setting: Setting, wiring: Wiring = ALONE) -> None:
        super().setup(setting, wiring)
        self.public = public_clients(setting.budgets, self.division, self.fraction)  # [K]
        if len(np.unique(setting.budgets)) == 1:
            self.remarks = (
                f"all budgets are equal, so which {int(self.public.sum())} clients count as public is "
                "arbitrary; budget=mixgauss1 and others give clients budgets of their own",
            )
        for number, clients in enumerate(setting.schedule or ()):
            if not self.accepts(clients):
                raise UserError(
                    f"participations: round {number + 1} has no public client; raise aggregator.fraction, or "
                    "leave participations=null so that rounds can be drawn again"
                )

    def accepts(self, clients: np.ndarray) -> bool:
        return bool(self.public[clients].any())

    def public_rows(self, round_: Round, device: torch.device) -> Tensor:
        """Which participants are public, [C] bool."""
        return torch.as_tensor(self.public[round_.clients], device=device)
