"""`audit sensitivity`: is what is released moved by one sample or client no more than its noise is for?

Keys are fixed and noise is off, so everything here is exact up to rounding: one sample (unit sample) or
client (unit client) is taken out, in many choices and with the worst data there are, and the move of what is
released is compared with its noise. The noise is what the same release has with noise on, less that. A
release is charged as a sum of sensitivity one and noise of deviation z, so z times (move / noise) is at most
1. Then: is the noise of rounds, clients, steps, tensors and keys uncorrelated? Is what is drawn drawn as
charged (sampling.py), are keys and rows of noise used once (keys.py), and is it all paid for (paid.py)?

Where the release is depends on where the noise is: in the local steps, in what leaves a client, in the sum of
shares, or on the server. What comes after must depend on the data through it alone.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedpriv.audit import keys, paid, sampling, shared, steps
from fedpriv.audit.finding import Finding, Result, judged, unasked
from fedpriv.audit.spread import ROUNDING, SURE, Moved, alike, moved, tensor_at, together, within
from fedpriv.audit.taps import Bench, Heard, Messages, quiet
from fedpriv.engine.base import Engine
from fedpriv.engine.data import ClientData
from fedpriv.engine.work import Rows, Trained, Work
from fedpriv.privacy.events import Charge, SampledGaussian
from fedpriv.privacy.skellam import SampledSkellam
from fedpriv.randomness.source import generator
from fedpriv.rounds.setting import Round
from fedpriv.session.screen import Notes
from fedpriv.uploads.secure_sum import centred

KINDS = ("large", "overflow", "one weight", "small")  # of messages
_STATES = 200  # keys, where a mechanism's own numbers are released too


def audit(bench: Bench, choices: int = 24) -> Result:
    """All of it, for any composition."""
    guarantee = bench.trainer.ledger.guarantee
    if bench.unit == "none":
        says = "no differential privacy is promised (unit none): any move is allowed, nothing to check"
        return Result("sensitivity", says, (unasked("sensitivity", says),))
    found: list[Finding] = []
    notes = Notes("audit sensitivity: step", 5)
    parts: list[Callable[[], list[Finding]]] = [
        lambda: keys.audit(bench),
        lambda: sampling.audit(bench),
        lambda: of_samples(bench, choices) if _in_steps(bench) else of_clients(bench, choices),
        lambda: paid.audit(bench),
        lambda: shared.audit(bench),
    ]
    for number, part in enumerate(parts, 1):
        found += part()
        notes.show(number)
    wrong = [f for f in found if f.verdict == "VIOLATED"]
    passed = sum(f.verdict == "passed" for f in found)
    says = f"{passed} checks passed" if not wrong else f"{len(wrong)} of {passed + len(wrong)} checks failed"
    if guarantee.provable is None:
        says += "; nothing is called provable of this run, so its noise is held against nothing"
    largest = max(
        (f.measured for f in found if f.check.startswith("move") and f.measured is not None), default=None
    )
    return Result("sensitivity", says, tuple(found), details={"largest_move_over_bound": largest})


def _in_steps(bench: Bench) -> bool:
    """Whether local training itself adds the noise."""
    if bench.unit != "sample":
        return False
    bench.reset()
    heard = bench.round(train=False, able=bench.everyone())
    return bool(heard.works) and heard.works[-1].private is not None


def multiplier(charge: Charge | None) -> float | None:
    """Deviation of the noise over the largest move that is charged, or None where that is not said."""
    if charge is None or not charge:
        return None
    if all(isinstance(e, SampledGaussian) for e in charge):
        return 1 / math.sqrt(sum(e.noise_multiplier**-2 for e in charge if isinstance(e, SampledGaussian)))
    if len(charge) == 1 and isinstance(charge[0], SampledSkellam):
        return math.sqrt(charge[0].variance) / charge[0].l2
    return None


def _entries(bench: Bench) -> list[tuple[str, int, int]]:
    return [(e.name, e.start, e.stop) for e in bench.trainer.setting.layout.entries]


@dataclass(frozen=True)
class Seen:
    """One change [P], noise beside it [n, P], and what else moved."""

    kind: int  # of charge
    z: float
    change: Tensor
    noise: Tensor
    text: str
    more: Moved | None = None


@dataclass
class Largest:
    """The largest move over its bound seen so far, and what it was."""

    check: str
    found: Moved = field(default_factory=lambda: Moved(0.0, 0.0, 0))
    text: str = "nothing moved"

    def see(self, new: Moved, text: str) -> None:
        if new.least > self.found.least:
            self.found, self.text = new, text

    def pool(self, seen: list["Seen"]) -> None:
        """Every change again, against the noise of all that is charged alike."""
        for kind in {s.kind for s in seen}:
            alike_ = [s for s in seen if s.kind == kind]
            noise = torch.cat([s.noise for s in alike_])
            for s in alike_:
                here = moved(s.change, noise)
                self.see((here if s.more is None else together(here, s.more)).times(s.z), s.text)

    def finding(self, entries: list[tuple[str, int, int]]) -> Finding:
        good = self.found.least <= 1 + ROUNDING
        where = f", most in {tensor_at(entries, self.found.where)}" if entries and self.found.length else ""
        error = f" (error {self.found.error:.2g})" if self.found.error else ""
        text = f"{self.found.length:.4g} times its bound{error}: {self.text}{where}"
        return judged(self.check, good, text, self.found.length, 1.0)


# -- one sample


class Replay:
    """An engine that gives what another one gave."""

    def __init__(self, rows: Tensor, buffers: Tensor, loss: Tensor):
        self.rows, self.buffers, self.loss = rows, buffers, loss

    def groups(self, work: Work, data: ClientData) -> list[Rows]:
        return [slice(0, len(work.clients))]

    def train(self, work: Work, data: ClientData, groups: Sequence[Rows] | None = None) -> Trained:
        work.rows.copy_(self.rows)
        work.buffers.copy_(self.buffers)
        return Trained(self.loss)


class Keeping:
    """An engine that remembers what it gave."""

    def __init__(self, engine: Engine):
        self.engine = engine

    def groups(self, work: Work, data: ClientData) -> list[Rows]:
        return self.engine.groups(work, data)

    def train(self, work: Work, data: ClientData, groups: Sequence[Rows] | None = None) -> Trained:
        done = self.engine.train(work, data, groups)
        self.last = Replay(work.rows.clone(), work.buffers.clone(), done.loss.clone())
        return done


def of_samples(bench: Bench, choices: int) -> list[Finding]:
    """Local steps with and without one sample."""
    able, draw = bench.everyone(), np.random.default_rng(bench.seed)
    move, noise_rows, names = Largest("move of a local step"), [], []
    seen: list[Seen] = []
    kinds = bench.trainer.ledger.guarantee.kinds
    others = Largest("move of other clients' steps")
    found: list[Finding] = []
    passes_by, counted = "", ""
    bench.reset()
    for number in range(min(2, bench.trainer.setting.rounds)):
        state = bench.state()
        keeping = Keeping(bench.trainer.engine)
        whole = bench.round(able=able, engine=keeping)  # type: ignore[arg-type]
        after, work, data = bench.state(), whole.works[-1], whole.data[-1]
        for k in range(-(-choices // 2)):
            client, place = _chosen(work, draw)
            charge = bench.charge(client)
            z = multiplier(charge)
            event = charge[0] if charge else None
            taken = int(work.plan.active[work.clients.tolist().index(client)].sum())
            if isinstance(event, SampledGaussian) and taken > event.steps:
                counted = f"client {client} takes {taken} local steps a round, {event.steps} are charged"
            bench.reset(0, number, state)
            with bench.without_sample(client, place):
                fewer = bench.round(able=able, engine=keeping.last)  # type: ignore[arg-type]
            assert whole.theta is not None and fewer.theta is not None
            if not torch.equal(whole.theta, fewer.theta):
                passes_by = (
                    f"round {number + 1}: without sample {place} of client {client} the model is another"
                )
            near = [client, *(int(c) for c in work.clients.tolist() if c != client)][:2]
            style = ("as it is", "scaled by 50", "overflowing")[k % 3]
            one, two = (
                (steps.part_of(w, near), _crafted(d, w, client, place, data, style))
                for w, d in ((work, data), (fewer.works[-1], fewer.data[-1]))
            )
            engine = bench.trainer.engine
            with quiet():
                a, b = (steps.released(engine, *pair) for pair in (one, two))
            loud = steps.released(engine, *one) - a  # [S, C, P]
            if k < 2:
                empty = steps.emptied(one[0])
                with quiet():
                    bare = steps.released(engine, empty, one[1])
                alone = steps.released(engine, empty, one[1]) - bare
                found += _no_less(alone, loud, f"round {number + 1}, empty batches")
                noise_rows += list(loud.flatten(0, 1))
                names += [
                    f"round {number + 1}, step {s + 1}, client {c}" for s in range(len(loud)) for c in near
                ]
            if z is None:
                continue
            for step in range(len(a)):
                text = f"round {number + 1}, step {step + 1}, sample {place} of client {client} ({style})"
                change = a[step, 0] - b[step, 0]
                move.see(moved(change, loud[:, 0]).times(z), text)
                own = loud[:, 0] if step == 0 else loud[:0, 0]
                seen.append(Seen(int(kinds[client]), z, change, own, text))
                if len(near) > 1:
                    others.see(moved(a[step, 1] - b[step, 1], loud[:, 1]).times(1e3 * z), text)
        bench.reset(0, number + 1, after)
    move.pool(seen)
    if multiplier(bench.charge(0)) is None:
        found.append(unasked(move.check, "what is charged is no single Gaussian, or nothing is provable"))
    else:
        found.append(move.finding(_entries(bench)))
        found.append(_nobody_else(others))
    found.append(
        judged(
            "nothing passes the mechanism by",
            not passes_by,
            passes_by or "the model follows from the steps alone",
        )
    )
    found.append(
        judged("steps are counted", not counted, counted or "no client takes more steps than are charged")
    )
    found += _fresh(noise_rows, names, bench, _other_key(bench, able))
    return _once(found)


def _nobody_else(others: Largest) -> Finding:
    """One client's sample moves others by less than a thousandth of the bound: rounding."""
    good = others.found.least <= 1
    text = "one's sample moves nobody else's steps" if good else f"others move: {others.text}"
    return judged(others.check, good, text, others.found.length / 1e3, 1e-3)


