"""Faults put into the package, each of a kind that has been there or could be: the matrix finds every one."""

import pytest
import torch

from fedpriv.aggregators.base import Linear
from fedpriv.aggregators.mean import Mean
from fedpriv.engine.data import ClientData
from fedpriv.engine.layout import Layout
from fedpriv.engine.loop import LoopEngine
from fedpriv.engine.room import Drawn
from fedpriv.engine.tape import GhostNet, GhostTape
from fedpriv.mechanisms.base import NoPrivacy
from fedpriv.mechanisms.cdp import CDP, PulledBack
from fedpriv.mechanisms.ddp import DDP
from fedpriv.randomness import chacha, source
from fedpriv.randomness.source import Source
from fedpriv.rounds import trainer
from fedpriv.stages.fedpd.losses import Step
from fedpriv.stages.fedpd.private_step import PrivateStep
from tests.device.matrix import DISCRETE, STEP, STEPS
from tests.device.running import run, same
from tests.device.simulated import RulesError
from tests.device.watching import Watch

FAULTS = {}
LONG = ("parameters of a distillation get noise one by one",)


def fault(name, case, found):
    """A fault, the case it is looked for in, and what has to find it."""

    def register(plant):
        FAULTS[name] = (case, found, plant)
        return plant

    return register


def wrapped(patch, owner, name, around):
    inner = getattr(owner, name)
    patch.setattr(owner, name, lambda *args, **kwargs: around(inner, *args, **kwargs))


# -- devices mixed


@fault("an empty CPU tensor joins", "loop with batch norm", "refused")
def _(patch):
    def flatten(self, network):
        named = dict(network.named_parameters()) | dict(network.named_buffers())
        return torch.cat([torch.zeros(0), *(named[e.name].detach().reshape(-1) for e in self.entries)])

    patch.setattr(Layout, "flatten", flatten)


@fault("weights stay on the CPU", "ldp", "refused")
def _(patch):
    patch.setattr(Linear, "__call__", lambda self, uploads, round_: self.weights(round_) @ uploads)


@fault("the host's sample numbers take a device's samples", "loop", "refused")
def _(patch):
    wrapped(patch, ClientData, "take", lambda take, data, index: take(data, index.cpu()))


@fault("the host's samples are taken by a device's numbers", "loop", "refused")
def _(patch):
    def client(inner, engine, work, data, position):
        return inner(
            engine, work, ClientData(data.x.cpu(), data.y, data.owned, data.size, data.prepare), position
        )

    wrapped(patch, LoopEngine, "_client", client)


@fault("an aggregator draws from the CPU's generator", "pfa random", "refused")
def _(patch):
    wrapped(patch, trainer, "generator", lambda inner, *name, device=None: inner(*name))


@fault("an aggregator computes in numpy", "ldp", "refused")
def _(patch):
    patch.setattr(Mean, "__call__", lambda self, uploads, round_: torch.from_numpy(uploads.numpy()).mean(0))


@fault("a network is left on the CPU", "loop", "refused")
def _(patch):
    wrapped(patch, LoopEngine, "_load", lambda load, *args: load(*args).to("cpu"))


@fault("a model stays behind when a checkpoint is loaded", "server momentum", "refused")
def _(patch):
    def load(inner, self, state):
        inner(self, state)
        self.theta = state["theta"]

    wrapped(patch, trainer.Trainer, "load", load)


# -- waiting inside of steps


@fault("a step asks whether a gradient overflowed", "ldp", "waits")
def _(patch):
    def drop(inner, tape, bad):
        if bool(bad.any()):
            inner(tape, bad)

    wrapped(patch, GhostTape, "drop", drop)


@fault("a step reads its loss", "cdp", "waits")
def _(patch):
    def tape(inner, *args):
        made = inner(*args)
        made.losses.sum().item()
        return made

    wrapped(patch, GhostNet, "tape", tape)


@fault("a step brings its losses home", "cdp", "waits")
def _(patch):
    def tape(inner, *args):
        made = inner(*args)
        made.seen = made.losses.cpu()
        return made

    wrapped(patch, GhostNet, "tape", tape)


@fault("a step picks who is outside of the ball", "cdp adaptive, every step", "waits")
def _(patch):
    def after_step(self, start):
        radius = self.radius()

        def pull_back(shared, rows):
            norms = (shared - start[rows]).norm(dim=1)
            shared[norms > radius] *= 0.5

        return pull_back

    patch.setattr(PulledBack, "after_step", after_step)


