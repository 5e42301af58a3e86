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
from fedpriv.transforms.elementwise import Elementwise, elementwise
from tests.helpers.draws import source

CLIENTS, SHAPE, SIZES = 3, (2, 3, 4), (6, 12, 10)

MODELS = {
    "regression": partial(linear.linear, init="default"),
    "many classes": partial(linear.linear, init="default", bias=False),
    "tanh": partial(mlp.mlp, sizes=[20, 9]),
    "relu": partial(mlp.mlp, sizes=[30], bias=True, activation="relu"),
    "wide": partial(mlp.mlp, sizes=[262, 9]),  # wide enough for panels
}


def grouped(shape, classes):
    """Groups of several sizes, one of a single number, and a norm without an activation."""
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(24, 40), nn.GroupNorm(2, 40), nn.Tanh()),
        *(nn.Linear(40, 18, bias=False), nn.GroupNorm(6, 18, eps=0.1), nn.ReLU()),
        *(nn.Linear(18, 5), nn.GroupNorm(1, 5), nn.Linear(5, classes)),
    )


def batched(shape, classes):
    """Running statistics one behind the other; eps is large, for two samples would magnify roundings."""
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(24, 33), nn.BatchNorm1d(33, eps=0.1, momentum=0.3), nn.Tanh()),
        *(nn.Linear(33, 9, bias=False), nn.BatchNorm1d(9, eps=0.1), nn.ReLU(), nn.Linear(9, classes)),
    )


NORMS = {"grouped": grouped, "batched": batched}
MODELS |= NORMS
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
    "fixed": {"alpha": "fixed", "beta": "fixed", "alpha_init": 0.5, "beta_init": 0.3},
    "sigmoid": {"function": "sigmoid"},
    "tanh": {"function": "tanh", "alpha": "pixel"},
    "relu": {"function": "relu", "beta_init": 0.1},
    "square": {"function": "quadratic"},
}


@pytest.fixture(autouse=True)
def worth(monkeypatch):
    """However little there is to do."""
    monkeypatch.setattr(chain, "_WORTH", 0)


def problem(model="tanh", front="none", standard=False, seed=0, at_home=("transform",)):
    """Network, layout, statistics, start rows and samples."""
    torch.manual_seed(seed)
    shape = IMAGES.get(model, SHAPE)
    classes = 25 if model == "many classes" else 4
    before = nn.Identity() if FRONTS[front] is None else elementwise(shape, **FRONTS[front])
    fixed = (torch.randn(shape), torch.rand(shape) + 0.5) if standard else None
    network = Network(before, MODELS[model](shape, classes), fixed)
    for module in network.modules():
        if type(module) in (nn.GroupNorm, nn.BatchNorm1d):  # not ones and zeros, which hide what is left out
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
    home = [n for n, _ in network.named_parameters() if n.startswith(at_home)]
    layout, stats = Layout.of_parameters(network, home), Layout.of_statistics(network)
    count = sum(SIZES)
    owned = torch.zeros(CLIENTS, max(SIZES), dtype=torch.int64)
    for row, part in zip(owned, torch.randperm(count).split(SIZES), strict=True):
        row[: len(part)] = part
    x, y = torch.randn(count, *shape), torch.randint(classes, (count,))
    samples = ClientData(x, y, owned, torch.tensor(SIZES), _as_it_is)
    rows = layout.flatten(network) + 0.05 * torch.randn(CLIENTS, layout.total)
    return network, layout, stats, rows, samples


def statistics(network, stats):
    """Where running statistics begin: another place for every client."""
    start = stats.flatten(network)
    return start + torch.arange(CLIENTS)[:, None] * 0.25 * torch.ones_like(start)


def work_of(rows, samples, private=True, buffers=None, **more) -> Work:
    everyone, steps = torch.arange(CLIENTS), batches.local_steps(samples.size, 4, 2, None)
    if private:
        names = sample_names(everyone, samples.owned)
        plan = batches.poisson(samples.size, torch.full((CLIENTS,), 0.3), steps, names, source(1))
    else:
        plan = batches.shuffled(samples.size, 4, steps, everyone, source(1))
    dp = Private(0.7, torch.tensor([0.5, 1.0, 2.0]), 4.0, source(7)) if private else None
    lr = [0.1 + 0.01 * n for n in range(plan.index.shape[1])]
    buffers = torch.zeros(CLIENTS, 0) if buffers is None else buffers
    return Work(rows.clone(), buffers, everyone, plan, source(5), lr, private=dp, **more)


