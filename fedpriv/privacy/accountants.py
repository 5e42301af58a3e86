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
_LITTLE = 0.02  # times the sensitivity: below, PRV's grid would take all memory


class Accountant:
    """Composes charges; remembers every answer, for the ledger asks the same ones each round."""

    name: str

    def __init__(self) -> None:
        self._known: dict[tuple[Charge, int, float, Charge], float] = {}

    def epsilon(self, charge: Charge, count: int, delta: float, once: Charge = ()) -> float:
        """An upper bound on epsilon after `count` participations at `charge` each, and `once` before."""
        charge = charge if count else ()
        if not charge and not once:
            return 0.0
        share = delta / 2 if once else delta  # what has no curve composes by addition, of deltas too
        match charge:
            # A stated epsilon stays as it is at any delta: it may need one, so the release has only half.
            case (Direct() as direct,):
                return direct.epsilon(count) + self.epsilon((), 0, share, once)
            case (Reports() as reports,):
                return reports.epsilon(count, share) + self.epsilon((), 0, share, once)
        key = (charge, count, delta, once)
        if key not in self._known:
            self._known[key] = self._compose(*key)
        return self._known[key]

    def _compose(self, charge: Charge, count: int, delta: float, once: Charge) -> float:
        raise NotImplementedError


class RDP(Accountant):
    """Renyi differential privacy (Mironov 2017), converted at the best order."""

    name = "rdp"

    def _compose(self, charge: Charge, count: int, delta: float, once: Charge) -> float:
        curve = np.zeros(len(ORDERS))
        for event, times in [*((e, count) for e in charge), *((e, 1) for e in once)]:
            curve = curve + times * event.rdp()
        if not np.isfinite(curve).any():
            return float("inf")
        with warnings.catch_warnings():  # the best order at an end of the list only means a looser bound
            warnings.filterwarnings("ignore", message="Optimal order is the")
            return max(0.0, float(get_privacy_spent(orders=list(ORDERS), rdp=curve, delta=delta)[0]))


class PRV(Accountant):
    """Numerical composition of privacy loss random variables (Gopi et al. 2021): tighter and slower."""

    name = "prv"

    def _compose(self, charge: Charge, count: int, delta: float, once: Charge) -> float:
        accountant = PRVAccountant()
        for event, times in [*((e, count) for e in charge), *((e, 1) for e in once)]:
            if not isinstance(event, SampledGaussian):
                raise UserError(
                    f"accountant=prv composes only Gaussian releases, not {type(event).__name__}; "
                    "use accountant=rdp"
                )
            if event.noise_multiplier == 0:
                return float("inf")
            if event.noise_multiplier < _LITTLE:
                raise UserError(
                    f"accountant=prv cannot compose a release with as little noise as "
                    f"{event.noise_multiplier:.2g} times its sensitivity; use accountant=rdp"
                )
            accountant.history.append((event.noise_multiplier, event.sampling_rate, event.steps * times))
        with np.errstate(divide="ignore"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Optimal order is the")  # of its starting guess
            return float(accountant.get_epsilon(delta=delta))


def create(name: Name) -> Accountant:
    accountants: dict[str, type[Accountant]] = {"rdp": RDP, "prv": PRV}
    return accountants[name]()
