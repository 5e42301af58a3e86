"""`audit one-run`: a lower bound on epsilon from one training run (Steinke, Nasr and Jagielski 2023).

Each of m canaries takes part if a coin says so. After the run each gets a score, the highest are guessed to
have been in and the lowest to have been out, and on the rest the auditor abstains. If the run were
(epsilon, delta)-DP, of r guesses v or more would be right with a chance of at most

  beta + 2 m delta max_i (chance that Binomial(r, e^epsilon / (1 + e^epsilon)) lies in [v - i, v)) / i

(their Theorem 5.2), beta the chance that this binomial is v or more. The largest epsilon that this rejects at
5 % is a bound. How many to guess is chosen by the result, so each of the numbers tried has its part of the
5 %. Where m delta is not small, a smaller delta is asked about, against what is provable at that one.

Unit sample: a canary is a sample whose clipped gradient is a direction of its own, as long as the clipping
bound, in the batches its own Poisson draws put it in. It is added to what the engine gives, so noise,
aggregation and everything behind are the run's own. The clients' own samples are left out, for whoever knows
them would subtract them. Unit client: a canary is a client that sends a
direction of its own, far longer than any bound, or nothing (where neighbours replace data: the opposite).
Runs on other canaries and keys may be added up, for each canary is in one of them only.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor

from fedpriv.audit.finding import Result
from fedpriv.audit.sampling import rate_of
from fedpriv.audit.steps import emptied
from fedpriv.audit.taps import Bench
from fedpriv.engine.data import ClientData
from fedpriv.engine.work import Rows, Trained, Work
from fedpriv.errors import UserError
from fedpriv.privacy.ledger import Ledger
from fedpriv.randomness.source import generator, numpy_generator
from fedpriv.rounds.setting import Round
from fedpriv.session.screen import Notes, number

CONFIDENCE = 0.95
FRACTIONS = (0.02, 0.05, 0.1, 0.2, 0.5)  # of the canaries guessed to be in, and as many to be out
LEAST = 20  # canaries: with five right guesses of five nothing above 0.2 can be said


def largest_epsilon(canaries: int, guesses: int, right: int, delta: float, chance: float) -> float:
    """The largest epsilon under which so many right guesses are rarer than `chance`; 0 if none is."""
    low, high = 0.0, 1.0
    if _likely(canaries, guesses, right, 0.0, delta) > chance:
        return 0.0
    while _likely(canaries, guesses, right, high, delta) <= chance and high < 64:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        if _likely(canaries, guesses, right, middle, delta) <= chance:
            low = middle
        else:
            high = middle
    return low


def _likely(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """The chance of so many right guesses, at most, of an (epsilon, delta)-DP run."""
    if right == 0:
        return 1.0
    each = 1 / (1 + math.exp(-epsilon))
    beta = float(binom.sf(right - 1, guesses, each))
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, each))  # of [v - i, v), i = 1...
    alpha = float((below / np.arange(1, right + 1)).max())
    return min(1.0, beta + 2 * canaries * delta * alpha)


@dataclass(frozen=True)
class Guessed:
    epsilon: float
    guesses: int
    right: int


def bound(scores: np.ndarray, included: np.ndarray, delta: float) -> Guessed:
    """The best of several numbers of guesses, each at its part of the confidence."""
    order, count = np.argsort(scores, kind="stable"), len(scores)
    tried = sorted({max(1, round(f * count)) for f in FRACTIONS if round(f * count) <= count // 2})
    best = Guessed(0.0, 0, 0)
    for k in tried:
        right = int(included[order[-k:]].sum() + (~included[order[:k]]).sum())
        found = largest_epsilon(count, 2 * k, right, delta, (1 - CONFIDENCE) / len(tried))
        if found > best.epsilon or not best.guesses:
            best = Guessed(found, 2 * k, right)
    return best


def delta_for(canaries: int, delta: float) -> float:
    """At which delta to ask: a larger one would drown so many canaries (2 m delta is a chance)."""
    return min(delta, 0.01 / canaries)


def promised(bench: Bench, delta: float | None = None) -> tuple[float | None, float | None]:
    """The largest provable and claimed epsilon of the whole run, at its delta or another; None: nothing is
    provable."""
    ledger: Ledger = copy.copy(bench.trainer.ledger)
    ledger.delta = ledger.delta if delta is None else delta
    counts = np.full(
        len(ledger.budgets), bench.trainer.wiring.participation.rounds_charged(bench.trainer.setting)
    )
    counts = np.maximum(counts, ledger.participations)
    values = ledger.provable(counts).max(), ledger.claimed(counts).max()
    provable, claimed = (float(v) if np.isfinite(v) else None for v in values)
    return provable, claimed


# -- samples


class Planted:
    """An engine that adds canaries' clipped gradients to what another one trains."""

    def __init__(self, bench: Bench, each: int, number: int):
        self.engine, self.bench = bench.trainer.engine, bench
        setting = bench.trainer.setting
        draw = numpy_generator(bench.seed, "audit canaries", number)
        self.included = draw.random((setting.clients, each)) < 0.5
        self.draw = draw
        width = setting.layout.sent
        if each > width:
            raise UserError(
                f"canaries={each * setting.clients}: the model has {width} weights; ask for fewer canaries"
            )
        plain = torch.randn(width, each, generator=generator(bench.seed, "audit directions", number))
        self.directions = torch.linalg.qr(plain)[0].T.contiguous()  # [each, D], orthonormal
        rates = [rate_of(bench.charge(k)) for k in range(setting.clients)]
        self.rates = np.array([1.0 if r is None else r for r in rates])
        self.mean, self.variance = np.zeros((2, setting.clients))  # of a canary's trace, and of its noise

    def groups(self, work: Work, data: ClientData) -> list[Rows]:
        return self.engine.groups(work, data)

    def train(self, work: Work, data: ClientData, groups: Sequence[Rows] | None = None) -> Trained:
        private = work.private
        if private is None:
            return self.engine.train(work, data, groups)
        done = self.engine.train(emptied(work), data, groups)
        for position, client in enumerate(work.clients.tolist()):
            steps = int(work.plan.active[position].sum())
            drawn = self.draw.random((steps, self.included.shape[1])) < self.rates[client]
            lr = np.asarray(work.lr[:steps])
            amount = (drawn * lr[:, None]).sum(0) * self.included[client]
            moves = torch.as_tensor(amount * private.clip_norm / private.lot).to(self.directions)
            work.rows[position, : self.directions.shape[1]] -= (moves @ self.directions).to(work.rows)
            self.mean[client] += self.rates[client] * lr.sum() * private.clip_norm / private.lot
            std = float(private.noise_std[position]) / private.lot
            self.variance[client] += (lr**2).sum() * std**2
        return done

    def evidence(self, traces: np.ndarray) -> np.ndarray:
        """Of traces [K, each] the logarithm of the odds, nearly: clients with much noise tell little."""
        mean, variance = self.mean[:, None], self.variance[:, None]
        return np.asarray(
            np.divide((traces - mean / 2) * mean, variance, out=traces.copy(), where=variance > 0)
        )

    @property
    def device(self) -> torch.device:
        return self.engine.device