def trained(engine, network, layout, stats, rows, samples, **more):
    work = work_of(rows, samples, buffers=statistics(network, stats), **more)
    result = engine(network, layout, stats).train(work, samples)
    return torch.cat([work.rows, work.buffers], 1), result.loss


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
    if private and model == "batched":
        pytest.skip("batch norms have no gradients of single samples")
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


def norms_of(network):
    kinds = nn.GroupNorm, nn.BatchNorm1d
    return tuple(f"model.{n}." for n, module in network.model.named_children() if isinstance(module, kinds))


@pytest.mark.parametrize("more", [{}, {"home_lr": 0.7}, {"momentum": 0.5, "home_lr": 0.02}], ids=str)
@pytest.mark.parametrize("model, private", [("grouped", True), ("grouped", False), ("batched", False)])
@pytest.mark.parametrize("part", ["all", "last", "weight"])
def test_norms_at_home_have_the_rate_of_what_is_at_home(part, model, private, more, calls):
    """All of them, the last alone, or only its weight."""
    names = norms_of(problem(model)[0])
    some = {"all": names, "last": names[-1:], "weight": (names[-1] + "weight",)}[part]
    given = problem(model, "paper", at_home=("transform", *some))
    fast, _ = trained(FastEngine, *given, private=private, **more)
    assert calls
    loop, _ = trained(LoopEngine, *given, private=private, **more)
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
    for model in ("tanh", "convolutions", "grouped") + (() if private else ("batched",)):
        given = problem(model, "paper")
        fast, _ = trained(FastEngine, *given, private=private, **more)
        loop, _ = trained(LoopEngine, *given, private=private, **more)
        assert calls
        calls.clear()
        torch.testing.assert_close(fast, loop, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    "model, private",
    [(model, private) for model in ("regression", "convolutions", "grouped") for private in (True, False)]
    + [("batched", False)],
    ids=lambda given: {True: "private", False: "plain"}.get(given, given),
)
def test_shared_samples_are_not_clipped_and_count_as_their_own_mean(model, private, calls):
    network, layout, stats, rows, samples = problem(model, "paper")
    more = torch.randn(5, *samples.x.shape[1:]), torch.randint(4, (5,))
    owned = torch.cat([samples.owned, len(samples.y) + torch.arange(5).expand(CLIENTS, -1)], 1)
    both = replace(samples, owned=owned, shared=more)
    results = []
    for engine in (FastEngine, LoopEngine):
        work = work_of(rows, samples, private, statistics(network, stats))
        shared = batches.shuffled(
            torch.full((CLIENTS,), 5), 3, work.plan.active.sum(1), torch.arange(CLIENTS), source(3)
        )
        offsets = torch.full((CLIENTS,), samples.owned.shape[1])
        work = replace(work, plan=batches.joined(work.plan, shared, offsets))
        results.append((engine(network, layout, stats).train(work, both).loss, work.rows, work.buffers))
    assert calls
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=2e-6)


