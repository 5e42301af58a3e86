"""Are clients and samples drawn as the charge says: each on its own, and no more often?

Amplification by Poisson sampling rests on both. Over many rounds and keys: how often each is drawn, how the
number of those drawn varies, and that nothing public follows it.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import binom, chi2

from fedpriv.audit.finding import Finding, judged, unasked
from fedpriv.audit.taps import Bench
from fedpriv.privacy.events import Charge

UNLIKELY = 1e-8  # a chance below is no chance
DRAWS = 600  # rounds or keys


def rate_of(charge: Charge | None) -> float | None:
    """The sampling rate a charge rests on; None: on none."""
    rates = [getattr(event, "sampling_rate", 1.0) for event in charge or ()]
    return min(rates) if rates and min(rates) < 1 else None


def audit(bench: Bench) -> list[Finding]:
    charges = [bench.charge(k) for k in range(bench.trainer.setting.clients)]
    rates = [rate_of(charge) for charge in charges]
    if all(rate is None for rate in rates):
        return [unasked("drawn as charged", "what is charged rests on no sampling")]
    if bench.unit == "client":
        return _clients(bench, rates)
    return _samples(bench, rates)


def _clients(bench: Bench, rates: Sequence[float | None]) -> list[Finding]:
    """Who takes part, over rounds and keys."""
    able, trainer = bench.everyone(), bench.trainer
    drawn = np.zeros((2 * DRAWS, trainer.setting.clients))
    divisors = set()
    for number in range(2 * DRAWS):
        key, round_ = (number, 0) if number < DRAWS else (0, number)
        bench.reset(key, min(round_, trainer.setting.rounds - 1))
        trainer.ledger.eligible = lambda: able  # type: ignore[method-assign]
        try:
            clients, expected = trainer._participants(round_)
        finally:
            del trainer.ledger.eligible
        drawn[number, clients] = 1
        divisors.add(float(expected))
    rate = max(r for r in rates if r is not None)
    found = _judged(drawn, np.full(drawn.shape[1], rate), "client", "clients")
    if trainer.wiring.participation.secret:
        text = f"the sum is divided by {len(divisors)} numbers, such as {sorted(divisors)[:3]}"
        found.append(judged("the divisor tells nothing", len(divisors) == 1, text, len(divisors), 1))
    return found


def _samples(bench: Bench, rates: Sequence[float | None]) -> list[Finding]:
    """Whose samples are in which batch of a client, over rounds and keys."""
    able, trainer = bench.everyone(), bench.trainer
    bench.reset()
    who = bench.round(able=able, train=False).clients
    client = next((int(k) for k in who if rates[k] is not None), None)
    if client is None:
        return [unasked("drawn as charged", "nobody whose charge rests on sampling took part")]
    size, rounds = int(trainer.setting.sizes[client]), trainer.setting.rounds
    drawn: list[np.ndarray] = []
    only = np.zeros_like(able)
    only[who] = True
    for number in range(DRAWS // 8):
        bench.reset(number, number % min(rounds, 3))
        heard = bench.round(able=able, train=False)
        if client not in heard.clients or not heard.works:
            continue
        position = heard.clients.tolist().index(client)
        plan = heard.works[-1].plan.rows(slice(position, position + 1))
        for step in range(min(plan.index.shape[1], 8)):
            if bool(plan.active[0, step]):
                batch = np.zeros(size)
                batch[plan.index[0, step, : int(plan.size[0, step])].numpy()] = 1
                drawn.append(batch)
    rate = rates[client]
    assert rate is not None
    return _judged(np.stack(drawn), np.full(size, rate), f"sample of client {client}", "samples")


def _judged(drawn: np.ndarray, rates: np.ndarray, one: str, many: str) -> list[Finding]:
    """Of draws [n, m] at `rates` [m]: how often, and how their number varies."""
    n, m = drawn.shape
    often = float(drawn.mean())
    chance = float(binom.sf(drawn.sum() - 1, n * m, rates.mean()))
    each = binom.sf(drawn.sum(0) - 1, n, rates) * m
    worst = int(each.argmin())
    varies = m * rates.mean() * (1 - rates.mean())
    spread = float(drawn.sum(1).var(ddof=1)) / varies if varies else 1.0
    # The number drawn is nearly normal where it varies by more than one; below, its kurtosis widens the law.
    freedom = (n - 1) / (1 + 1 / (2 * max(varies, 0.5)))
    odd = 2 * min(chi2.cdf(spread * freedom, freedom), chi2.sf(spread * freedom, freedom)) if varies else 1.0
    rare = f"{one} number {worst} was drawn {int(drawn[:, worst].sum())} of {n} times"
    return [
        judged(
            f"{many} are drawn no more often than charged",
            min(chance, float(each[worst])) > UNLIKELY,
            f"at {often:.4g}, charged {rates.mean():.4g}; {rare}",
            often,
            float(rates.mean()),
        ),
        judged(
            f"{many} are drawn each on its own",
            odd > UNLIKELY,
            f"how many are drawn varies by {spread:.3g} of what independent draws give",
            math.sqrt(spread),
            None,
        ),
    ]
