"""What distributed noise costs, against either observer."""

import math

from fedpriv.mechanisms.ddp import DDP
from fedpriv.privacy.ledger import Ledger
from tests.helpers.settings import setting


def observed(against, epsilon=8.0, clients=100, rate=0.1, rounds=50):
    facts = setting(clients=clients, rounds=rounds, rate=rate, epsilon=epsilon)
    mechanism = DDP(clip_norm=1.0, against=against)
    guarantee = mechanism.setup(facts)
    return mechanism, facts, Ledger(guarantee, facts.budgets, facts.delta, facts.accountant)


def rdp_epsilon(curve, count, delta):
    """At the best whole order (Canonne, Kamath and Steinke 2020, Proposition 12)."""
    orders = range(2, 20)
    return min(
        count * curve(a) + math.log1p(-1 / a) - (math.log(delta) + math.log(a)) / (a - 1) for a in orders
    )