def _other_key(bench: Bench, able: np.ndarray) -> tuple[Tensor, str] | None:
    """The noise of one client's steps under another key."""
    bench.reset(1)
    heard = bench.round(able=able, train=False)
    if not len(heard.clients):
        return None
    one = steps.part_of(heard.works[-1], [int(heard.clients[0])]), heard.data[-1]
    with quiet():
        bare = steps.released(bench.trainer.engine, *one)
    loud = steps.released(bench.trainer.engine, *one) - bare
    return loud[:, 0], f"another key, client {heard.clients[0]}"


def _chosen(work: Work, draw: np.random.Generator) -> tuple[int, int]:
    """A participant, and the place of a sample that is in its first batches, if any is."""
    position = int(draw.integers(len(work.clients)))
    plan = work.plan.rows(slice(position, position + 1))
    first = range(min(steps.STEPS, plan.index.shape[1]))
    drawn = [int(p) for t in first for p in plan.index[0, t, : int(plan.size[0, t])]]
    return int(work.clients[position]), int(draw.choice(drawn)) if drawn else 0


def _crafted(
    data: ClientData, work: Work, client: int, place: int, whole: ClientData, style: str
) -> ClientData:
    """The data with one sample as bad as it can be, so that its gradient is long, or overflows."""
    if style == "as it is" or not data.x.is_floating_point():
        return data
    x = data.x.clone()
    x[whole.owned[client, place]] *= 50 if style.startswith("scaled") else 1e30
    return replace(data, x=x)


