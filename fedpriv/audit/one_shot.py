"""`audit one-shot`: an estimate of epsilon from canary clients (Andrew et al. 2023). It proves nothing.

A canary client sends a random direction, scaled so that its clipping bound is what is left. Directions are so
many that they are nearly orthogonal, so without a canary the cosine between what the models moved by and its
direction would be N(0, 1 / d), d the number of weights. A normal law is fitted to the cosines of the canaries
that were there, and epsilon is that of telling these two apart at the run's delta.
"""

import math

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from fedpriv.audit.finding import Result
from fedpriv.audit.one_run import Senders, promised
from fedpriv.audit.taps import Bench
from fedpriv.errors import UserError
from fedpriv.randomness.source import numpy_generator
from fedpriv.session.screen import Notes

LEAST = 20
_RESAMPLES = 40
MOST = 200.0  # epsilon above which nobody asks


def epsilon(mean: float, std: float, null: float, delta: float) -> float:
    """Of telling N(mean, std^2) from N(0, null^2) apart, the larger of both directions."""

    def exceeds(value: float) -> float:
        return max(_delta(value, mean, std, 0.0, null), _delta(value, 0.0, null, mean, std)) - delta

    if exceeds(0.0) <= 0:
        return 0.0
    return MOST if exceeds(MOST) > 0 else float(brentq(exceeds, 0.0, MOST, xtol=1e-4))


def spread(values: np.ndarray, null: float, delta: float, seed: int) -> float:
    """The deviation of an estimate from so many cosines: of estimates from draws among them (bootstrap)."""
    draw = numpy_generator(seed, "audit spread")
    found = []
    for _ in range(_RESAMPLES):
        some = draw.choice(values, len(values))
        found.append(epsilon(float(some.mean()), max(float(some.std(ddof=1)), 1e-3 * null), null, delta))
    return float(np.std(found, ddof=1))


def _delta(value: float, m1: float, s1: float, m2: float, s2: float) -> float:
    """P1(loss > value) - e^value P2(loss > value) of two normal laws, by the roots of a quadratic."""
    # log p1 - log p2 > value  <=>  a x^2 + b x + c > 0
    a = (1 / s2**2 - 1 / s1**2) / 2
    b = m1 / s1**2 - m2 / s2**2
    c = (m2**2 / s2**2 - m1**2 / s1**2) / 2 + math.log(s2 / s1) - value
    if abs(a) < 1e-12 * max(1.0, abs(b)):
        if b == 0:
            return 0.0
        edges = [(-c / b, math.inf)] if b > 0 else [(-math.inf, -c / b)]
    else:
        root = b * b - 4 * a * c
        if root < 0:
            edges = [(-math.inf, math.inf)] if a > 0 else []
        else:
            low, high = sorted(((-b - math.sqrt(root)) / (2 * a), (-b + math.sqrt(root)) / (2 * a)))
            edges = [(-math.inf, low), (high, math.inf)] if a > 0 else [(low, high)]

    def mass(mean: float, std: float) -> float:
        return sum(float(norm.cdf((y - mean) / std) - norm.cdf((x - mean) / std)) for x, y in edges)

    return mass(m1, s1) - math.exp(min(value, 700.0)) * mass(m2, s2)


def audit(bench: Bench, canaries: int) -> Result:
    kind = "one-shot"
    if bench.unit == "none":
        return Result(kind, "no differential privacy is promised (unit none): any estimate is allowed")
    if bench.unit == "sample":
        return Result(
            kind, "canary clients have no meaning where samples are protected (unit sample); use one-run"
        )
    if canaries < LEAST:
        raise UserError(f"canaries={canaries}: too few to fit a law to; ask for {LEAST} or more")
    trainer, setting = bench.trainer, bench.trainer.setting
    half = max(1, setting.clients // 2)
    passes, width = -(-canaries // half), setting.layout.sent
    cosines: list[float] = []
    notes = Notes("audit one-shot: run", passes)
    for number in range(passes):
        draw = numpy_generator(bench.seed, "audit shot", number)
        who = np.sort(draw.permutation(setting.clients)[:half])
        bench.reset(5000 + number)
        senders = Senders(bench, who, 10_000 + number)
        senders.included[:] = True
        start = trainer.theta.clone()
        there = np.zeros(half, dtype=bool)
        for _ in range(setting.rounds):
            if trainer.exhausted:
                break
            heard = bench.round(messages=senders, train=False)
            there |= np.isin(who, heard.clients)
        moved = (trainer.theta - start).double()
        directions = senders.directions(width).double()
        found = (directions @ moved / moved.norm().clamp(min=1e-30)).numpy()
        cosines += found[there].tolist()
        notes.show(number + 1)
    values, null = np.array(cosines), 1 / math.sqrt(width)
    if len(values) < LEAST:
        return Result(kind, f"only {len(values)} canary clients ever took part: too few for an estimate")
    mean, std = float(values.mean()), max(float(values.std(ddof=1)), 1e-3 * null)
    provable, claimed = promised(bench)
    estimate = epsilon(mean, std, null, trainer.ledger.delta)
    error = spread(values, null, trainer.ledger.delta, bench.seed)
    says = (
        f"an estimate, no bound: epsilon about {estimate:.2f}, give or take {error:.2f}, from the cosines of "
        f"{len(values)} canary clients in {passes} runs (mean {mean / null:.2f}, deviation {std / null:.2f} "
        "of the null's)"
    )
    details = {
        "canaries": len(values),
        "runs": passes,
        "mean": mean / null,
        "deviation": std / null,
        "error": error,
    }
    return Result(
        kind, says, bound=estimate, is_bound=False, against=provable, claimed=claimed, details=details
    )
