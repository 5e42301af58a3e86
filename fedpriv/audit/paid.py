"""Is every release paid for, within the budget, and by an epsilon another accountant confirms?

The run is gone through without training. Charges that are Gaussian are composed again, by the libraries
alone.
"""

import math
import warnings

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant

from fedpriv.audit.finding import Finding, judged, unasked
from fedpriv.audit.noise import quiet
from fedpriv.audit.sampling import rate_of
from fedpriv.audit.taps import Bench
from fedpriv.privacy.events import ORDERS, Charge, Joint, SampledGaussian
from fedpriv.privacy.opacus_maths import compute_rdp, get_privacy_spent
from fedpriv.privacy.skellam import SampledSkellam

_ROUNDS = 400  # that are gone through at most
SLACK = 1e-5  # of arithmetic


def audit(bench: Bench) -> list[Finding]:
    trainer, ledger = bench.trainer, bench.trainer.ledger
    bench.reset()
    taken = np.zeros(trainer.setting.clients, dtype=np.int64)
    went = 0
    with quiet():
        while went < min(_ROUNDS, trainer.setting.rounds) and not trainer.exhausted:
            heard = bench.round(train=False)
            taken[heard.clients] += 1
            went += 1
    everybody = rate_of(bench.charge(0)) is not None and bench.unit == "client"
    owed = np.full(len(taken), went) if everybody else taken
    short = np.flatnonzero(ledger.participations < owed)
    text = f"after {went} rounds nobody has paid for fewer than it owes"
    if len(short):
        k = int(short[0])
        why = "sampling is a secret, so everybody pays every round" if everybody else "it took part as often"
        text = f"client {k} has paid for {ledger.participations[k]} of {owed[k]} rounds: {why}"
    found = [judged("every release is paid for", not len(short), text)]
    spent = ledger.epsilons(ledger.guarantee.claimed, ledger.participations, ())
    over = np.flatnonzero(spent > ledger.budgets * (1 + 1e-6))
    text = f"at most {spent.max():.4g} is spent"
    if len(over):
        k = int(over[0])
        text = (
            f"client {k} has spent {spent[k]:.4g} of a budget of {ledger.budgets[k]:.4g} after {went} rounds"
        )
    found.append(judged("nobody spends more than its budget", not len(over), text))
    if everybody and went < min(_ROUNDS, trainer.setting.rounds):
        text = f"the budget ends after {went} of {trainer.setting.rounds} rounds: the noise is for fewer"
        found.append(judged("the noise is for all rounds", False, text, went, trainer.setting.rounds))
    flawed = [r.what for r in ledger.releases if r.flaws]
    if flawed:
        proved = "nothing" if ledger.guarantee.provable is None else "all"
        text = f"{flawed[0]} has flaws, and {proved} is provable"
        found.append(judged("a flaw ends the proof", ledger.guarantee.provable is None, text))
    return [*found, *_again(bench)]


def _again(bench: Bench) -> list[Finding]:
    """Epsilon by another hand, for the client that has spent most."""
    trainer, ledger = bench.trainer, bench.trainer.ledger
    check = "another accountant agrees"
    if ledger.guarantee.provable is None:
        return [unasked(check, "nothing is provable")]
    counts = np.full(len(ledger.budgets), trainer.wiring.participation.rounds_charged(trainer.setting))
    counts = np.maximum(counts, ledger.participations)
    said = ledger.epsilons(ledger.guarantee.provable, counts, ())
    most = int(np.argmax(said))
    charge = bench.charge(most)
    assert charge is not None
    again = _recomputed(charge, int(counts[most]), ledger.delta, ledger.accountant.name)
    if again is None:
        return [unasked(check, f"there is no other for {', '.join(type(e).__name__ for e in charge)}")]
    text = f"the ledger says {said[most]:.5g} after {counts[most]} rounds, another hand {again:.5g}"
    return [judged(check, said[most] >= again * (1 - SLACK), text, float(said[most]), again)]


def _recomputed(charge: Charge, count: int, delta: float, how: str) -> float | None:
    """Epsilon of Gaussian releases, and a lower bound of Skellam ones; None where there is no other hand."""
    if len(charge) == 1 and isinstance(charge[0], Joint):
        charge, count = charge[0].of(count), 1
    releases = []  # rate, multiplier, how often
    for event in charge:
        if isinstance(event, SampledGaussian):
            releases.append((event.sampling_rate, event.noise_multiplier, event.steps * count))
        elif isinstance(event, SampledSkellam) and event.sampling_rate == 1:
            # No less than the Gaussian mechanism of the same variance.
            releases.append((1.0, math.sqrt(event.variance) / event.l2, count))
        else:
            return None
    if how == "rdp":
        orders = list(ORDERS)
        total = sum(compute_rdp(q=q, noise_multiplier=z, steps=n, orders=orders) for q, z, n in releases)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Optimal order is the")
            return float(get_privacy_spent(orders=orders, rdp=total, delta=delta)[0])
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    for q, z, n in releases:
        one: DpEvent = GaussianDpEvent(z)
        accountant.compose(SelfComposedDpEvent(PoissonSampledDpEvent(q, one) if q < 1 else one, n))
    return float(accountant.get_epsilon(delta)) * 0.99  # losses are rounded up on another grid
