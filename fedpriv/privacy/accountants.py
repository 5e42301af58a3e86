"""From charges to epsilon: Renyi (default) and numerical composition (PRV), both with Opacus's maths."""

import warnings
from typing import Literal

import numpy as np
from opacus.accountants import PRVAccountant
from opacus.accountants.analysis.rdp import get_privacy_spent

from fedpriv.errors import UserError
from fedpriv.privacy.events import ORDERS, Charge, Direct, SampledGaussian
from fedpriv.privacy.shuffling import Reports

Name = Literal["rdp", "prv"]


class Accountant:
    """Composes charges; remembers every answer, for the ledger asks the same ones each round."""

    name: str

    def __init__(self) -> None:
        self._known: dict[tuple[Charge, int, float], float] = {}

    def epsilon(self, charge: Charge, count: int, delta: float) -> float:
        """An upper bound on epsilon after `count` participations that each cost `charge`."""
        if not count or not charge:
            return 0.0
        match charge:
            case (Direct() as direct,):
                return direct.epsilon(count)
            case (Reports() as reports,):
                return reports.epsilon(count, delta)
        key = (charge, count, delta)
        if key not in self._known:
            self._known[key] = self._compose(*key)
        return self._known[key]

    def _compose(self, charge: Charge, count: int, delta: float) -> float:
        raise NotImplementedError


class RDP(Accountant):
    """Renyi differential privacy (Mironov 2017), converted at the best order."""

    name = "rdp"

    def _compose(self, charge: Charge, count: int, delta: float) -> float:
        curve = count * np.sum([event.rdp() for event in charge], axis=0)
        if not np.isfinite(curve).any():
            return float("inf")
        with warnings.catch_warnings():  # the best order at an end of the list only means a looser bound
            warnings.filterwarnings("ignore", message="Optimal order is the")
            return max(0.0, float(get_privacy_spent(orders=list(ORDERS), rdp=curve, delta=delta)[0]))


class PRV(Accountant):
    """Numerical composition of privacy loss random variables (Gopi et al. 2021): tighter and slower."""

    name = "prv"

    def _compose(self, charge: Charge, count: int, delta: float) -> float:
        accountant = PRVAccountant()
        for event in charge:
            if not isinstance(event, SampledGaussian):
                raise UserError(
                    f"accountant=prv composes only Gaussian releases, not {type(event).__name__}; "
                    "use accountant=rdp"
                )
            if event.noise_multiplier == 0:
                return float("inf")
            accountant.history.append((event.noise_multiplier, event.sampling_rate, event.steps * count))
        with np.errstate(divide="ignore"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Optimal order is the")  # of its starting guess
            return float(accountant.get_epsilon(delta=delta))


def create(name: Name) -> Accountant:
    accountants: dict[str, type[Accountant]] = {"rdp": RDP, "prv": PRV}
    return accountants[name]()
