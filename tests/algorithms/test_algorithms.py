"""Algorithms: the server step by hand, reductions to FedAvg, what stays at home."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedpriv.aggregators.base import Aggregator
from fedpriv.algorithms.fedavg import FedAvg
from fedpriv.algorithms.fednova import FedNova
from fedpriv.building import build
from fedpriv.errors import UserError
from fedpriv.mechanisms.base import NoPrivacy
from fedpriv.parts.wiring import wire
from fedpriv.uploads.plain import Plain
from tests.conftest import SMALL

pytestmark = pytest.mark.usefixtures("same_draws")


def trained(config, *overrides, rounds=2):
    trainer = build(config(*SMALL, *overrides)).trainer
    for _ in range(rounds):
        trainer.round()
    return trainer


def test_server_step_and_momentum_by_hand():
    algorithm = FedAvg(server_lr=0.5, server_momentum=0.9)
    theta = torch.tensor([1.0]) + algorithm.move(torch.tensor([2.0]), None)
    assert theta.item() == pytest.approx(1 + 0.5 * 2)
    other = FedAvg(server_lr=0.5, server_momentum=0.9)
    other.load(algorithm.state())
    theta = theta + other.move(torch.tensor([1.0]), None)
    assert theta.item() == pytest.approx(2 + 0.5 * (0.9 * 2 + 1))


def test_a_round_of_fedavg_is_the_mean_of_the_local_models(config):
    trainer = build(config(*SMALL, "dp=none", "rounds=1")).trainer
    start, models = trainer.theta.clone(), []
    message = trainer.algorithm.message
    trainer.algorithm.message = lambda local, r, s: models.append(local.clone()) or message(local, r, s)
    trainer.round()
    assert not torch.equal(models[0][0], start)
    torch.testing.assert_close(trainer.theta, models[0].mean(0))


@pytest.mark.parametrize("dp", ["none", "ldp", "cdp"])
def test_fedprox_without_pull_is_fedavg_and_costs_the_same_privacy(config, dp):
    plain = trained(config, f"dp={dp}")
    zero = trained(config, f"dp={dp}", "algorithm=fedprox", "algorithm.mu=0")
    assert torch.equal(plain.theta, zero.theta)
    pulled = trained(config, f"dp={dp}", "algorithm=fedprox", "algorithm.mu=3")
    assert pulled.ledger.claimed().tolist() == plain.ledger.claimed().tolist()


def test_fedprox_by_hand_pulls_back_to_the_broadcast_model(config):
    """Two plain steps from theta: w1 = theta - lr g1, w2 = w1 - lr (g2 + mu (w1 - theta))."""
    work = ("dp=none", "local_steps=2", "rounds=1", "clients=2", "partition=iid")
    start = build(config(*SMALL, *work)).trainer.theta
    one, two, pulled = (
        trained(config, *work, *more, rounds=1).theta - start
        for more in (("local_steps=1",), (), ("algorithm=fedprox", "algorithm.mu=3"))
    )
    # Both clients' pulls are linear in their first move, so the mean obeys the same formula.
    torch.testing.assert_close(pulled, two - 0.1 * 3 * one, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("algorithm", "norm", "dp"),
    [("fedbn", "batch", "none"), ("fedbn", "batch", "cdp"), ("fedgn", "group", "ldp")],
)
def test_norm_layers_stay_at_home(config, algorithm, norm, dp):
    options = (f"algorithm={algorithm}", f"model.norm={norm}", "model.sizes=[16]", f"dp={dp}")
    trainer = trained(config, *options)
    assert trainer.setting.layout.sent == 64 * 16 + 16 * 10  # without the 2 * 16 of the norm
    home = trainer.store["home"]
    assert home.shape == (4, 32) and not torch.equal(home[0], home[1])
    assert trainer.store["statistics"].shape == (4, 32 if norm == "batch" else 0)


def test_nothing_to_keep_at_home_is_refused(config):
    with pytest.raises(UserError, match=r"model\.norm=batch"):
        build(config(*SMALL, "algorithm=fedbn", "dp=none"))


# -- DP-SCAFFOLD


def test_scaffold_by_hand_over_two_rounds(config):
    """Round 1 has zero variates, so is FedAvg; then c_k = -(w_k - theta) / (steps lr), and c their mean."""
    options = ("dp=none", "partition=iid", "lr=0.2", "dtype=float64")
    trainer = build(config(*SMALL, *options, "algorithm=dp_scaffold", "rounds=2")).trainer
    models = []
    message = trainer.algorithm.message
    trainer.algorithm.message = lambda local, r, s: models.append(local.clone()) or message(local, r, s)
    start = trainer.theta.clone()
    trainer.round()
    plain = trained(config, *options, rounds=1)
    torch.testing.assert_close(trainer.theta, plain.theta)
    steps = torch.as_tensor(trainer.setting.steps)
    by_hand = -(models[0] - start) / (steps[:, None] * 0.2)
    torch.testing.assert_close(trainer.store["control"].double(), by_hand, rtol=1e-4, atol=1e-6)
    server = trainer.algorithm.state()["control"]
    torch.testing.assert_close(server.double(), by_hand.mean(0), rtol=1e-4, atol=1e-6)
    # The corrections of the second round pull every client by c - c_k, a constant gradient.
    second = trainer.theta.clone()
    correction = trainer.algorithm.correction(a_round(trainer), trainer.store)
    torch.testing.assert_close(
        correction(second.expand(4, -1), slice(1, 3)), (server - by_hand)[1:3].to(second)
    )


def a_round(trainer):
    return SimpleNamespace(clients=np.arange(trainer.setting.clients))


def test_scaffold_variates_stay_the_mean_of_a_clients_private_gradients(config):
    """c_k is the average of what DP-SGD released: the ledger is the same as without it."""
    plain = trained(config, "dp=ldp", rounds=3)
    private = trained(config, "dp=ldp", "algorithm=dp_scaffold", rounds=3)
    assert private.ledger.claimed().tolist() == plain.ledger.claimed().tolist()
    torch.testing.assert_close(
        private.algorithm.state()["control"], private.store["control"].mean(0), rtol=1e-3, atol=1e-5
    )  # everyone takes part, so the server's variate stays the mean of the clients'


def test_scaffold_sends_both_and_continues_from_a_checkpoint(config):
    trainer = build(config(*SMALL, "algorithm=dp_scaffold", "rounds=3")).trainer
    assert trainer.round().uplink == 2 * 4 * 4 * trainer.theta.numel()
    other = build(config(*SMALL, "algorithm=dp_scaffold", "rounds=3")).trainer
    other.load(copy.deepcopy(trainer.state()))
    trainer.round(), other.round()
    assert torch.equal(trainer.theta, other.theta)


# -- PP-SGD


@pytest.mark.parametrize("dp", ["none", "cdp"])
def test_ppsgd_without_mixing_is_fedavg(config, dp):
    plain = trained(config, f"dp={dp}", "transform=linear")
    zero = trained(config, f"dp={dp}", "transform=linear", "algorithm=ppsgd", "algorithm.mixing=0")
    torch.testing.assert_close(plain.theta, zero.theta)
    torch.testing.assert_close(plain.store["home"], zero.store["home"])
    assert not zero.store["personal"].any()


def test_ppsgd_by_hand(config):
    """A step on theta + p is -lr (1 + m) g: a third of the way is theta's for m = 2, two thirds stay home."""
    options = ("dp=none", "local_steps=1", "rounds=2", "lr=0.3", "partition=iid", "dtype=float64")
    plain = trained(config, *options, rounds=1)
    trainer = build(config(*SMALL, *options, "algorithm=ppsgd", "algorithm.mixing=2")).trainer
    start = trainer.theta.clone()
    result = trainer.round()
    torch.testing.assert_close(trainer.theta, plain.theta)  # the first gradient is that of theta alone
    personal = trainer.store["personal"].double()
    torch.testing.assert_close(personal.mean(0), 2 * (trainer.theta - start), rtol=1e-4, atol=1e-6)
    own = trainer.algorithm.start(trainer.theta, torch.arange(4), trainer.store)
    torch.testing.assert_close(own, trainer.theta + personal.to(own))
    assert result.evaluation.loss_local != result.evaluation.loss_whole


