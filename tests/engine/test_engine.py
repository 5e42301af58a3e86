"""The fast engine means what the loop engine (Opacus, one client at a time) means, on every model."""

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedpriv.engine import batches, convolution
from fedpriv.engine.convolution import LargeConv2d, SmallConv2d
from fedpriv.engine.data import ClientData
from fedpriv.engine.dropout import sample_names
from fedpriv.engine.fast import FastEngine
from fedpriv.engine.loop import LoopEngine
from fedpriv.engine.rules import gram_or_direct
from fedpriv.engine.tape import Batch, GhostNet, VmapNet, cross_entropy, stack
from fedpriv.engine.work import Private, Work
from fedpriv.errors import UserError
from fedpriv.models import alexnet, cnn, mlp
from fedpriv.models.parts import Network
from tests.helpers.draws import source
from tests.helpers.networks import CLASSES, CLIENTS, IMAGES, MODELS, SMALL, make


def round_of(layout, rows, buffers, samples, private=True, seed=1, batch=4, **more) -> Work:
    steps = batches.local_steps(samples.size, batch, 1, None)
    everyone = torch.arange(CLIENTS)
    if private:
        names = sample_names(everyone, samples.owned)
        plan = batches.poisson(samples.size, torch.full((CLIENTS,), 0.3), steps, names, source(seed))
    else:
        plan = batches.shuffled(samples.size, batch, steps, everyone, source(seed))
    return Work(
        rows=rows.clone(),
        buffers=buffers.clone(),
        clients=everyone,
        plan=plan,
        source=source(5),
        lr=[0.1] * plan.index.shape[1],
        private=Private(0.7, torch.tensor([0.5, 1.0, 2.0]), 4.0, source(7)) if private else None,
        **more,
    )


def both(name: str, work_of, double: bool = True):
    network, layout, stats, rows, buffers, samples = make(name, double)
    out = []
    for engine in (FastEngine, LoopEngine):
        work = work_of(layout, rows, buffers, samples)
        trained = engine(network, layout, stats).train(work, samples)
        out.append((work.rows, work.buffers, trained.loss.double()))
    return out


SLOW = pytest.mark.long  # eleven million weights, against a loop


def seldom(*names: str) -> list:
    """The models, the largest marked as taking long."""
    return [pytest.param(n, marks=SLOW) if n.startswith("resnet18") else n for n in names]


@pytest.mark.parametrize("name", seldom(*MODELS))
def test_gradients_and_clipped_sums_equal_opacus(name):
    network, layout, stats, rows, buffers, samples = make(name)
    net = stack(network)
    assert isinstance(net, GhostNet), "every shipped model has ghost rules"
    index = samples.owned[:, :5]
    x, y = samples.prepare(samples.x[index]), samples.y[index]
    mask = torch.ones(CLIENTS, 5, dtype=torch.float64)
    for dropout in net.dropouts:
        dropout.name(source(), index.flatten(), 0)
    tape = net.tape(layout.views(rows), stats.views(buffers), Batch(x, y, mask, [5] * CLIENTS))
    norms = tape.square_norms().sqrt()
    clip = norms.median()
    clipped = torch.zeros_like(rows)
    tape.add(layout.views(clipped), clip / norms.clamp(min=float(clip)), 1.0)
    for sample in range(5):
        one = torch.zeros_like(rows)
        tape.add(layout.views(one), F.one_hot(torch.full((CLIENTS,), sample), 5).double(), 1.0)
        torch.testing.assert_close(one.norm(dim=1), norms[:, sample])
    loop = LoopEngine(network, layout, stats)
    for client in range(CLIENTS):
        model = loop._load(rows[client], buffers[client])
        for dropout in loop.dropouts:
            dropout.name(source(), index[client], 0)
        oracle, losses = loop.per_sample(model, x[client], y[client])
        torch.testing.assert_close(norms[client], oracle.norm(dim=1))
        factors = clip / oracle.norm(dim=1).clamp(min=float(clip))
        torch.testing.assert_close(clipped[client], factors @ oracle)
        torch.testing.assert_close(tape.losses[client], losses)