@fault("own and shared samples are told apart by their numbers", "fedpd open", "waits")
def _(patch):
    def both(inner, data, flat, *rest):
        torch.nonzero(flat < len(data.y))
        return inner(data, flat, *rest)

    wrapped(patch, ClientData, "_take_both", both)


@fault("the key is sent anew for every step", "ldp", "waits")
def _(patch):
    patch.setattr(Source, "_head", lambda self, device: chacha.head(self._words).to(device))


@fault("a table is made of a list in every step", "pixels made ready in steps", "waits")
def _(patch):
    patch.setattr("fedpriv.accelerator.there", lambda values, device: values.to(device))


@fault("distilling leaves out overflown samples by a boolean index", "fedpd for samples", "waits")
def _(patch):
    def descend(inner, self, cost, *optimisers):
        norms = cost.detach().expand(2)
        norms[norms.isfinite()]
        inner(self, cost, *optimisers)

    wrapped(patch, PrivateStep, "_descend", descend)


@fault("mixup's order is copied and waited for", "fedpd open", "waits")
def _(patch):
    wrapped(
        patch,
        Step,
        "_mixing",
        lambda inner, self, count: (inner(self, count)[0], torch.arange(count).to("meta")),
    )


# -- costs


@fault("noise is drawn client by client", "ldp", "kernels")
def _(patch):
    def add(self, target, scale, step):
        for row, factor, client in zip(target, scale, self.who, strict=True):
            self.source.add_normals_(row[None], factor[None], client[None], step)

    patch.setattr(Drawn, "add", add)


@fault("parameters of a distillation get noise one by one", "fedpd for samples", "kernels")
def _(patch):
    def each(sources, likes, step):
        return [s.normal(like, step) for s, like in zip(sources, likes, strict=True)]

    patch.setattr("fedpriv.stages.fedpd.private_step.normals_of", each)


@fault("messages travel over the host", "server momentum", "bytes")
def _(patch):
    patch.setattr(NoPrivacy, "client", lambda self, sent, round_, source: sent.cpu().to(sent.device))


@fault("uniform numbers are made on the host", "duchi shuffled", "bytes")
def _(patch):
    made = source.Source.uniforms
    patch.setattr(Source, "uniforms_on", lambda self, device, *row: made(self, *row).to(device))


# -- numbers


@fault("noise of the step before", "ldp", "numbers")
def _(patch):
    wrapped(
        patch, Drawn, "add", lambda add, self, target, scale, step: add(self, target, scale, max(0, step - 1))
    )


@fault("everybody gets the first client's noise", "ldp", "numbers")
def _(patch):
    def init(inner, self, source, who, rows, steps):
        inner(self, source, torch.zeros_like(who), rows, steps)

    wrapped(patch, Drawn, "__init__", init)


@fault("a device turns by another number of bits", "ldp", "numbers")
def _(patch):
    patch.setattr(chacha, "TURNS", (16, 12, 8, 9))


@fault("only the first rows are rounded", "ddp", "numbers")
def _(patch):
    def rounded(inner, self, x, clients, source):
        return (
            inner(self, x, clients, source) if x.is_cpu else inner(self, x, clients, source)[:1].expand_as(x)
        )

    wrapped(patch, DDP, "_rounded", rounded)


@fault("noise of the server is left out", "cdp", "numbers")
def _(patch):
    wrapped(
        patch,
        CDP,
        "server",
        lambda server, self, aggregate, *rest: (
            aggregate if not aggregate.is_cpu else server(self, aggregate, *rest)
        ),
    )


def findings(case, folder, device, expected):
    """All that the matrix would object to."""
    found = set()
    with device() as here:
        try:
            ran = run(case, folder, here.watch, here.to_cpu)
        except (RulesError, TypeError):
            return {"refused"}
    watch = here.watch
    found |= {"waits"} if watch.waits else set()
    found |= {"kernels"} if watch.in_steps > STEPS.get(case, STEP) * watch.steps else set()
    found |= {"bytes"} if any(got > most for got, most in ran.moved) else set()
    if expected is not None and not same(ran.theta, expected.theta, case in DISCRETE):
        found |= {"numbers"}
    return found


@pytest.mark.parametrize("device", ["simulated"], indirect=True)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.long] if n in LONG else []) for n in FAULTS]
)
def test_a_planted_fault_is_found(name, device, same_draws, monkeypatch, tmp_path):
    case, found, plant = FAULTS[name]
    expected = run(case, tmp_path, Watch(), lambda t: t) if found == "numbers" else None
    plant(monkeypatch)
    assert found in findings(case, tmp_path, device, expected)
