"""Unit sample: local steps with and without one sample, and that nothing but the steps depends on it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedpriv.audit import steps
from fedpriv.audit.finding import Finding, judged, unasked, worst_of
from fedpriv.audit.fresh import fresh, no_less
from fedpriv.audit.moves import Largest, Seen, entries, multiplier
from fedpriv.audit.noise import quiet
from fedpriv.audit.spread import Noise, moved
from fedpriv.audit.taps import Bench
from fedpriv.engine.base import Engine
from fedpriv.engine.data import ClientData
from fedpriv.engine.work import Rows, Trained, Work
from fedpriv.privacy.events import SampledGaussian


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


def audit(bench: Bench, choices: int) -> list[Finding]:
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
            acts = one[0].plan.active.cpu()  # [C, S]; a client with few samples idles in the last steps
            own, text = Noise.of(loud[acts[0], 0]), f"sample {place} of client {client} ({style})"
            if k < 2:
                empty = steps.emptied(one[0])
                with quiet():
                    bare = steps.released(engine, empty, one[1])
                alone = steps.released(engine, empty, one[1]) - bare
                found += no_less(alone, loud, f"round {number + 1}, empty batches")
                with quiet():
                    single = steps.released(engine, steps.alone(one[0], place), one[1])
                if z is not None:
                    here = f"round {number + 1}, step 1, {text}, alone in its batch"
                    move.see(moved(single[0, 0] - bare[0, 0], own).times(z), here)
                noise_rows += list(loud.flatten(0, 1))
                names += [
                    f"round {number + 1}, step {s + 1}, client {c}" for s in range(len(loud)) for c in near
                ]
            if z is None:
                continue
            for step in range(own.rows):
                here = f"round {number + 1}, step {step + 1}, {text}"
                change = a[step, 0] - b[step, 0]
                move.see(moved(change, own).times(z), here)
                seen.append(Seen(int(kinds[client]), z, change, own if step == 0 else None, here))
            theirs = Noise.of(loud[acts[-1], -1])
            for step in range(theirs.rows if len(near) > 1 else 0):
                here = f"round {number + 1}, step {step + 1}, {text}"
                others.see(moved(a[step, 1] - b[step, 1], theirs).times(1e3 * z), here)
        bench.reset(0, number + 1, after)
    move.pool(seen)
    if multiplier(bench.charge(0)) is None:
        found.append(unasked(move.check, "what is charged is no single Gaussian, or nothing is provable"))
    else:
        found.append(move.finding(entries(bench)))
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
    found += fresh(noise_rows, names, _other_key(bench, able))
    return worst_of(found)


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