@pytest.mark.parametrize("packed", [0, 1 << 60], ids=["packed", "padded"])
@pytest.mark.parametrize("name", seldom(*(n for n in MODELS if n != "resnet18 imagenet stem")))
def test_one_private_round_equals_the_loop(name, monkeypatch, packed):
    monkeypatch.setattr("fedpriv.engine.fast._PACKED", packed)
    (fast, _, fast_loss), (loop, _, loop_loss) = both(name, round_of)
    torch.testing.assert_close(fast, loop)
    torch.testing.assert_close(fast_loss, loop_loss, equal_nan=True, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", seldom("mlp", "cnn", "resnet18"))
def test_one_plain_round_equals_the_loop(name):
    (fast, _, _), (loop, _, _) = both(name, partial(round_of, private=False))
    torch.testing.assert_close(fast, loop)


@pytest.mark.parametrize("private", [True, False])
def test_momentum_decay_correction_and_home_rate_equal_the_loop(private):
    more = {
        "momentum": 0.9,
        "weight_decay": 0.01,
        "home_lr": 0.3,
        "correction": lambda rows, here: 0.1 * rows + torch.arange(3.0, dtype=rows.dtype)[here, None],
        "after_step": lambda rows, here: rows.clamp_(-0.5, 0.5),
    }
    (fast, _, _), (loop, _, _) = both("mlp", partial(round_of, private=private, **more))
    torch.testing.assert_close(fast, loop)


@pytest.mark.parametrize(
    "model", [partial(cnn.pfa_cnn, norm="batch"), partial(mlp.mlp, sizes=[8], norm="batch")]
)
def test_batch_norm_equals_the_loop_with_ragged_batches(model, monkeypatch):
    monkeypatch.setitem(MODELS, "bn", (model, IMAGES))
    (fast, fast_stats, _), (loop, loop_stats, _) = both("bn", partial(round_of, private=False, batch=7))
    torch.testing.assert_close(fast, loop)
    torch.testing.assert_close(fast_stats, loop_stats)


def with_shared(layout, rows, buffers, samples, private=False, **more):
    """A round whose steps hold shared samples besides own ones, ragged both."""
    work = round_of(layout, rows, buffers, samples, private=private, **more)
    sizes = torch.tensor([5, 9, 3])
    behind = batches.shuffled(sizes, 2, work.plan.active.sum(1), torch.arange(3), source(3))
    return replace(work, plan=batches.joined(work.plan, behind, samples.size))


def sharing(samples):
    """Nine shared samples, the same ones behind each client's own."""
    shape = samples.prepare(samples.x[:9]).shape
    x = torch.randn(shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    owned = torch.zeros(CLIENTS, int(samples.size.max()) + 9, dtype=torch.int64)
    for client, size in enumerate(samples.size):
        owned[client, :size] = samples.owned[client, :size]
        owned[client, size : size + 9] = len(samples.y) + torch.arange(9)
    return replace(samples, owned=owned, shared=(x, torch.arange(9) % CLASSES))


def both_with_shared(name, **more):
    network, layout, stats, rows, buffers, samples = make(name)
    samples, out = sharing(samples), []
    for engine in (FastEngine, LoopEngine):
        work = with_shared(layout, rows, buffers, samples, **more)
        trained = engine(network, layout, stats).train(work, samples)
        out.append((work, trained.loss))
    return samples, out


@pytest.mark.parametrize(
    ("name", "private"), [("mlp", True), ("mlp", False), ("mlp large", True), ("cnn", False)]
)
def test_shared_samples_equal_the_loop(name, private, monkeypatch):
    monkeypatch.setattr("fedpriv.engine.fast._PACKED", 0)
    _, [(fast, fast_loss), (loop, loop_loss)] = both_with_shared(name, private=private)
    torch.testing.assert_close(fast.rows, loop.rows)
    torch.testing.assert_close(fast_loss, loop_loss, equal_nan=True, rtol=1e-5, atol=1e-6)


def test_shared_samples_with_batch_norm_and_dropout_equal_the_loop(monkeypatch):
    monkeypatch.setitem(MODELS, "bn", (partial(mlp.mlp, sizes=[8], norm="batch"), SMALL))
    for name in ("bn", "cnn_cifar"):
        _, [(fast, _), (loop, _)] = both_with_shared(name, batch=7)
        torch.testing.assert_close(fast.rows, loop.rows)
        torch.testing.assert_close(fast.buffers, loop.buffers)


def test_a_step_is_the_mean_of_own_plus_the_mean_of_shared_losses():
    """FedPD's eq. 3 by torch's own gradient, for the first step of the first client."""
    network, layout, stats, rows, buffers, samples = make("mlp")
    samples = sharing(samples)
    work = with_shared(layout, rows, buffers, samples)
    work.plan.active[:, 1:] = False
    plan, start = work.plan, rows[0].clone()
    FastEngine(network, layout, stats).train(work, samples)
    own, shared = int(plan.size[0, 0]), int(plan.shared[0, 0])
    assert own == 4 and shared == 2
    x, y = samples.take(samples.owned[0][plan.index[0, 0, : own + shared]])
    assert torch.equal(x[own:], samples.shared[0][plan.index[0, 0, own : own + shared] - samples.size[0]])
    model = LoopEngine(network, layout, stats)._load(start, buffers[0])
    losses = F.cross_entropy(model(x), y, reduction="none")
    (losses[:own].mean() + losses[own:].mean()).backward()
    named = dict(model.named_parameters())
    gradient = torch.cat([named[e.name].grad.flatten() for e in layout.entries])
    torch.testing.assert_close(work.rows[0], start - 0.1 * gradient)


def test_measuring_gives_the_gradient_over_all_samples_and_trains_nothing():
    found = []
    for engine in (FastEngine, LoopEngine):
        network, layout, stats, rows, buffers, samples = make("cnn")
        samples = sharing(samples)
        work = replace(with_shared(layout, rows, buffers, samples), measured=torch.zeros_like(rows))
        engine(network, layout, stats).train(work, samples)
        assert torch.equal(work.rows, rows)
        found.append(work.measured)
    torch.testing.assert_close(*found)
    model = LoopEngine(network, layout, stats)._load(rows[0], buffers[0])
    own = samples.take(samples.owned[0, : int(samples.size[0])])
    (gradients, _) = LoopEngine(network, layout, stats).per_sample(model, *own)
    count, index = int(work.plan.shared[0].sum()), work.plan.index[0]
    where = [index[t, work.plan.size[0, t] : work.plan.taken[0, t]] for t in range(len(index))]
    others, _ = LoopEngine(network, layout, stats).per_sample(
        model, *samples.take(samples.owned[0][torch.cat(where)])
    )
    torch.testing.assert_close(found[0][0], gradients.mean(0) + others.sum(0) / count)


class Odd(nn.Module):
    """A layer nobody wrote a rule for."""

    def __init__(self, shape, classes):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, 64))

    def forward(self, x):
        return torch.sin(x.flatten(1) @ self.weight.T)


