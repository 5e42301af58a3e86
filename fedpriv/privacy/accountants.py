"""From charges to epsilon: Renyi (default) and PRV with Opacus's maths, PLD with dp-accounting's."""

import warnings
from functools import cache
from typing import Any, Literal

import numpy as np

from fedpriv.errors import UserError
from fedpriv.privacy.events import ORDERS, Charge, Direct, Joint, SampledGaussian
from fedpriv.privacy.opacus_maths import ALPHAS, get_privacy_spent, prv
from fedpriv.privacy.shuffling import Reports

Name = Literal["rdp", "prv", "pld"]
_ALPHAS = list(ALPHAS)  # with which ORDERS begins
_LITTLE = 0.02  # times the sensitivity: below, PRV's grid would take all memory
_STEP, _FINEST = 1e-4, 1e-5  # of PLD's grid of losses: this part of epsilon, but not below


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
            case (Joint() as joint,):
                return self.epsilon(joint.of(count), 1, delta, once)
            case (Reports() as reports,):
                return reports.epsilon(count, share) + self.epsilon((), 0, share, once)
        key = (charge, count, delta, once)
        if key not in self._known:
            left = delta - beyond(charge, count) - beyond(once, 1)
            self._known[key] = self._compose(charge, count, left, once) if left > 0 else float("inf")
        return self._known[key]

    def _compose(self, charge: Charge, count: int, delta: float, once: Charge) -> float:
        raise NotImplementedError


def beyond(charge: Charge, count: int) -> float:
    """The delta that the ends of noise drawn in floats take over `count` participations."""
    match charge:
        case (Joint() as joint,):
            return beyond(joint.of(count), 1) if count else 0.0
    return count * sum(event.beyond() for event in charge if isinstance(event, SampledGaussian))


def curve_of(charge: Charge, count: int, once: Charge = ()) -> np.ndarray:
    """The Renyi divergences at ORDERS of `count` participations and what is sent once."""
    match charge:
        case (Joint() as joint,):
            return curve_of(joint.of(count) if count else (), 1, once)
    curve = np.zeros(len(ORDERS))
    for event, times in [*((e, count) for e in charge), *((e, 1) for e in once)]:
        curve = curve + times * event.rdp()
    return curve


class RDP(Accountant):
    """Renyi differential privacy (Mironov 2017), converted at the best order."""

    name = "rdp"

    def _compose(self, charge: Charge, count: int, delta: float, once: Charge) -> float:
        return self.convert(curve_of(charge, count, once), delta)

    @staticmethod
    def convert(curve: np.ndarray, delta: float) -> float:
        """Epsilon at the best of ORDERS."""
        if not np.isfinite(curve).any():
            return float("inf")
        with warnings.catch_warnings():  # the best order at an end of the list only means a looser bound
            warnings.filterwarnings("ignore", message="Optimal order is the")
            return max(0.0, float(get_privacy_spent(orders=list(ORDERS), rdp=curve, delta=delta)[0]))


class PRV(Accountant):
    """Numerical composition of privacy loss random variables (Gopi et al. 2021): tighter and slower."""

    name = "prv"

    def _compose(self, charge: Charge, count: int, delta: float, once: Charge) -> float:
        accountant = _prv_accountant()()
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


@cache
def _prv_accountant() -> Any:
    """Opacus's accountant, which spends most of its time on the Renyi curve of a step to size its grid. The
    curve is the same for any count, so here it is remembered (events.py)."""
    accountant, domain = prv()

    def bound(rdp: np.ndarray, delta: float) -> float:
        return float(get_privacy_spent(orders=_ALPHAS, rdp=rdp, delta=delta)[0])

    class Remembering(accountant):  # type: ignore[misc, valid-type]
        def _get_domain(
            self, prvs: list[Any], num_self_compositions: list[int], eps_error: float, delta_error: float
        ) -> Any:
            counts, total = num_self_compositions, sum(num_self_compositions)
            steps = (SampledGaussian(prv.sample_rate, prv.noise_multiplier) for prv in prvs)
            curves = [step.rdp()[: len(_ALPHAS)] for step in steps]
            sizes = [bound(np.dot(counts, curves), delta_error / 4)]
            sizes += [bound(curve, delta_error / (8 * total)) for curve in curves]
            half = max(*sizes, eps_error) + 3
            step = eps_error / np.sqrt(total * np.log(12 / delta_error) / 2)
            return domain.create_aligned(-half, half, step)

    return Remembering


class PLD(Accountant):
    """Composition of privacy loss distributions by dp-accounting: tighter and slower.

    Losses are rounded up on a grid, so this is an upper bound too. The grid's step follows epsilon:
    one step for all would take minutes where there is little noise.
    """

    name = "pld"

    def _compose(self, charge: Charge, count: int, delta: float, once: Charge) -> float:
        events = [(e, e.known(), times) for part, times in ((charge, count), (once, 1)) for e in part]
        for event, known, _ in events:
            if known is None:
                raise UserError(
                    f"accountant=pld has no loss distribution of a {type(event).__name__}; use accountant=rdp"
                )
        about = RDP().epsilon(charge, count, delta, once)
        if not np.isfinite(about):
            return about
        from dp_accounting import SelfComposedDpEvent
        from dp_accounting.pld import PLDAccountant

        accountant = PLDAccountant(value_discretization_interval=max(_FINEST, _STEP * about))
        try:
            for _, known, times in events:
                accountant.compose(SelfComposedDpEvent(known, times))
            return float(accountant.get_epsilon(delta))
        except OverflowError as problem:  # exponentials of losses that leave the floats
            raise UserError(
                f"accountant=pld cannot compose as little noise as makes epsilon {about:.2g}; use "
                "accountant=rdp"
            ) from problem


ACCOUNTANTS: dict[str, type[Accountant]] = {a.name: a for a in (RDP, PRV, PLD)}


def create(name: Name) -> Accountant:
    return ACCOUNTANTS[name]()