def of_samples(bench: Bench, canaries: int, view: str) -> tuple[np.ndarray, np.ndarray, str]:
    """Scores and coins of canaries spread evenly over the clients."""
    trainer, setting = bench.trainer, bench.trainer.setting
    each = -(-canaries // setting.clients)
    bench.reset(1000)
    planted = Planted(bench, each, 0)
    scores = np.zeros((setting.clients, each))
    rounds = setting.rounds
    notes = Notes("audit one-run: round", rounds)
    hidden = trainer.upload.facts.mixes != "nothing"
    start = trainer.theta.clone()
    for done in range(rounds):
        if trainer.exhausted:
            break
        heard = bench.round(engine=planted)  # type: ignore[arg-type]
        assert heard.received is not None
        if view == "server" and not hidden:
            seen = -(heard.received[:, : setting.layout.sent].to(planted.directions) @ planted.directions.T)
            scores[heard.clients] += seen.double().numpy()
        notes.show(done + 1)
    if view == "server" and not hidden:
        scores = planted.evidence(scores)
    else:
        scores += -(planted.directions @ (trainer.theta - start).to(planted.directions)).double().numpy()
        view = "models"
    return scores.flatten(), planted.included.flatten(), view


# -- clients


class Senders:
    """Clients that send a direction of their own, or nothing, by a coin."""

    def __init__(self, bench: Bench, who: np.ndarray, number: int):
        draw = numpy_generator(bench.seed, "audit coins", number)
        self.who, self.number, self.seed = who, number, bench.seed
        self.included = draw.random(len(who)) < 0.5
        self.opposite = bench.trainer.mechanism.facts.replaces
        self._made: Tensor | None = None

    def directions(self, width: int) -> Tensor:
        """[n, width], of length one."""
        if self._made is None:
            made = torch.randn(
                len(self.who), width, generator=generator(self.seed, "audit senders", self.number)
            )
            self._made = made / made.norm(dim=1, keepdim=True)
        return self._made

    def __call__(self, made: Tensor, round_: Round) -> Tensor:
        out = made.clone()
        directions = self.directions(made.shape[1]).to(made)
        for position, client in enumerate(round_.clients.tolist()):
            if client in self._place:
                n = self._place[client]
                sign = 1.0 if self.included[n] else (-1.0 if self.opposite else 0.0)
                out[position] = sign * 1e4 * directions[n]
        return out

    def able(self, bench: Bench) -> np.ndarray | None:
        """Where neighbours are told by absence, who is not included is not there."""
        trainer = bench.trainer
        if self.opposite or not trainer.mechanism.facts.participation.secret:
            return None
        there = trainer.ledger.eligible().copy()
        there[self.who[~self.included]] = False
        return there

    @property
    def _place(self) -> dict[int, int]:
        return {int(c): n for n, c in enumerate(self.who)}


def of_clients(bench: Bench, canaries: int, view: str) -> tuple[np.ndarray, np.ndarray, str]:
    """The same for clients: half of them at a time, in as many runs as it takes."""
    setting = bench.trainer.setting
    half = max(1, setting.clients // 2)
    passes = -(-canaries // half)
    scores, coins = [], []
    notes = Notes("audit one-run: run", passes)
    rows = bench.trainer.upload.facts.mixes == "nothing" and view == "server"
    for done in range(passes):
        draw = numpy_generator(bench.seed, "audit who", done)
        who = np.sort(draw.permutation(setting.clients)[:half])
        bench.reset(2000 + done)
        senders = Senders(bench, who, done)
        start, total = bench.trainer.theta.clone(), np.zeros(half)
        for _ in range(setting.rounds):
            if bench.trainer.exhausted:
                break
            heard = bench.round(messages=senders, able=senders.able(bench), train=False)
            if rows and bench.trainer.mechanism.facts.replaces:
                assert heard.received is not None and heard.messages is not None
                at = {int(c): p for p, c in enumerate(heard.clients)}
                for n, client in enumerate(who):
                    if int(client) in at:
                        row = heard.received[at[int(client)]].to(senders.directions(heard.received.shape[1]))
                        total[n] += float(row @ senders.directions(len(row))[n])
        if not (rows and bench.trainer.mechanism.facts.replaces):
            moved = (bench.trainer.theta - start)[: setting.layout.sent]
            total = (
                (senders.directions(len(moved)) @ moved.to(senders.directions(len(moved)))).double().numpy()
            )
        scores.append(total)
        coins.append(senders.included)
        notes.show(done + 1)
    seen = "server" if rows and bench.trainer.mechanism.facts.replaces else "models"
    return np.concatenate(scores), np.concatenate(coins), seen


def audit(bench: Bench, canaries: int, view: str) -> Result:
    if bench.unit == "none":
        return Result("one-run", "no differential privacy is promised (unit none): any bound is allowed")
    if canaries < LEAST:
        raise UserError(f"canaries={canaries}: too few for any bound; ask for {LEAST} or more, better 1000")
    of = of_samples if bench.unit == "sample" else of_clients
    scores, included, seen = of(bench, canaries, view)
    if not scores.any():
        return Result("one-run", "no canary left a trace: nobody took part")
    stated = bench.trainer.ledger.delta
    delta = delta_for(len(scores), stated)
    best = bound(scores, included, delta)
    provable = promised(bench, delta)[0]
    whole, claimed = promised(bench)
    says = (
        f"{best.right} of {best.guesses} guesses about {len(scores)} canary {bench.unit}s were right: at "
        f"95 % and delta {delta:.2g} epsilon is at least {best.epsilon:.2f} in the view of the {seen}"
    )
    if delta < stated:
        says += f" ({number(provable)} is provable there, {number(whole)} at delta {stated:g})"
    details = {
        "canaries": len(scores),
        "guesses": best.guesses,
        "right": best.right,
        "view": seen,
        "delta": delta,
        "provable_at_the_runs_delta": whole,
        "confidence": CONFIDENCE,
        "most_that_could_be_shown": most(len(scores), delta),
        "scores_in": scores[included].tolist()[:2000],
        "scores_out": scores[~included].tolist()[:2000],
    }
    return Result("one-run", says, bound=best.epsilon, against=provable, claimed=claimed, details=details)


def most(canaries: int, delta: float) -> float:
    """The bound if every guess were right."""
    coins = np.arange(canaries) < canaries // 2
    return bound(np.where(coins, 1.0, -1.0) + np.linspace(0, 0.1, canaries), coins, delta).epsilon
