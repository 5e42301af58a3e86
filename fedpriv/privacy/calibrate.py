"""The least noise that keeps a budget: a root search on the very accountant that will charge the run."""

from collections.abc import Callable

from scipy.optimize import brentq

from fedpriv.errors import UserError
from fedpriv.privacy.accountants import RDP, Accountant
from fedpriv.privacy.events import Charge

_LARGEST = 1e5  # noise multipliers above this are no longer a mechanism


def noise_multiplier(
    charge: Callable[[float], Charge], *, epsilon: float, delta: float, count: int, accountant: Accountant
) -> float:
    """The smallest sigma (to 0.1 %) with epsilon(charge(sigma) x count) <= epsilon; asserted."""

    def excess(sigma: float) -> float:
        return accountant.epsilon(charge(sigma), count, delta) - epsilon

    if count == 0:
        return 0.0
    start = 1.0
    if not isinstance(accountant, RDP):  # a tighter accountant is slow, and hungry far from the answer
        start = noise_multiplier(charge, epsilon=epsilon, delta=delta, count=count, accountant=RDP())
    low = high = start
    while excess(high) > 0:
        low, high = high, 2 * high
        if high > _LARGEST:
            raise UserError(
                f"no noise up to {_LARGEST:g} keeps epsilon={epsilon:g} at delta={delta:g} over {count} "
                "participations; raise epsilon or delta, or lower rounds"
            )
    while low == high or excess(low) <= 0:
        low, high = low / 2, low
        if low < 1e-3:
            return high  # practically no noise is needed
    sigma = float(brentq(excess, low, high, xtol=1e-3 * low, rtol=1e-3))
    while excess(sigma) > 0:
        sigma *= 1.0005
    assert accountant.epsilon(charge(sigma), count, delta) <= epsilon
    return sigma