def test_a_layer_without_a_rule_falls_back_to_vmap_and_still_equals_the_loop(monkeypatch):
    monkeypatch.setitem(MODELS, "odd", (Odd, SMALL))
    assert isinstance(stack(make("odd")[0]), VmapNet)
    network, layout, stats, rows, buffers, samples = make("odd")
    work = round_of(layout, rows, buffers, samples)
    FastEngine(network, layout, stats).train(work, samples)
    # Opacus has no rule either, so the oracle here is torch's own gradient of each sample.
    expected = rows.clone()
    for client in range(CLIENTS):
        for step in range(len(work.lr)):
            if not work.plan.active[client, step]:
                continue
            z = work.private.noise.normals([client], rows[:1], step)[0]
            total = z * work.private.noise_std[client]
            for place in work.plan.index[client, step, : work.plan.size[client, step]]:
                sample = samples.owned[client, place]
                weight = expected[client].view(CLASSES, 64).clone().requires_grad_()
                out = torch.sin(samples.prepare(samples.x[sample]).flatten() @ weight.T)
                (g,) = torch.autograd.grad(F.cross_entropy(out, samples.y[sample]), weight)
                total += g.flatten() * min(1.0, 0.7 / float(g.norm()))
            expected[client] -= 0.1 / 4.0 * total
    torch.testing.assert_close(work.rows, expected)


@pytest.mark.parametrize(
    ("packed", "expected"), [(1 << 60, [(3, 4), (3, 4), (2, 4)]), (0, [(3, 4), (10,), (5,)])]
)
def test_a_client_that_is_done_costs_nothing(monkeypatch, packed, expected):
    """Clients of 6, 12 and 9 samples take 2, 3 and 3 batches of 4: the last step is of two clients. Packed,
    the second is of 2, 4 and 4 samples and the last of 4 and 1."""
    monkeypatch.setattr("fedpriv.engine.fast._PACKED", packed)
    network, layout, stats, rows, buffers, samples = make("mlp")
    work, fetched = round_of(layout, rows, buffers, samples, private=False), []

    class Watched(ClientData):
        def take(self, index):
            fetched.append(tuple(index.shape))
            return super().take(index)

    FastEngine(network, layout, stats, threads=1).train(work, Watched(**vars(samples)))
    assert work.plan.active.sum(1).tolist() == [2, 3, 3]
    assert fetched[-3:] == expected


