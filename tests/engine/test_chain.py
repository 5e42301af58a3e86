"""The compiled step of a chain of layers means what the loop engine means, transform in front or not."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv.engine import batches, chain
from fedpriv.engine.data import ClientData, _as_it_is
from fedpriv.engine.dropout import sample_names
from fedpriv.engine.fast import FastEngine
from fedpriv.engine.layout import Layout
from fedpriv.engine.loop import LoopEngine
from fedpriv.engine.work import Private, Work
from fedpriv.models import cnn, linear, mlp
from fedpriv.models.parts import Network
from fedpriv.transforms.elementwise import elementwise
from tests.helpers.draws import source

CLIENTS, SHAPE, SIZES = 3, (2, 3, 4), (6, 12, 9)

MODELS = {
    "regression": partial(linear.linear, init="default"),
    "many classes": partial(linear.linear, init="default", bias=False),
    "tanh": partial(mlp.mlp, sizes=[20, 9]),
    "relu": partial(mlp.mlp, sizes=[30], bias=True, activation="relu"),
}
IMAGES = {"convolutions": (2, 9, 10), "pfa": (1, 28, 28)}


def convolutions(shape, classes):
    """Strides, paddings, pools that overlap and leave a rest, activations before and behind them."""
    return nn.Sequential(
        *(nn.Conv2d(2, 5, (3, 2), stride=(2, 1), padding=(1, 2)), nn.Tanh(), nn.MaxPool2d(2, 1)),
        *(nn.Conv2d(5, 20, 2, bias=False), nn.MaxPool2d((1, 3)), nn.ReLU(), nn.Identity()),
        *(nn.Flatten(), nn.Linear(20 * 3 * 3, 7), nn.Tanh(), nn.Linear(7, classes)),
    )


MODELS |= {"convolutions": convolutions, "pfa": cnn.pfa_cnn}
FRONTS = {
    "none": None,
    "pixels": {"alpha": "pixel", "beta": "pixel"},
    "paper": {"alpha": "channel", "beta": "pixel"},
    "scale": {"alpha": "channel", "beta": "fixed", "beta_init": 0.3},
    "shift": {"alpha": "fixed", "beta": "channel", "alpha_init": -1.5},
}


@pytest.fixture(autouse=True)
def worth(monkeypatch):
    """However little there is to do."""
    monkeypatch.setattr(chain, "_WORTH", 0)


def problem(model="tanh", front="none", standard=False, seed=0):
    """Network, layout, statistics, start rows and samples."""
    torch.manual_seed(seed)
    shape = IMAGES.get(model, SHAPE)
    classes = 25 if model == "many classes" else 4
    before = nn.Identity() if FRONTS[front] is None else elementwise(shape, **FRONTS[front])
    fixed = (torch.randn(shape), torch.rand(shape) + 0.5) if standard else None
    network = Network(before, MODELS[model](shape, classes), fixed)
    home = [n for n, _ in network.named_parameters() if n.startswith("transform")]
    layout, stats = Layout.of_parameters(network, home), Layout.of_statistics(network)
    count = sum(SIZES)
    owned = torch.zeros(CLIENTS, max(SIZES), dtype=torch.int64)
    for row, part in zip(owned, torch.randperm(count).split(SIZES), strict=True):
        row[: len(part)] = part
    x, y = torch.randn(count, *shape), torch.randint(classes, (count,))
    samples = ClientData(x, y, owned, torch.tensor(SIZES), _as_it_is)
    rows = layout.flatten(network) + 0.05 * torch.randn(CLIENTS, layout.total)
    return network, layout, stats, rows, samples


def work_of(rows, samples, private=True, **more) -> Work:
    everyone, steps = torch.arange(CLIENTS), batches.local_steps(samples.size, 4, 2, None)
    if private:
        names = sample_names(everyone, samples.owned)
        plan = batches.poisson(samples.size, torch.full((CLIENTS,), 0.3), steps, names, source(1))
    else:
        plan = batches.shuffled(samples.size, 4, steps, everyone, source(1))
    dp = Private(0.7, torch.tensor([0.5, 1.0, 2.0]), 4.0, source(7)) if private else None
    lr = [0.1 + 0.01 * n for n in range(plan.index.shape[1])]
    return Work(rows.clone(), torch.zeros(CLIENTS, 0), everyone, plan, source(5), lr, private=dp, **more)


def trained(engine, network, layout, stats, rows, samples, **more):
    work = work_of(rows, samples, **more)
    result = engine(network, layout, stats).train(work, samples)
    return work.rows, result.loss


@pytest.fixture
def calls(monkeypatch):
    """How often the compiled step is taken."""
    from fedpriv.engine import compiled

    seen, real = [], compiled.steps
    monkeypatch.setattr(compiled, "steps", lambda *given: (seen.append(given), real(*given)))
    return seen


@pytest.mark.parametrize("private", [True, False], ids=["private", "plain"])
@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("model", MODELS)
def test_a_round_equals_the_loop(model, front, private, calls):
    given = problem(model, front)
    fast, loss = trained(FastEngine, *given, private=private)
    assert calls
    loop, expected = trained(LoopEngine, *given, private=private)
    torch.testing.assert_close(fast, loop, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("private", [True, False], ids=["private", "plain"])
def test_what_is_fixed_behind_the_transform_counts(private, calls):
    given = problem("regression", "paper", standard=True)
    fast, _ = trained(FastEngine, *given, private=private)
    assert calls
    loop, _ = trained(LoopEngine, *given, private=private)
    torch.testing.assert_close(fast, loop, rtol=1e-5, atol=2e-6)


def test_the_transform_has_a_rate_of_its_own(calls):
    given = problem("tanh", "paper")
    fast, _ = trained(FastEngine, *given, private=False, home_lr=0.7)
    assert calls
    loop, _ = trained(LoopEngine, *given, private=False, home_lr=0.7)
    torch.testing.assert_close(fast, loop, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("private", [True, False], ids=["private", "plain"])
@pytest.mark.parametrize(
    "more",
    [
        {"momentum": 0.9},
        {"weight_decay": 0.1},
        {"correction": lambda rows, here: 0.1 * rows},
        {"after_step": lambda rows, here: rows.clamp_(-0.1, 0.1)},
        {"home_lr": 0.7},
        {"momentum": 0.5, "home_lr": 0.01, "weight_decay": 0.2},
    ],
    ids=lambda more: " ".join(more),
)
def test_steps_along_more_than_the_gradient_equal_the_loop(more, private, calls):
    for model in ("tanh", "convolutions"):
        given = problem(model, "paper")
        fast, _ = trained(FastEngine, *given, private=private, **more)
        loop, _ = trained(LoopEngine, *given, private=private, **more)
        assert calls
        torch.testing.assert_close(fast, loop, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("private", [True, False], ids=["private", "plain"])
@pytest.mark.parametrize("model", ["regression", "convolutions"])
def test_shared_samples_are_not_clipped_and_count_as_their_own_mean(model, private, calls):
    network, layout, stats, rows, samples = problem(model, "paper")
    more = torch.randn(5, *samples.x.shape[1:]), torch.randint(4, (5,))
    owned = torch.cat([samples.owned, len(samples.y) + torch.arange(5).expand(CLIENTS, -1)], 1)
    both = replace(samples, owned=owned, shared=more)
    results = []
    for engine in (FastEngine, LoopEngine):
        work = work_of(rows, samples, private)
        shared = batches.shuffled(
            torch.full((CLIENTS,), 5), 3, work.plan.active.sum(1), torch.arange(CLIENTS), source(3)
        )
        offsets = torch.full((CLIENTS,), samples.owned.shape[1])
        work = replace(work, plan=batches.joined(work.plan, shared, offsets))
        results.append((engine(network, layout, stats).train(work, both).loss, work.rows))
    assert calls
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=2e-6)


def test_other_networks_are_not_taken_for_chains():
    def of(model, front=None, **more):
        network = Network(front or nn.Identity(), model, **more)
        return chain.Chain.of(network, Layout.of_parameters(network), SHAPE)

    square = elementwise(SHAPE, function="quadratic")
    assert of(mlp.mlp(SHAPE, 4)) and of(mlp.mlp(SHAPE, 4), elementwise(SHAPE))
    assert of(mlp.mlp(SHAPE, 4, norm="group")) is None
    assert of(nn.Sequential(nn.Flatten(), nn.Linear(24, 8), nn.Sigmoid(), nn.Linear(8, 4))) is None
    assert of(nn.Sequential(nn.Flatten(), nn.Linear(24, 8), nn.Tanh(), nn.Linear(8, 4), nn.Tanh())) is None
    assert of(nn.Sequential(nn.Flatten(), nn.Linear(24, 8), nn.Tanh(), nn.ReLU(), nn.Linear(8, 4))) is None
    assert of(nn.Sequential(nn.Flatten(1, 2), nn.Linear(4, 4))) is None
    assert of(mlp.mlp(SHAPE, 4), square) is None
    assert of(mlp.mlp(SHAPE, 4), standard=(torch.zeros(1), torch.ones(1))) is None
    assert of(nn.Sequential(nn.Conv2d(2, 4, 3, dilation=2), nn.Flatten(), nn.Linear(4, 4))) is None
    assert of(nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(8, 4))) is None
    assert of(nn.Sequential(nn.MaxPool2d(3, padding=1), nn.Flatten(), nn.Linear(8, 4))) is None
    assert of(nn.Sequential(nn.Flatten(), nn.Dropout(0.1), nn.Linear(24, 4))) is None
    assert of(nn.Sequential(nn.Linear(4, 4), nn.Flatten(), nn.Linear(24, 4))) is None
    twice = nn.Linear(24, 24)
    assert of(nn.Sequential(nn.Flatten(), twice, nn.Tanh(), twice)) is None

    class Doubled(nn.Sequential):
        def forward(self, x):
            return 2 * super().forward(x)

    assert of(Doubled(*mlp.mlp(SHAPE, 4))) is None


def test_whom_a_client_is_trained_with_does_not_change_a_bit(monkeypatch):
    results = []
    for cache, threads in ((1 << 20, 1), (1, 1), (1, 3), (1 << 20, 3)):
        monkeypatch.setattr(chain, "_CACHE", cache)
        network, layout, stats, rows, samples = problem("relu", "paper")
        work = work_of(rows, samples)
        FastEngine(network, layout, stats, threads=threads).train(work, samples)
        results.append(work.rows)
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_an_empty_batch_still_gets_noise_and_an_inactive_step_none(calls):
    network, layout, stats, rows, samples = problem()
    work = work_of(rows, samples)
    work.plan.size[:] = 0
    work.plan.active[1, :] = False
    FastEngine(network, layout, stats).train(work, samples)
    moved = (work.rows - rows).norm(dim=1)
    assert calls and moved[0] > 0 and moved[2] > 0 and moved[1] == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("front", ["none", "paper"])
@pytest.mark.parametrize("model", MODELS)
def test_one_bad_sample_moves_a_private_step_no_further_than_any_other(model, front, value, calls):
    """Clipping must hold for every record there can be: an overflowing one is left out."""
    network, layout, stats, rows, samples = problem(model, front)
    samples.x[int(samples.owned[0, 0])] = value
    work = work_of(rows, samples)
    work.plan.size[:], work.plan.index[:] = 1, 0  # only the first sample of each client, every step
    quiet = replace(work, private=replace(work.private, noise_std=torch.zeros(3)), lr=[0.1] * len(work.lr))
    FastEngine(network, layout, stats).train(quiet, samples)
    steps = int(work.plan.active[0].sum())
    assert calls and work.rows.isfinite().all()
    assert (work.rows[0] - rows[0]).norm() <= 0.1 * 0.7 / 4.0 * steps * (1 + 1e-3)


def test_its_tanh_is_tanh():
    from numba import njit

    from fedpriv.engine import compiled

    run = njit(lambda z: compiled._activate(z, 0, len(z), compiled.TANH))
    x = np.concatenate([np.linspace(-12, 12, 40_001), np.geomspace(1e-30, 1, 1000)]).astype(np.float32)
    z = x.copy()
    run(z)
    exact = np.tanh(x.astype(np.float64))
    assert (np.abs(z - exact) <= 4e-7 * np.abs(exact)).all()
    odd = np.array([np.nan, np.inf, -np.inf], np.float32)
    run(odd)
    assert np.isnan(odd[0]) and odd[1] == pytest.approx(1, abs=1e-6) and odd[2] == pytest.approx(-1, abs=1e-6)


def test_batches_that_take_too_much_room_are_left_to_torch(monkeypatch, calls):
    network, layout, stats, rows, samples = problem("convolutions")
    found = chain.Chain.of(network, layout, samples.x.shape[1:])
    work = work_of(rows, samples)
    width = work.plan.index.shape[2]
    assert found.products == 5 * 5 * 13 * 2 * 6 + 20 * 3 * 11 * 5 * 4 + 180 * 7 + 7 * 4
    monkeypatch.setattr(chain, "_ROOM", 4 * width * found.floats - 1)
    FastEngine(network, layout, stats).train(work, samples)
    assert not calls
    monkeypatch.setattr(chain, "_ROOM", 4 * width * found.floats)
    FastEngine(network, layout, stats).train(work_of(rows, samples), samples)
    assert calls


def test_little_work_is_not_worth_compiling(monkeypatch, calls):
    monkeypatch.setattr(chain, "_WORTH", 200_000_000)
    network, layout, stats, rows, samples = problem()
    FastEngine(network, layout, stats).train(work_of(rows, samples), samples)
    assert not calls
