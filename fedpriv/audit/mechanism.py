"""`audit mechanism`: one round on one neighbouring pair under many fresh keys, and what can be told apart.

Half of the keys choose a threshold for the score, which is the projection of the release onto the direction
the two neighbours differ in; the other half gives the two rates at that threshold, each with a
Clopper-Pearson interval, and epsilon is at least log((lower - delta) / upper), of both sides the larger.
Events that come or not leak too and are counted alike: a round that releases nothing, and how wide its noise
is. Where every weight is answered at random on its own, all weights of all keys are counted, against the
epsilon of one answer.

A bound on one round, held against what one round is charged.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.stats import beta
from torch import Tensor

from fedpriv.audit import steps
from fedpriv.audit.finding import Finding, Result, judged
from fedpriv.audit.noise import quiet
from fedpriv.audit.taps import Bench, Heard
from fedpriv.audit.worst import Worst
from fedpriv.privacy.events import Charge, SampledGaussian
from fedpriv.privacy.shuffling import Reports
from fedpriv.rounds.setting import Round
from fedpriv.session.screen import Notes

LEVEL = 1e-3  # of a false alarm of one bound: several are asked
LEAST = 40  # draws: one half of 12, all told apart, shows nothing yet
_TOGETHER = 1000  # weights of one noisy sum that are looked at


def clopper_pearson(hits: int, count: int, level: float) -> tuple[float, float]:
    """The interval of a rate, one side at a time at `level`."""
    low = 0.0 if hits == 0 else float(beta.ppf(level, hits, count - hits + 1))
    high = 1.0 if hits == count else float(beta.ppf(1 - level, hits + 1, count - hits))
    return low, high


def lower_bound(ones: int, zeros: int, count: int, delta: float, level: float = LEVEL) -> float:
    """Epsilon is at least this, an event having come `ones` and `zeros` times of `count` on the two sides."""
    best = 0.0
    for a, b in ((ones, zeros), (zeros, ones), (count - ones, count - zeros), (count - zeros, count - ones)):
        low, high = clopper_pearson(a, count, level / 4)[0], clopper_pearson(b, count, level / 4)[1]
        if low > delta and high > 0:
            best = max(best, math.log((low - delta) / high))
    return best


def told_apart(one: np.ndarray, other: np.ndarray, delta: float) -> float:
    """Of scores on the two sides: threshold from the first half, bound from the second."""
    half = len(one) // 2
    best, at = -1.0, 0.0
    for threshold in np.quantile(np.concatenate([one[:half], other[:half]]), np.linspace(0.02, 0.98, 49)):
        hits = int((one[:half] > threshold).sum()), int((other[:half] > threshold).sum())
        found = lower_bound(*hits, half, delta)
        if found > best:
            best, at = found, float(threshold)
    return lower_bound(int((one[half:] > at).sum()), int((other[half:] > at).sum()), len(one) - half, delta)


def one_round(bench: Bench, client: int) -> float | None:
    """The provable epsilon of one round."""
    charge = bench.charge(client)
    if charge is None:
        return None
    trainer = bench.trainer
    return trainer.ledger.accountant.epsilon(charge, 1, trainer.ledger.delta)


def audit(bench: Bench, draws: int) -> Result:
    kind = "mechanism"
    if bench.unit == "none":
        return Result(kind, "no differential privacy is promised (unit none): any bound is allowed")
    bench.reset()
    heard = bench.round(messages=Worst(bench, "large"), able=bench.everyone(), train=False)
    client = int(heard.clients[0]) if len(heard.clients) else 0
    charge = bench.charge(client)
    if charge and isinstance(charge[0], Reports):
        return _answers(bench, client, charge[0], max(4, draws // 50))
    if heard.works and heard.works[-1].private is not None:
        return _step(bench, client, charge, heard, draws)
    return _rounds(bench, client, draws)


def _step(bench: Bench, client: int, charge: Charge | None, heard: Heard, draws: int) -> Result:
    """One local step: a sample of the longest gradient, there or not, drawn or not."""
    work, data = steps.part_of(heard.works[-1], [client], most=1), heard.data[-1]
    private, empty = work.private, steps.emptied(work)
    assert private is not None
    event = charge[0] if charge else None
    rate = event.sampling_rate if isinstance(event, SampledGaussian) else 1.0
    draw = np.random.default_rng(bench.seed)
    many = min(work.rows.shape[1], _TOGETHER)
    scores: list[list[np.ndarray]] = [[], []]
    for number in range(-(-draws // many)):
        for side in (0, 1):
            # Canaries whose clipped gradient is one weight's: that weight is all they change.
            own = None if private.noise is None else private.noise.of("audit", side, number)
            rows = steps.released(
                bench.trainer.engine, replace(empty, private=replace(private, noise=own)), data
            )
            there = (draw.random(many) < rate) * float(side == 0)
            places = draw.choice(rows.shape[2], many, replace=False)
            scores[side].append(
                rows[0, 0, torch.as_tensor(places)].double().numpy() + there * private.clip_norm
            )
    delta = bench.trainer.ledger.delta
    one, other = (np.concatenate(s) for s in scores)
    best, allowed = told_apart(one, other, delta), None
    if isinstance(event, SampledGaussian):
        allowed = bench.trainer.ledger.accountant.epsilon((replace(event, steps=1),), 1, delta)
    says = f"one local step {len(one):,} times: epsilon of a step is at least {best:.2f}{_of(allowed)}"
    found = _held("one step", best, allowed)
    return Result("mechanism", says, found, bound=best, against=allowed, details={"draws": len(one)})


def _of(allowed: float | None) -> str:
    return "; nothing is provable of it" if allowed is None else f", provable {allowed:.3g}"


def _held(what: str, best: float, allowed: float | None) -> tuple[Finding, ...]:
    if allowed is None:
        return ()
    return (
        judged(
            f"told apart: {what}",
            best <= allowed,
            f"at least {best:.3f}, charged {allowed:.3f}",
            best,
            allowed,
        ),
    )


class _Few:
    """Everybody sends nothing, but one client."""

    def __init__(self, client: int, row: Tensor):
        self.client, self.row = client, row

    def __call__(self, made: Tensor, round_: Round) -> Tensor:
        out = torch.zeros_like(made)
        for position in np.flatnonzero(round_.clients == self.client):
            out[int(position)] = self.row.to(made)
        return out


def _rounds(bench: Bench, client: int, draws: int) -> Result:
    """Whole rounds with a client, and with its neighbour, under fresh keys."""
    facts, delta = bench.trainer.mechanism.facts, bench.trainer.ledger.delta
    row = Worst(bench, "large").of(client, bench.trainer.setting.layout.sent) * 1e4
    able, fewer = bench.everyone(), bench.everyone()
    still = -row if facts.replaces else 0 * row
    if facts.participation.secret:
        fewer[client] = False
    sides = ((_Few(client, row), able), (_Few(client, still), fewer))
    direction = _direction(bench, client, sides)
    scores: list[list[float]] = [[], []]
    silent, widths = [0, 0], [[], []]  # type: ignore[var-annotated]
    notes = Notes("audit mechanism: key", draws)
    for number in range(draws):
        for side, (messages, who) in enumerate(sides):
            bench.reset(10_000 + 2 * number + side)
            heard = bench.round(messages=messages, able=who, train=False)
            seen = _seen(bench, heard, client)
            if seen is None or len(seen) != len(direction):
                scores[side].append(0.0)
                silent[side] += 1
                continue
            scores[side].append(float(seen.double() @ direction))
            silent[side] += int(not bool(seen.any()))
            rest = seen.double() - direction * float(seen.double() @ direction)
            widths[side].append(float(rest.norm()))
        notes.show(number + 1)
    allowed = one_round(bench, client)
    best = told_apart(np.array(scores[0]), np.array(scores[1]), delta)
    events = lower_bound(silent[0], silent[1], draws, delta)
    short = min(len(widths[0]), len(widths[1]))
    wide = told_apart(np.array(widths[0][:short]), np.array(widths[1][:short]), delta) if short >= 40 else 0.0
    found = [
        *_held("the release", best, allowed),
        *_held("whether anything is released", events, allowed),
        *_held("how wide the noise is", wide, allowed),
    ]
    best = max(best, events, wide)
    says = f"one round under {draws} keys: epsilon of a round is at least {best:.2f}{_of(allowed)}"
    return Result("mechanism", says, tuple(found), bound=best, against=allowed, details={"draws": draws})


def _direction(bench: Bench, client: int, sides: Any) -> Tensor:
    """The unit vector the two neighbours differ in without noise, or zero."""
    for key in range(64):  # until the client takes part
        pair = []
        for messages, who in sides:
            bench.reset(9000 + key)
            with quiet():
                pair.append(_seen(bench, bench.round(messages=messages, able=who, train=False), client))
        if pair[0] is not None and pair[1] is not None and not torch.equal(pair[0], pair[1]):
            change: Tensor = (pair[0] - pair[1]).double()
            unit: Tensor = change / change.norm()
            return unit
    return torch.zeros_like(pair[0] if pair[0] is not None else torch.zeros(1)).double()


def _seen(bench: Bench, heard: Heard, client: int) -> Tensor | None:
    """What the observer of the guarantee gets of a round."""
    if bench.trainer.mechanism.facts.sends in ("models", "answers"):
        if heard.private is None or client not in heard.clients:
            return None
        return heard.private[heard.clients.tolist().index(client)]
    return heard.update


def _answers(bench: Bench, client: int, charge: Reports, draws: int) -> Result:
    """Every weight is answered on its own: the highest answers of both ends of the range are counted."""
    width, counts, total = bench.trainer.setting.layout.sent, [0, 0], 0
    ends = (torch.full((width,), 1e6), torch.full((width,), -1e6))
    for number in range(draws):
        for side, row in enumerate(ends):
            bench.reset(20_000 + 2 * number + side)
            heard = bench.round(messages=_Few(client, row), able=bench.everyone(), train=False)
            if client not in heard.clients:
                break
            assert heard.private is not None
            answers = heard.private[heard.clients.tolist().index(client)]
            counts[side] += int((answers > (answers.max() + answers.min()) / 2).sum())
            total += width * (side == 0)
    best = lower_bound(counts[0], counts[1], max(1, total), 0.0)
    says = (
        f"{total:,} answers of either kind: epsilon of one answer is at least {best:.4f}, charged "
        f"{charge.local:g}; a client gives {charge.number:,} in a round"
    )
    found = (
        judged(
            "an answer leans as charged",
            best <= charge.local,
            f"at least {best:.4f} of {charge.local:g}",
            best,
            charge.local,
        ),
    )
    return Result("mechanism", says, found, bound=best, against=charge.local, details={"answers": total})