def test_other_networks_are_not_taken_for_chains():
    def of(model, front=None, **more):
        network = Network(front or nn.Identity(), model, **more)
        return chain.Chain.of(network, Layout.of_parameters(network), Layout.of_statistics(network), SHAPE)

    def bent(*layers):
        return Elementwise([*elementwise(SHAPE), *layers], None)

    assert of(mlp.mlp(SHAPE, 4)) and of(mlp.mlp(SHAPE, 4), elementwise(SHAPE))
    assert of(mlp.mlp(SHAPE, 4, norm="group")) and of(mlp.mlp(SHAPE, 4, norm="batch"))
    for norm in (
        *(nn.GroupNorm(2, 8, affine=False), nn.BatchNorm1d(8, affine=False), nn.LayerNorm(8)),
        *(nn.BatchNorm1d(8, track_running_stats=False), nn.BatchNorm1d(8, momentum=None)),
    ):
        assert of(nn.Sequential(nn.Flatten(), nn.Linear(24, 8), norm, nn.Linear(8, 4))) is None
    late, early = nn.GroupNorm(2, 8), nn.BatchNorm1d(24)
    assert of(nn.Sequential(nn.Flatten(), nn.Linear(24, 8), nn.Tanh(), late, nn.Linear(8, 4))) is None
    assert of(nn.Sequential(nn.Flatten(), early, nn.Linear(24, 4))) is None
    assert of(nn.Sequential(nn.GroupNorm(2, 2), nn.Flatten(), nn.Linear(24, 4))) is None
    assert of(nn.Sequential(nn.Flatten(), nn.Linear(24, 8), nn.GELU(), nn.Linear(8, 4))) is None
    assert of(nn.Sequential(nn.Flatten(), nn.Linear(24, 8), nn.Tanh(), nn.Linear(8, 4), nn.Tanh())) is None
    assert of(nn.Sequential(nn.Flatten(), nn.Linear(24, 8), nn.Tanh(), nn.ReLU(), nn.Linear(8, 4))) is None
    assert of(nn.Sequential(nn.Flatten(1, 2), nn.Linear(4, 4))) is None
    assert of(mlp.mlp(SHAPE, 4), bent(nn.Tanh()))
    assert of(mlp.mlp(SHAPE, 4), bent(nn.GELU())) is None
    assert of(mlp.mlp(SHAPE, 4), bent(nn.Tanh(), nn.Tanh())) is None
    assert of(mlp.mlp(SHAPE, 4), bent(nn.Tanh()), standard=(torch.zeros(1), torch.ones(1))) is None
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
    if model == "batched":
        pytest.skip("batch norms have no gradients of single samples")
    network, layout, stats, rows, samples = problem(model, front)
    samples.x[int(samples.owned[0, 0])] = value
    work = work_of(rows, samples)
    work.plan.size[:], work.plan.index[:] = work.plan.active, 0  # only the first sample, every step
    quiet = replace(work, private=replace(work.private, noise_std=torch.zeros(3)), lr=[0.1] * len(work.lr))
    FastEngine(network, layout, stats).train(quiet, samples)
    steps = int(work.plan.active[0].sum())
    assert calls and work.rows.isfinite().all()
    assert (work.rows[0] - rows[0]).norm() <= 0.1 * 0.7 / 4.0 * steps * (1 + 1e-3)


def large_batches(work, size) -> Work:
    """The same in batches of so many of each client's first five samples, and one more of its sixth."""
    index = (torch.arange(size) % 5).repeat(*work.plan.index.shape[:2], 1)
    index[:, :, -1] = 5
    plan = replace(work.plan, index=index, size=size * work.plan.active.long())
    return replace(work, plan=plan, private=work.private and replace(work.private, lot=64.0))


@pytest.mark.parametrize("private", [True, False], ids=["private", "plain"])
def test_a_wide_layer_in_large_batches_equals_the_loop(private, calls):
    network, layout, stats, rows, samples = problem("wide")
    both = []
    for engine in (FastEngine, LoopEngine):
        work = large_batches(work_of(rows, samples, private=private), 45)
        engine(network, layout, stats).train(work, samples)
        both.append(work.rows)
    assert calls
    torch.testing.assert_close(*both, rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("model", ["wide", "relu"])
@pytest.mark.parametrize("size", [4, 32, 257])
def test_a_last_sample_that_counts_for_nothing_changes_not_a_bit(size, model, calls):
    """Whether it is there must not decide how sums of the others are rounded: not by fours, not in parts."""
    network, layout, stats, rows, samples = problem(model)
    samples.x[samples.owned[:, 5]] = torch.nan
    both = []
    for there in (size, size - 1):
        work = large_batches(work_of(rows, samples), size)
        work.plan.size.clamp_(max=there)  # the last one is that which is no number
        FastEngine(network, layout, stats).train(work, samples)
        both.append(work.rows)
    assert calls and both[0].isfinite().all() and torch.equal(*both)


def test_its_tanh_is_tanh():
    from numba import njit

    from fedpriv.engine import compiled

    run = njit(lambda z: compiled.activate(z, 0, len(z), compiled.TANH))
    x = np.concatenate([np.linspace(-12, 12, 40_001), np.geomspace(1e-30, 1, 1000)]).astype(np.float32)
    z = x.copy()
    run(z)
    exact = np.tanh(x.astype(np.float64))
    assert (np.abs(z - exact) <= 4e-7 * np.abs(exact)).all()
    odd = np.array([np.nan, np.inf, -np.inf], np.float32)
    run(odd)
    assert np.isnan(odd[0]) and odd[1] == 1 and odd[2] == -1  # not nearly, for then there would be a slope
    assert (np.abs(z[np.abs(x) > 9.02]) == 1).all()


def test_how_a_loss_is_rounded_does_not_depend_on_where_its_numbers_lie():
    from numba import njit

    from fedpriv.engine import compiled

    run = njit(lambda a, g, at, classes: compiled.cross_entropy(a, g, at, classes, 3))
    numbers = np.random.default_rng(0)
    for _ in range(50):
        z, found = (numbers.standard_normal(17) * 3).astype(np.float32), set()
        for apart in (17, 20, 31, 48, 64, 100, 512):
            room = np.zeros(1100, np.float32)
            a, g = room[16 : 16 + apart], room[16 + apart : 16 + 2 * apart]
            a[-17:] = z
            found.add((float(run(a, g, apart - 17, 17)), g[-17:].tobytes()))
        assert len(found) == 1


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "torch"])
def test_a_gradient_whose_factors_squares_vanish_is_clipped(compiled, calls):
    """Inputs of 3e18 and slopes of 6e-20, whose squares are too small for a float: a gradient of 1.6."""
    network, layout, stats, rows, samples = problem("regression")
    samples.x.fill_(3e18)
    samples.y.fill_(1)
    rows.zero_()
    rows[:, layout.total - 3] = 44.2  # the bias of class 1
    moved = []
    for kind in (FastEngine, LoopEngine):
        work = work_of(rows, samples)
        plan = replace(work.plan, size=work.plan.size.clamp(max=1))
        private = replace(work.private, clip_norm=0.1, noise_std=torch.zeros(CLIENTS), lot=1.0)
        work = replace(work, plan=plan, private=private, lr=[1.0] * len(work.lr))
        engine = kind(network, layout, stats)
        if kind is FastEngine and not compiled:
            engine._chain = False
        engine.train(work, samples)
        moved.append((work.rows - rows).norm(dim=1))
    steps = (plan.size > 0).sum(1)
    assert bool(calls) == compiled and steps.min() > 0
    assert (moved[0] <= 0.1001 * steps).all() and (moved[1] > 0.01).all()