@pytest.mark.parametrize("count", [1, 7])
def test_the_loss_and_its_slope_are_torchs(count):
    torch.manual_seed(0)
    outputs = (5 * torch.randn(count, CLASSES, dtype=torch.float64)).requires_grad_()
    kept, y, weight = outputs.detach().clone(), torch.randint(CLASSES, (count,)), torch.rand(count).double()
    losses, slope = cross_entropy(outputs.detach(), y, weight)
    expected = F.cross_entropy(outputs, y, reduction="none")
    torch.testing.assert_close(losses, expected.detach())
    torch.testing.assert_close(slope, torch.autograd.grad((expected * weight).sum(), outputs)[0])
    assert torch.equal(outputs.detach(), kept), "the network's outputs are not written to"


def test_a_pass_is_a_permutation_cut_into_batches():
    samples, steps = torch.tensor([5, 8, 1]), torch.tensor([5, 4, 1])  # one sample, one step
    plan = batches.shuffled(samples, 3, steps, torch.arange(3), source())
    assert plan.active.sum(1).tolist() == steps.tolist()
    assert plan.size.tolist() == [[3, 2, 3, 2, 3], [3, 3, 2, 3, 0], [1, 0, 0, 0, 0]]
    for client, step, length in ((0, 0, 2), (0, 2, 2), (1, 0, 3), (2, 0, 1)):
        rows = zip(
            plan.index[client, step : step + length], plan.size[client, step : step + length], strict=True
        )
        seen = torch.cat([row[:size] for row, size in rows])
        assert sorted(seen.tolist()) == list(range(int(samples[client])))
    assert not plan.index[torch.arange(3) >= plan.size[:, :, None]].any()


def test_equal_keys_keep_their_order():
    keys = source().words(range(4), 1000) % 50
    assert torch.equal(batches._order(keys), keys.argsort(dim=1, stable=True))


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("name", ["mlp", "cnn_cifar"])
def test_chunks_and_threads_do_not_change_a_number(monkeypatch, name, private):
    results = []
    for cache, threads in ((8 << 20, 1), (1, 1), (1, 3), (8 << 20, 3)):
        monkeypatch.setattr("fedpriv.engine.fast._CACHE", cache)
        monkeypatch.setattr("fedpriv.engine.fast._ENOUGH", 0 if threads > 1 else 1 << 40)
        network, layout, stats, rows, buffers, samples = make(name)
        work = round_of(layout, rows, buffers, samples, private)
        FastEngine(network, layout, stats, threads=threads).train(work, samples)
        results.append(work.rows)
    for other in results[1:]:
        torch.testing.assert_close(results[0], other, rtol=0, atol=1e-12)


def test_an_empty_batch_still_gets_noise_and_an_inactive_step_none():
    network, layout, stats, rows, buffers, samples = make("mlp")
    work = round_of(layout, rows, buffers, samples)
    work.plan.size[:] = 0
    work.plan.active[1, :] = False
    FastEngine(network, layout, stats).train(work, samples)
    moved = (work.rows - rows).norm(dim=1)
    assert moved[0] > 0 and moved[2] > 0 and moved[1] == 0


def test_predictions_equal_the_loop():
    network, layout, stats, rows, buffers, samples = make("cnn group")
    index = samples.owned[:, :6]
    fast = FastEngine(network, layout, stats).predict(rows, buffers, index, samples)
    loop = LoopEngine(network, layout, stats).predict(rows, buffers, index, samples)
    torch.testing.assert_close(fast[0], loop[0])
    assert torch.equal(fast[1], loop[1])


class Twice(nn.Module):
    """One layer under two names, called three times; optionally an in-place function in between."""

    def __init__(self, shape, classes, inplace=False):
        super().__init__()
        self.inside = nn.Linear(64, 64)
        self.again = self.inside
        self.head = nn.Linear(64, classes)
        self.careless = inplace

    def forward(self, x):
        h = torch.tanh(self.again(torch.tanh(self.inside(x.flatten(1)))))
        return self.head(F.relu(self.inside(h), inplace=self.careless))