def test_ppsgd_judges_every_client_with_its_own_sum(config):
    trainer = build(config(*SMALL, "dp=none", "algorithm=ppsgd")).trainer
    trainer.round()
    right = trainer.store["personal"].clone()
    mine = trainer.evaluate(trainer.test)
    trainer.store["personal"][:] = right.roll(1, 0)  # everybody with the neighbour's personal model
    others = trainer.evaluate(trainer.test)
    assert others.accuracy_local < mine.accuracy_local
    assert others.accuracy_global == pytest.approx(mine.accuracy_global)  # a mean over the same four networks


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        (("algorithm=dp_scaffold", "dp=cdp"), "use dp=ldp or algorithm=fedavg"),
        (("algorithm=dp_scaffold", "dp=ddp"), "use dp=ldp or algorithm=fedavg"),
        (("algorithm=scaffold", "algorithm.option=I", "dp=ldp"), "option=II"),
        (("algorithm=scaffold", "dp=cdp"), "use dp=ldp or algorithm=fedavg"),
        (("algorithm=scaffold", "dp=duchi", "epsilon=1"), "use dp=ldp or algorithm=fedavg"),
        (("algorithm=scaffold", "dp=pldp_gaussian"), "use dp=ldp or algorithm=fedavg"),
        (("algorithm=fednova", "algorithm.effective_steps=0"), "greater than 0"),
        (("algorithm=ppsgd", "dp=ldp"), "raw gradients"),
        (("algorithm=fedbn", "model.norm=batch", "dp=ldp"), "batch statistics mix samples"),
        (("algorithm=ppsgd", "algorithm.mixing=-1", "dp=cdp"), "at least 0"),
    ],
)
def test_wrong_pairings_are_refused_with_the_reason(config, pair, reason):
    with pytest.raises(UserError, match=reason):
        build(config(*SMALL, *pair))