def test_batches_that_take_too_much_room_are_left_to_torch(monkeypatch, calls):
    network, layout, stats, rows, samples = problem("convolutions")
    found = chain.Chain.of(network, layout, stats, samples.x.shape[1:])
    work = work_of(rows, samples)
    width = work.plan.index.shape[2]
    assert found.products == 5 * 5 * 13 * 2 * 6 + 20 * 3 * 11 * 5 * 4 + 180 * 7 + 7 * 4
    monkeypatch.setattr(chain, "_ROOM", 4 * width * found.floats - 1)
    FastEngine(network, layout, stats).train(work, samples)
    assert not calls
    monkeypatch.setattr(chain, "_ROOM", 4 * width * found.floats)
    FastEngine(network, layout, stats).train(work_of(rows, samples), samples)
    assert calls


def test_a_private_step_with_batch_norm_is_left_to_others():
    network, layout, stats, rows, samples = problem("batched")
    found = chain.Chain.of(network, layout, stats, samples.x.shape[1:])
    assert found.products == 24 * 33 + 33 * 9 + 9 * 4
    plain, private = (work_of(rows, samples, kind, statistics(network, stats)) for kind in (False, True))
    assert found.takes(plain, samples) and not found.takes(private, samples)


def test_a_client_without_samples_keeps_its_statistics(calls):
    """One that is done, and one with nothing in a step; a single sample has no deviation."""
    network, layout, stats, rows, samples = problem("batched")
    start = statistics(network, stats)
    results = []
    for compiled in (True, False):
        work = work_of(rows, samples, False, start.clone())
        work.plan.size[0], work.plan.active[0], work.plan.size[1, 1:] = 0, False, 1
        engine = FastEngine(network, layout, stats)
        engine._chain = None if compiled else False
        engine.train(work, samples)
        assert bool(calls) == compiled
        calls.clear()
        results.append((work.rows, work.buffers))
    assert torch.equal(results[0][1][0], start[0]) and not torch.equal(results[0][1][1:], start[1:])
    torch.testing.assert_close(*results, rtol=1e-5, atol=2e-6)


def test_little_work_is_not_worth_compiling(monkeypatch, calls):
    monkeypatch.setattr(chain, "_WORTH", 100_000_000)
    network, layout, stats, rows, samples = problem()
    FastEngine(network, layout, stats).train(work_of(rows, samples), samples)
    assert not calls