def test_a_layer_used_under_two_names_is_one_layer(monkeypatch):
    monkeypatch.setitem(MODELS, "twice", (Twice, SMALL))
    assert isinstance(stack(make("twice")[0]), GhostNet)
    test_gradients_and_clipped_sums_equal_opacus("twice")


class ConvTwice(nn.Module):
    """One convolution at two sizes of image, with a bias, a stride and a dilation."""

    def __init__(self, shape, classes):
        super().__init__()
        self.again = nn.Conv2d(shape[0], shape[0], 3, stride=2, padding=1, dilation=2)
        self.head = nn.Linear(shape[0] * 25, classes)

    def forward(self, x):
        return self.head(torch.tanh(self.again(F.pad(torch.tanh(self.again(x)), (3, 3, 3, 3)))).flatten(1))


@pytest.mark.parametrize("name", ["cnn", "cnn_cifar", "twice"])
def test_large_kernels_are_the_same_convolution(monkeypatch, name):
    monkeypatch.setitem(MODELS, "twice", (ConvTwice, (3, 14, 14)))
    for least, kind in ((1, LargeConv2d), (1 << 30, SmallConv2d)):
        monkeypatch.setattr(convolution, "_LARGE", least)
        layers = stack(make(name)[0]).layers.values()
        assert any(type(layer) is kind for layer in layers)
        test_gradients_and_clipped_sums_equal_opacus(name)
        (fast, _, _), (loop, _, _) = both(name, round_of)
        torch.testing.assert_close(fast, loop)


def test_an_output_changed_in_place_is_refused_and_not_silently_wrong(monkeypatch):
    monkeypatch.setitem(MODELS, "inplace", (partial(Twice, inplace=True), SMALL))
    network, layout, stats, rows, buffers, samples = make("inplace")
    with pytest.raises(UserError, match="in place"):
        FastEngine(network, layout, stats).train(round_of(layout, rows, buffers, samples), samples)


def test_tied_parameters_fall_back_to_vmap():
    class Tied(Twice):
        def __init__(self, shape, classes):
            super().__init__(shape, classes)
            self.again = nn.Linear(64, 64)
            self.again.weight = self.inside.weight

    assert isinstance(stack(Network(nn.Identity(), Tied(SMALL, CLASSES))), VmapNet)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("name", ["linear", "mlp vector"])
def test_one_bad_sample_moves_a_private_step_no_further_than_any_other(monkeypatch, name, value):
    """Clipping must hold for every record there can be: an overflowing one is left out."""
    monkeypatch.setitem(MODELS, "mlp vector", (partial(mlp.mlp, sizes=[90], activation="relu"), (784,)))
    network, layout, stats, rows, buffers, samples = make(name, double=False)
    samples.x[int(samples.owned[0, 0])] = value
    for engine in (FastEngine, LoopEngine):
        work = round_of(layout, rows, buffers, samples)
        work.plan.size[:], work.plan.index[:] = 1, 0  # only the first sample of each client, every step
        quiet = replace(work, private=replace(work.private, noise_std=torch.zeros(3)))
        engine(network, layout, stats).train(quiet, samples)
        steps = work.plan.active[0].sum()
        assert (work.rows[0] - rows[0]).norm() <= 0.1 * 0.7 / 4.0 * steps * (1 + 1e-3)
        assert work.rows.isfinite().all()


@pytest.mark.long
def test_alexnet_private_round_equals_the_loop(monkeypatch):
    monkeypatch.setitem(MODELS, "alexnet", (partial(alexnet.alexnet, dropout=0.0), (3, 63, 63)))
    (fast, _, _), (loop, _, _) = both("alexnet", round_of)
    torch.testing.assert_close(fast, loop)


def test_norms_from_products_of_products_count_what_vanishes():
    """Inputs of 1e18 and slopes of 6e-20: the Gram matrix of these is zero in floats, the gradient is not."""
    a, g = torch.zeros(1, 2, 40), torch.full((1, 2, 40), 6e-20)
    a[0, 0] = 1e18
    torch.set_flush_denormal(True)
    squares, each = gram_or_direct(a, g)
    exact = torch.bmm(g.double().transpose(1, 2), a.double()).square().sum()
    assert each is None and exact > 1 and squares[0] >= exact * 0.999
