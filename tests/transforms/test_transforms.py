"""Personal transforms: what they compute, that they stay at home, and that both engines agree on them."""

import itertools
from functools import partial

import pytest
import torch

from fedpriv.building import build
from fedpriv.datasets.base import Data
from fedpriv.engine.batches import Plan
from fedpriv.engine.data import ClientData
from fedpriv.engine.fast import FastEngine
from fedpriv.engine.fold import Fold
from fedpriv.engine.layout import Layout
from fedpriv.engine.tape import GhostNet, stack
from fedpriv.engine.work import Private, Work
from fedpriv.errors import UserError
from fedpriv.models.mlp import mlp
from fedpriv.models.parts import Network
from fedpriv.transforms.conv import convolution
from fedpriv.transforms.elementwise import elementwise
from tests.conftest import SMALL
from tests.engine import test_engine as engine
from tests.helpers.draws import source

SHAPE = (2, 5, 5)
FUNCTIONS = ["linear", "sigmoid", "tanh", "relu", "quadratic"]


@pytest.mark.parametrize("make", [elementwise, convolution])
def test_the_default_starts_as_the_identity(make):
    x = torch.randn(3, *SHAPE)
    torch.testing.assert_close(make(SHAPE)(x), x)


BY_HAND = {"linear": -2.5, "sigmoid": 0.0759, "tanh": -0.9866, "relu": 0.0, "quadratic": 1.5}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_by_hand(function):
    """alpha 2 and beta -0.5 at x = -1: the affine part is -2.5, and 2 * 1 - 0.5 = 1.5 after squaring."""
    layer = elementwise((1,), function=function, alpha_init=2.0, beta_init=-0.5)
    assert layer(torch.tensor([[-1.0]])).item() == pytest.approx(BY_HAND[function], abs=1e-4)


@pytest.mark.parametrize(
    ("alpha", "beta", "numbers"),
    [("fixed", "pixel", 50), ("channel", "pixel", 52), ("pixel", "channel", 52), ("channel", "fixed", 2)],
)
def test_free_numbers(alpha, beta, numbers):
    layer = elementwise(SHAPE, alpha=alpha, beta=beta)
    assert sum(p.numel() for p in layer.parameters()) == numbers
    vector = elementwise((50,), alpha="channel", beta="pixel")
    assert sum(p.numel() for p in vector.parameters()) == 51  # one alpha, as the authors' code has it


ALL = [
    partial(elementwise, function=f, alpha=a, beta=b)
    for f, (a, b) in itertools.product(
        FUNCTIONS, [("channel", "pixel"), ("pixel", "channel"), ("fixed", "fixed")]
    )
] + [partial(convolution, kernel=3)]


@pytest.mark.parametrize("transform", ALL)
def test_gradients_and_a_private_round_equal_opacus(monkeypatch, transform):
    def build_model(shape, classes):
        return torch.nn.Sequential(transform(shape), mlp(shape, classes, sizes=[7]))

    monkeypatch.setitem(engine.MODELS, "transformed", (build_model, SHAPE))
    assert isinstance(stack(engine.make("transformed")[0]), GhostNet)
    engine.test_gradients_and_clipped_sums_equal_opacus("transformed")
    for packed in (0, 1 << 60):
        engine.test_one_private_round_equals_the_loop("transformed", monkeypatch, packed)


def test_a_transform_stays_at_home_and_is_each_clients_own(config):
    run = build(config(*SMALL, "transform=linear", "dp=none", "lr=0.5", "transform.lr=0.2"))
    trainer = run.trainer
    assert trainer.sgd.home_lr == 0.2
    weights = 64 * 8 + 8 * 10
    assert trainer.theta.numel() == weights and trainer.store["home"].shape == (4, 64 + 1)
    result = trainer.round()
    assert result.uplink == 4 * 4 * weights  # only the model is sent
    home = trainer.store["home"]
    assert all(not torch.equal(home[a], home[b]) for a, b in itertools.combinations(range(4), 2))
    assert result.evaluation.accuracy_local != result.evaluation.accuracy_global


def test_under_dp_sgd_one_clip_covers_model_and_transform(config):
    """The norm that is clipped is that of all parameters together, the private ones included."""
    trainer = build(config(*SMALL, "transform=linear", "dp=ldp")).trainer
    layout: Layout = trainer.setting.layout
    assert layout.total == layout.sent + 65
    before = torch.cat([trainer.theta, trainer.store["home"][0]])[None]
    work = Work(
        rows=before.clone(),
        buffers=trainer.store["statistics"][:1].clone(),
        clients=torch.tensor([0]),
        plan=Plan(torch.tensor([[[0]]]), torch.tensor([[1]]), torch.ones(1, 1, dtype=torch.bool)),
        source=source(5),
        lr=[1.0],
        private=Private(0.125, torch.zeros(1), 1.0, None),
    )
    trainer.engine.train(work, trainer.train)  # one sample, clipped, without noise
    moved = (before - work.rows)[0]
    assert moved.norm().item() == pytest.approx(0.125, rel=1e-4)
    assert moved[: layout.sent].norm() > 0.01 and moved[layout.sent :].norm() > 0.01


@pytest.mark.parametrize("wrong", [lambda: convolution((54,)), lambda: convolution(SHAPE, kernel=4)])
def test_what_does_not_fit_is_refused(wrong):
    with pytest.raises(UserError):
        wrong()


@pytest.mark.parametrize("alpha", ["fixed", "channel", "pixel"])
@pytest.mark.parametrize("beta", ["fixed", "channel", "pixel"])
@pytest.mark.parametrize("sizes", [[], [7]])
def test_the_first_layer_computed_once_for_everyone_gives_the_same_answers(alpha, beta, sizes):
    """W (alpha x + beta) = alpha (W x) + W beta, in double precision; alpha per pixel goes the long way."""
    torch.manual_seed(0)
    transform = elementwise(SHAPE, alpha=alpha, beta=beta, alpha_init=0.7, beta_init=-0.3)
    network = Network(transform, mlp(SHAPE, 3, sizes=sizes, bias=True)).double()
    home = [f"transform.{n}" for n, _ in transform.named_parameters()]
    layout, statistics = Layout.of_parameters(network, home), Layout.of_statistics(network)
    fast = FastEngine(network, layout, statistics, threads=1)
    assert (Fold.of(stack(network), layout) is None) == (alpha == "pixel")
    rows = layout.flatten(network).double().repeat(4, 1)
    rows[:, layout.sent :] += torch.randn(4, layout.total - layout.sent)
    x, y = torch.randn(9, *SHAPE).double(), torch.arange(9) % 3
    data = ClientData.of(Data("x", x, y, x, y, 3), "test", [range(9)] * 4, "cpu", torch.float64)
    everything = torch.arange(9).expand(4, -1)
    plain = fast.predict(rows, torch.zeros(4, 0), everything, data)
    folded = fast.predict(rows, torch.zeros(4, 0), everything, data, alike=True)
    torch.testing.assert_close(folded, plain)