def _no_less(noise: Tensor, usual: Tensor, what: str) -> list[Finding]:
    """Noise [S, C, P] of a special case is as wide as the usual one."""
    have, want = (float(t.double().square().mean().sqrt()) for t in (noise, usual))
    error = SURE / math.sqrt(noise.numel())
    text = f"{what}: noise of deviation {have:.4g}, elsewhere {want:.4g}"
    return [judged("empty batches are noised alike", have >= want * (1 - error), text, have, want)]


def _once(found: list[Finding]) -> list[Finding]:
    """Of checks that were made several times the worst, in order."""
    kept: dict[str, Finding] = {}
    for one in found:
        if one.check not in kept or one.verdict == "VIOLATED":
            kept[one.check] = one
    return list(kept.values())


def _fresh(
    rows: list[Tensor], names: list[str], bench: Bench, other: tuple[Tensor, str] | None
) -> list[Finding]:
    """No noise is like another: of rounds, clients, steps and keys, nor of parts of one row."""
    if not rows:
        return [unasked("noise is fresh", "there is none to compare")]
    if other is not None:
        rows = [*rows, *other[0]]
        names = [*names, *(f"{other[1]}, {i + 1}" for i in range(len(other[0])))]
    unlike: dict[str, Tensor] = {}
    for name, row in zip(names, rows, strict=True):  # a client may have been chosen twice
        unlike.setdefault(name, row)
    table = torch.stack(list(unlike.values()))
    if not bool(table.any()):
        return [judged("noise is fresh", False, "there is no noise at all", 0.0)]
    between, inside = alike(table, list(unlike)), within(table[0])
    text = f"largest correlation {between.value:.3f} between {' and '.join(between.pair)}"
    parts = f"largest correlation {inside.value:.3f} between {' and '.join(inside.pair)}"
    return [
        judged(
            "noise of rounds, clients, steps and keys is fresh",
            not between.found,
            text,
            between.value,
            between.most,
        ),
        judged("noise of tensors is fresh", not inside.found, parts, inside.value, inside.most),
    ]


