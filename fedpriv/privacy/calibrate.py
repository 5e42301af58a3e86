"""The least noise that keeps a budget: a root search on the very accountant that will charge the run."""

import math
from collections.abc import Callable

from fedpriv.errors import UserError
from fedpriv.privacy.accountants import RDP, Accountant
from fedpriv.privacy.events import Charge

_LARGEST = 1e5  # noise multipliers above this are no longer a mechanism
_CLOSE = 5e-4  # how far below the budget the epsilon may stay, relatively
_SECANTS = 12


def noise_multiplier(
    charge: Callable[[float], Charge],
    *,
    epsilon: float,
    delta: float,
    count: int,
    accountant: Accountant,
    near: float = 1.0,
) -> float:
    """The smallest sigma (to 0.1 %) with epsilon(charge(sigma) x count) <= epsilon; asserted.

    `near` is where the search begins, such as the answer for a similar budget.
    """

    def excess(sigma: float) -> float:
        return accountant.epsilon(charge(sigma), count, delta) - epsilon

    if count == 0:
        return 0.0
    if not isinstance(accountant, RDP):  # a tighter accountant is slow, and hungry far from the answer
        near = noise_multiplier(charge, epsilon=epsilon, delta=delta, count=count, accountant=RDP())
    sigma = _secant(excess, epsilon, near) or _bracket(excess, near)
    if sigma is None:
        raise UserError(
            f"no noise up to {_LARGEST:g} keeps epsilon={epsilon:g} at delta={delta:g} over {count} "
            "participations; raise epsilon or delta, or lower rounds"
        )
    assert accountant.epsilon(charge(sigma), count, delta) <= epsilon
    return sigma


def _secant(excess: Callable[[float], float], epsilon: float, near: float) -> float | None:
    """Log epsilon is nearly linear in log sigma, so some secants end just below the budget; None: no luck."""
    x, slope, last = math.log(near), -1.0, None
    for _ in range(_SECANTS):
        spent = excess(math.exp(x)) + epsilon
        if not 0 < spent < math.inf:
            return None
        off = math.log(spent / epsilon)
        if -_CLOSE <= off <= 0:
            return math.exp(x)
        if last is not None and x != last[0]:
            slope = min(-0.2, (off - last[1]) / (x - last[0]))
        last = x, off
        x -= max(-3.0, min(3.0, (off + _CLOSE / 2) / slope))
    return None


def _bracket(excess: Callable[[float], float], near: float) -> float | None:
    """Doubling and halving around the answer, then Brent's method; None: it is larger than allowed."""
    low = high = near
    while excess(high) > 0:
        low, high = high, 2 * high
        if high > _LARGEST:
            return None
    while low == high or excess(low) <= 0:
        low, high = low / 2, low
        if low < 1e-3:
            return high  # practically no noise is needed
    from scipy.optimize import brentq  # seldom needed

    sigma = float(brentq(excess, low, high, xtol=1e-3 * low, rtol=1e-3))
    while excess(sigma) > 0:
        sigma *= 1.0005
    return sigma