@pytest.mark.parametrize("transform", ["none", "linear"])
@pytest.mark.parametrize(
    "options",
    [
        ("algorithm=fedbn", "model.norm=batch", "dp=cdp"),
        ("algorithm=fedgn", "model.norm=group", "dp=ldp"),
        ("algorithm=dp_scaffold", "dp=ldp"),
        ("algorithm=scaffold", "dp=ldp"),
        ("algorithm=fednova", "dp=ldp", "momentum=0.5"),
        ("algorithm=fednova", "dp=ddp", "epsilon=50", "partition=dirichlet"),
        ("algorithm=ppsgd", "dp=cdp"),
        ("algorithm=ppsgd", "dp=ddp", "epsilon=50"),
    ],
)
def test_personalised_methods_run_with_and_without_the_transform(config, options, transform):
    trainer = trained(config, *options, f"transform={transform}", rounds=2)
    assert bool(trainer.theta.isfinite().all())
    assert trainer.store["home"].shape[1] == trainer.setting.layout.total - trainer.setting.layout.sent


# -- SCAFFOLD and FedNova


def test_scaffold_with_zero_variates_is_fedavg_to_the_bit(config):
    plain = trained(config, "dp=none", "partition=dirichlet", rounds=1)
    for option in ("I", "II"):
        first = trained(
            config,
            "dp=none",
            "partition=dirichlet",
            "algorithm=scaffold",
            f"algorithm.option={option}",
            rounds=1,
        )
        assert torch.equal(first.theta, plain.theta)


@pytest.mark.parametrize("engine", ["fast", "loop"])
def test_option_one_is_the_gradient_at_the_broadcast_model(config, engine):
    """One full-batch step moves by -lr g, so option I's variate, g over all data, is that move over -lr."""
    small = (*SMALL, "dp=none", "rounds=2", "lr=0.5", "dtype=float64", "weight_decay=0.01", "clients=3")
    whole = build(config(*small, "batch_size=1000", "rounds=1")).trainer
    kept = []
    message = whole.algorithm.message
    whole.algorithm.message = lambda local, r, s: kept.append(message(local, r, s)) or kept[0]
    whole.round()
    in_batches = ("batch_size=100", "algorithm=scaffold", "algorithm.option=I", f"engine={engine}")
    trainer = build(config(*small, *in_batches)).trainer
    result = trainer.round()
    by_hand = -kept[0] / 0.5
    torch.testing.assert_close(trainer.store["control"].double(), by_hand, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(
        trainer.algorithm.state()["control"].double(), by_hand.mean(0), rtol=1e-4, atol=1e-6
    )
    assert result.uplink == 2 * 4 * 3 * trainer.theta.numel()


@pytest.mark.parametrize("dp", ["none", "ldp"])
@pytest.mark.parametrize("agg", ["mean", "size", "weiavg", "sum"])
def test_scaffolds_variate_stays_the_average_of_all_clients_variates(config, agg, dp):
    """c = sum_k p_k c_k after rounds of half the clients, p being the weights among all of them."""
    options = ("algorithm=scaffold", f"agg={agg}", f"dp={dp}", "sample_rate=0.5", "partition=dirichlet")
    trainer = trained(config, *options, "budget=uniform", "lr=0.02", "clients=6", rounds=3)
    setting = trainer.setting
    p = {"size": setting.sizes, "weiavg": setting.budgets}.get(agg, np.ones(6))
    p = torch.as_tensor(p / p.sum()).float()
    variates = trainer.store["control"]
    assert variates.any(1).sum() > 3  # not always the same three
    torch.testing.assert_close(trainer.algorithm.state()["control"], p @ variates, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "where", "call"),
    [
        (("dp=cdp", "algorithm=ppsgd", "dp_variant.clip=step", "clip_norm=0.05"), "training", "after_step"),
        (("dp=none", "algorithm=scaffold", "momentum=0.5"), "algorithm", "correction"),
    ],
)
def test_what_is_done_to_a_step_finds_its_clients_where_they_were_reordered(config, options, where, call):
    """Clients with most steps come first in the fast engine: rows are positions there, slices in the loop.
    Personal models and variates differ from client to client, so a wrong row would show."""
    thetas, seen = [], []
    for engine in ("fast", "loop"):
        uneven = ("partition=dirichlet", "batch_size=20", "dtype=float64", f"engine={engine}")
        trainer = build(config(*SMALL, *options, *uneven)).trainer
        assert len(set(trainer.setting.steps)) > 1
        part = trainer.mechanism.training if where == "training" else trainer.algorithm
        make = getattr(part, call)

        def spied(*arguments, make=make, kinds=seen):
            done = make(*arguments)
            return done and (lambda weights, rows: kinds.append(type(rows)) or done(weights, rows))

        setattr(part, call, spied)
        for _ in range(2):
            trainer.round()
        thetas.append(trainer.theta)
    torch.testing.assert_close(*thetas)
    assert set(seen) == {torch.Tensor, slice}