# -- one client


class Worst:
    """Messages as a client could send them at worst, each client's its own, whoever else is there."""

    def __init__(self, bench: Bench, kind: str, changed: int | None = None, factor: float = 1.0):
        self.seed, self.kind, self.changed, self.factor = bench.seed, kind, changed, factor
        self._kept: dict[tuple[int, int], Tensor] = {}

    def __call__(self, made: Tensor, round_: Round) -> Tensor:
        return (
            torch.stack([self.of(int(c), made.shape[1]) for c in round_.clients]).to(made)
            if len(made)
            else made
        )

    def of(self, client: int, width: int) -> Tensor:
        if (client, width) not in self._kept:
            row = torch.randn(width, generator=generator(self.seed, "audit", client))
            if client == self.changed:
                row = _worst(row, self.kind) * self.factor
            self._kept[client, width] = row
        return self._kept[client, width]


def _worst(row: Tensor, kind: str) -> Tensor:
    if kind == "large":
        return row * 1e3
    if kind == "overflow":
        row = row * 1e30
        row[0], row[-1] = torch.inf, torch.nan
        return row
    if kind == "one weight":
        return torch.zeros_like(row).index_fill_(0, torch.tensor([len(row) // 2]), 1e6)
    return row * 1e-3


def where_released(bench: Bench, heard: Heard, bare: Heard) -> str:
    """What the guarantee is about: "sum" of shares, "uploads" that have noise, or the server's "update"."""
    if bench.trainer.mechanism.facts.sends == "shares":
        return "sum"
    assert heard.private is not None and bare.private is not None
    same = torch.equal(heard.private.nan_to_num(), bare.private.nan_to_num())
    drawn_anyway = bench.trainer.mechanism.facts.sends == "answers"
    return "update" if same and not drawn_anyway else "uploads"


def of_clients(bench: Bench, choices: int) -> list[Finding]:
    """What is released with and without one client, or with its message replaced."""
    setting = bench.trainer.setting
    able = bench.everyone()
    bench.reset()
    with quiet():
        bare = bench.round(messages=Worst(bench, "large"), able=able, train=False)
    bench.reset()
    loud = bench.round(messages=Worst(bench, "large"), able=able, train=False)
    place = where_released(bench, loud, bare)
    found = [] if place != "sum" else _masked(bench)
    if place == "uploads" and not _additive(loud, bare):
        return [*found, *_answers(bench)]
    move, rows, names = Largest(f"move of {_WORDS[place]}"), [], []
    seen: list[Seen] = []
    draw = np.random.default_rng(bench.seed)
    assert loud.state is not None and bare.state is not None
    released_too = place == "update" and not torch.equal(loud.state, bare.state)
    states = _state_noise(bench, able) if released_too else None
    z0 = multiplier(bench.charge(0))
    for number in range(choices):
        kind, round_ = KINDS[number % len(KINDS)], int(draw.integers(min(4, setting.rounds)))
        key = number % 3
        bench.reset(key, round_)
        with quiet():
            whole = bench.round(messages=Worst(bench, "small"), able=able, train=False)
        if not len(whole.clients):
            continue
        client = int(draw.choice(whole.clients))
        pair = [_neighbour(bench, client, kind, side, key, round_) for side in (0, 1)]
        bench.reset(key, round_)
        noisy = bench.round(messages=Worst(bench, kind, client), able=able, train=False)
        noise = _release(noisy, client, place, bench) - _release(pair[0], client, place, bench)
        change = _release(pair[0], client, place, bench) - _release(pair[1], client, place, bench)
        if place == "sum":
            noise, change = (_centred(t, bench) for t in (noise, change))
        z = multiplier(bench.charge(client))
        text = f"round {round_ + 1}, client {client}, a message that is {kind}"
        if number < 12 and noise.numel():
            rows.append(noise[0])
            names.append(f"round {round_ + 1}, key {key}, client {client if place == 'uploads' else 'any'}")
        if z is None:
            continue
        if place == "sum":
            found += _integers(bench, client, noise, change, text)
        here, more = moved(change[0], noise), None
        if states is not None:
            assert pair[0].state is not None and pair[1].state is not None
            more = moved(pair[0].state - pair[1].state, states)
        move.see((here if more is None else together(here, more)).times(z), text)
        if bool(noise.any()):  # a round that was refused has none, and moves nothing
            kind_of_charge = int(bench.trainer.ledger.guarantee.kinds[client])
            seen.append(Seen(kind_of_charge, z, change[0], noise, text, more))
    move.pool(seen)
    if z0 is None:
        found.append(unasked(move.check, "what is charged is no single Gaussian, or nothing is provable"))
    else:
        found.append(move.finding([] if place == "sum" else _entries(bench)))
    if place == "uploads":
        rows, names = _all_uploads(bench, able)
    found += _fresh(rows, names, bench, None)
    found += _others_train_alike(bench)
    return _once(found)


_WORDS = {"sum": "the sum of shares", "uploads": "what leaves a client", "update": "the server's update"}


def _neighbour(bench: Bench, client: int, kind: str, side: int, key: int, round_: int) -> Heard:
    """Without noise: the client with such a message, or its neighbour: gone, silent or opposite."""
    facts, able = bench.trainer.mechanism.facts, bench.everyone()
    messages: Messages = Worst(bench, kind, client)
    if side:
        if facts.replaces:
            messages = Worst(bench, kind, client, -1.0)
        elif facts.participation.secret:
            able[client] = False
        else:
            messages = Worst(bench, "small", client, 0.0)  # that it takes part is known: it counts as zero
    bench.reset(key, round_)
    with quiet():
        return bench.round(messages=messages, able=able, train=False)


def _release(heard: Heard, client: int, place: str, bench: Bench) -> Tensor:
    """What is released, [1, P], or nothing."""
    if place == "update":
        assert heard.update is not None
        return heard.update[None].double()
    if place == "sum":
        assert heard.received is not None
        return (
            heard.received[:1]
            if len(heard.received)
            else heard.received.new_zeros(1, heard.received.shape[1])
        )
    assert heard.private is not None
    position = heard.clients.tolist().index(client)
    return heard.private[position : position + 1].double()


def _centred(values: Tensor, bench: Bench) -> Tensor:
    bits = bench.trainer.mechanism.facts.bits
    return values if bits is None else centred(values.to(torch.int64), bits)


def _integers(bench: Bench, client: int, noise: Tensor, change: Tensor, text: str) -> list[Finding]:
    """Shares are integers, and charged by their own norms: these are exact."""
    charge = bench.charge(client)
    if charge is None or not isinstance(charge[0], SampledSkellam):
        return []
    event, whole = charge[0], change.double()
    l2, l1 = float(whole.norm()), float(whole.abs().sum())
    if not bool(noise.any()) and l2 == 0.0:
        return []  # a round that was refused
    have, error = float(noise.double().square().mean()), SURE * math.sqrt(2 / noise.numel())
    return [
        judged(
            "L2 norm of the integers",
            l2 <= event.l2 * (1 + 1e-9),
            f"{l2:.6g} of {event.l2:.6g}: {text}",
            l2,
            event.l2,
        ),
        judged(
            "L1 norm of the integers",
            l1 <= event.l1 * (1 + 1e-9),
            f"{l1:.6g} of {event.l1:.6g}: {text}",
            l1,
            event.l1,
        ),
        judged(
            "variance of the sum's noise",
            have >= event.variance * (1 - error),
            f"{have:.5g}, charged {event.variance:.5g}: {text}",
            have,
            event.variance,
        ),
    ]


def _state_noise(bench: Bench, able: np.ndarray) -> Tensor:
    """The noise of the numbers a mechanism goes on with, over many keys, [n, s]."""
    found, messages = [], Worst(bench, "small")
    for key in range(_STATES):
        pair = []
        for silent in (True, False):
            bench.reset(100 + key)
            if silent:
                with quiet():
                    pair.append(bench.round(messages=messages, able=able, train=False).state)
            else:
                pair.append(bench.round(messages=messages, able=able, train=False).state)
        assert pair[0] is not None and pair[1] is not None
        found.append(pair[1] - pair[0])
    return torch.stack(found)


def _all_uploads(bench: Bench, able: np.ndarray) -> tuple[list[Tensor], list[str]]:
    """The noise of what several clients send in two rounds and under two keys."""
    rows, names, messages = [], [], Worst(bench, "small")
    for key, round_ in ((0, 0), (0, min(1, bench.trainer.setting.rounds - 1)), (1, 0)):
        pair = []
        for silent in (True, False):
            bench.reset(key, round_)
            if silent:
                with quiet():
                    pair.append(bench.round(messages=messages, able=able, train=False))
            else:
                pair.append(bench.round(messages=messages, able=able, train=False))
        assert pair[0].private is not None and pair[1].private is not None
        for position, client in enumerate(pair[0].clients[:4]):
            rows.append((pair[1].private[position] - pair[0].private[position]).double())
            names.append(f"round {round_ + 1}, key {key}, client {client}")
    return rows, names


def _additive(loud: Heard, bare: Heard) -> bool:
    """Whether what leaves a client is a value plus noise, and no answer from a few."""
    assert loud.private is not None and bare.private is not None
    return len(loud.private[:1].unique()) > 16 and not torch.equal(loud.private, bare.private)


def _answers(bench: Bench) -> list[Finding]:
    """Answers at random: how far they lean is `audit mechanism`'s; here whether they are drawn afresh."""
    able, made = bench.everyone(), []
    for number in range(12):
        bench.reset(number)
        heard = bench.round(messages=lambda m, r: 0 * m, able=able, train=False)
        assert heard.private is not None
        made.append({int(c): row.double() for c, row in zip(heard.clients, heard.private, strict=True)})
    common = sorted(set.intersection(*(set(m) for m in made)))[:4]
    found = [
        unasked(
            "move of what leaves a client", "it is answered at random; `audit mechanism` counts the answers"
        )
    ]
    if not common:
        return found
    table = torch.stack([torch.stack([m[c] for c in common]) for m in made])  # [keys, clients, D]
    rest = table - table.mean(0)
    if not bool(rest.any()):
        return [*found, judged("noise is fresh", False, "answers are the same under every key", 0.0)]
    names = [f"client {c}" for c in common]
    between = alike(rest.transpose(0, 1).flatten(1), names)
    text = f"largest correlation {between.value:.3f} between {' and '.join(between.pair)}"
    return [
        *found,
        judged("answers of clients are fresh", not between.found, text, between.value, between.most),
    ]


def _masked(bench: Bench) -> list[Finding]:
    """A single share must not be among what reaches the server."""
    bench.reset()
    heard = bench.round(messages=Worst(bench, "small"), able=bench.everyone(), train=False)
    if bench.trainer.upload.facts.sum_only:
        return [unasked("single shares are hidden", "the sum is ideal: single shares do not exist")]
    assert heard.private is not None
    tensors = (
        [v for v in vars(heard.sent).values() if isinstance(v, Tensor)]
        if hasattr(heard.sent, "__dict__")
        else []
    )
    shares = {tuple(row.tolist()) for row in heard.private}
    seen = len(heard.clients) > 1 and any(
        tuple(row.tolist()) in shares for t in tensors if t.dim() == 2 for row in t.to(heard.private.dtype)
    )
    text = "the server is sent a client's share as it is" if seen else "no share reaches the server as it is"
    return [judged("single shares are hidden", not seen, text)]


def _others_train_alike(bench: Bench) -> list[Finding]:
    """With real training: what others send does not depend on who is absent."""
    if bench.trainer.setting.clients < 2:
        return []
    able = bench.everyone()
    bench.reset()
    whole = bench.round(able=able)
    if len(whole.clients) < 2 or not bench.trainer.mechanism.facts.participation.secret:
        return []
    gone = int(whole.clients[len(whole.clients) // 2])
    able[gone] = False
    bench.reset()
    fewer = bench.round(able=able)
    assert whole.messages is not None and fewer.messages is not None
    rest = torch.as_tensor(whole.clients != gone)
    if not np.array_equal(whole.clients[rest.numpy()], fewer.clients):
        return [judged("others train alike", False, f"without client {gone} other clients take part")]
    apart = float(
        (whole.messages[rest] - fewer.messages).norm() / whole.messages[rest].norm().clamp(min=1e-30)
    )
    text = f"without client {gone} the others' messages move by {apart:.2g} of their length"
    return [judged("others train alike", apart <= ROUNDING, text, apart, ROUNDING)]
