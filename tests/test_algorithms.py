"""Algorithms: the server step by hand, reductions to FedAvg, what stays at home."""

import pytest
import torch

from fedpriv.algorithms.fedavg import FedAvg
from fedpriv.build import build
from fedpriv.errors import UserError
from tests.conftest import SMALL


def trained(config, *overrides, rounds=2):
    trainer = build(config(*SMALL, *overrides)).trainer
    for _ in range(rounds):
        trainer.round()
    return trainer


def test_server_step_and_momentum_by_hand():
    algorithm = FedAvg(server_lr=0.5, server_momentum=0.9)
    theta = algorithm.step(torch.tensor([1.0]), torch.tensor([2.0]), None)
    assert theta.item() == pytest.approx(1 + 0.5 * 2)
    other = FedAvg(server_lr=0.5, server_momentum=0.9)
    other.load(algorithm.state())
    theta = other.step(theta, torch.tensor([1.0]), None)
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
    torch.testing.assert_close(plain.theta, zero.theta)
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
    assert trainer.setting.layout.shared == 64 * 16 + 16 * 10  # without the 2 * 16 of the norm
    home = trainer.store["home"]
    assert home.shape == (4, 32) and not torch.equal(home[0], home[1])
    assert trainer.store["statistics"].shape == (4, 32 if norm == "batch" else 0)


def test_nothing_to_keep_at_home_is_refused(config):
    with pytest.raises(UserError, match=r"model\.norm=batch"):
        build(config(*SMALL, "algorithm=fedbn", "dp=none"))