def test_scaffolds_variate_is_a_mean_gradient_with_momentum_too(config):
    """With one full batch and a tiny rate the gradient g hardly changes, so c_k is g and not g / (1 - m)."""
    same = ("dp=none", "batch_size=1000", "local_epochs=4", "lr=1e-4", "dtype=float64", "rounds=1")
    flat = trained(config, *same, "algorithm=scaffold", rounds=1).store["control"]
    fast = trained(config, *same, "algorithm=scaffold", "momentum=0.9", rounds=1).store["control"]
    torch.testing.assert_close(fast, flat, rtol=2e-2, atol=1e-4)


def test_fednova_with_equal_steps_is_fedavg_to_the_bit(config):
    for more in (("momentum=0.9", "weight_decay=0.01"), ("dp=ldp",), ("dp=cdp",)):
        options = ("dp=none", "local_steps=3", "agg=size", "partition=dirichlet", *more)
        plain = trained(config, *options)
        assert torch.equal(trained(config, *options, "algorithm=fednova").theta, plain.theta)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fednova_by_hand_with_unequal_steps(config, momentum):
    """theta + tau_eff sum p_k Delta_k / ||a_k||_1, ||a||_1 summed step by step as momentum piles up."""
    options = ("dp=none", "agg=size", "partition=dirichlet", "dtype=float64", f"momentum={momentum}")
    trainer = build(config(*SMALL, *options, "algorithm=fednova", "batch_size=20")).trainer
    start, models = trainer.theta.clone(), []
    message = trainer.algorithm.message
    trainer.algorithm.message = lambda local, r, s: models.append(local.clone()) or message(local, r, s)
    trainer.round()
    setting, work = trainer.setting, []
    for steps in setting.steps:
        velocity = total = 0.0
        for _ in range(steps):
            velocity = momentum * velocity + 1
            total += velocity
        work.append(total)
    assert len(set(work)) > 1
    work, p = torch.tensor(work), torch.as_tensor(setting.sizes / setting.sizes.sum())
    moved = (models[0] - start) / work[:, None]
    expected = start + (p * work).sum() * (p[:, None] * moved).sum(0)
    torch.testing.assert_close(trainer.theta, expected, rtol=1e-6, atol=1e-7)


def test_fednova_says_what_it_takes_as_public_and_wants_weights(config):
    trainer = build(config(*SMALL, "algorithm=fednova", "dp=cdp")).trainer
    assert any("local steps" in line for line in trainer.ledger.guarantee.not_covered)

    class Odd(Aggregator):
        def __call__(self, uploads, round_):
            return uploads.median(0).values

    with pytest.raises(UserError, match="has none"):
        wire(NoPrivacy(), FedNova(), Odd(), Plain(), trainer.setting)
    wire(NoPrivacy(), FedNova(effective_steps=3), Odd(), Plain(), trainer.setting)


@pytest.mark.parametrize("algorithm", ["scaffold", "fednova"])
def test_new_algorithms_continue_from_a_checkpoint(config, algorithm):
    options = (*SMALL, f"algorithm={algorithm}", "sample_rate=0.5", "momentum=0.5", "partition=dirichlet")
    trainer, other = (build(config(*options, "dp=none")).trainer for _ in range(2))
    trainer.round()
    other.load(copy.deepcopy(trainer.state()))
    trainer.round(), other.round()
    assert torch.equal(trainer.theta, other.theta)