@pytest.mark.parametrize("alike", [True, False], ids=["alike", "own"])
@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("model", ["regression", "many classes", "tanh", "relu", *IMAGES])
def test_judging_equals_the_loop(model, front, alike, monkeypatch):
    """Losses and answers, of clients who share samples and weights as of those who do not."""
    from fedpriv.engine import judged

    seen, real = [], judged.judge
    monkeypatch.setattr(judged, "judge", lambda *given: (seen.append(given), real(*given)))
    network, layout, stats, rows, samples = problem(model, front)
    if alike:
        rows[:, : layout.sent] = rows[0, : layout.sent]
    index = torch.randint(len(samples.y), (1 if alike else CLIENTS, 150)).expand(CLIENTS, -1)
    given = rows, torch.zeros(CLIENTS, 0), index, samples, alike
    loss, right = FastEngine(network, layout, stats, threads=2).predict(*given)
    expected, answers = LoopEngine(network, layout, stats).predict(*given)
    # Two channels with a scale each and one first layer for all are a case for fold.py.
    folded = alike and front in ("paper", "scale") and model not in IMAGES
    assert bool(seen) != folded and torch.equal(right, answers)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("worth", [0, 10**15], ids=["compiled", "torch"])
@pytest.mark.parametrize("front", ["none", "paper", "shift"])
def test_judging_with_a_fixed_mean_and_deviation_equals_the_loop(front, worth, monkeypatch):
    """What stands between transform and first layer is no part of a fold of the two."""
    monkeypatch.setattr(chain, "_WORTH", worth)
    network, layout, stats, rows, samples = problem("regression", front, standard=True)
    rows[:, : layout.sent] = rows[0, : layout.sent]
    given = rows, torch.zeros(CLIENTS, 0), torch.arange(27).expand(CLIENTS, -1), samples, True
    loss, right = FastEngine(network, layout, stats).predict(*given)
    expected, answers = LoopEngine(network, layout, stats).predict(*given)
    assert torch.equal(right, answers)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=2e-6)


def test_judging_divides_by_whom_the_first_layer_serves(monkeypatch):
    """A product of the first layer for all clients together, unless each client scales its own pixels."""
    from fedpriv.engine import judged

    known, real = [], judged.judge
    monkeypatch.setattr(judged, "judge", lambda *given: (known.append(len(given[4])), real(*given)))
    for front, once in {"none": True, "shift": True, "pixels": False, "tanh": False}.items():
        network, layout, stats, rows, samples = problem("tanh", front)
        known.clear()
        index = torch.arange(27).expand(CLIENTS, -1)
        FastEngine(network, layout, stats).predict(rows, torch.zeros(CLIENTS, 0), index, samples, True)
        assert known and all(bool(count) == once for count in known), front


def test_what_is_no_number_is_judged_wrong_or_infinite_as_torch_does():
    network, layout, stats, rows, samples = problem("tanh")
    rows[0, 0] = torch.nan
    index = torch.arange(27).expand(CLIENTS, -1)
    given = rows, torch.zeros(CLIENTS, 0), index, samples
    loss, right = FastEngine(network, layout, stats).predict(*given)
    expected, answers = LoopEngine(network, layout, stats).predict(*given)
    assert torch.equal(right, answers) and loss[0].isnan().all()
    torch.testing.assert_close(loss[1:], expected[1:], rtol=1e-5, atol=2e-6)


class Doubling(nn.Flatten):
    def forward(self, x):
        return 2 * super().forward(x)


def tied(*layers):
    layers[-1].bias = layers[1].bias
    return nn.Sequential(*layers)


OTHERS = {
    "a bias in two layers": lambda: tied(nn.Flatten(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 24)),
    "a layer of one's own": lambda: nn.Sequential(Doubling(), nn.Linear(24, 4)),
    "a kernel larger than the image": lambda: nn.Sequential(
        nn.Conv2d(2, 3, (5, 6)), nn.Flatten(), nn.Linear(3, 4)
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_networks_are_left_to_torch(name):
    _, _, _, _, samples = problem()
    network = Network(nn.Identity(), OTHERS[name]())
    layout, stats = Layout.of_parameters(network, []), Layout.of_statistics(network)
    assert chain.Chain.of(network, layout, stats, samples.x.shape[1:]) is None


def test_sizes_of_one_number_are_those_of_both_directions():
    _, _, _, _, samples = problem()
    found = []
    for size in (2, (2,), (2, 2)):
        model = nn.Sequential(nn.MaxPool2d(size, stride=size), nn.Flatten(), nn.Linear(4, 4))
        network = Network(nn.Identity(), model)
        layout, stats = Layout.of_parameters(network, []), Layout.of_statistics(network)
        found.append(chain.Chain.of(network, layout, stats, samples.x.shape[1:]).shapes)
    assert all((shapes == found[0]).all() for shapes in found)
