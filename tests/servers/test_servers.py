"""Server steps: Reddi et al. 2021, Algorithm 2 by hand, with every local algorithm; they cost no privacy."""

import copy
import json

import pytest
import torch
from omegaconf import OmegaConf

from fedpriv.building import build
from fedpriv.config import catalogue
from fedpriv.config.identity import of_config
from fedpriv.servers.adaptive import FedAdagrad, FedAdam, FedYogi
from fedpriv.servers.base import SGD
from fedpriv.servers.momentum import ServerMomentum
from tests.conftest import SMALL

LR, TAU = 0.5, 0.25  # tau^2 = 1/16


def two_steps(server):
    theta, seen = torch.tensor([1.0], dtype=torch.float64), []
    for move in (1.0, -0.5):
        theta = server.step(theta, torch.tensor([move], dtype=torch.float64))
        seen.append(theta.item())
        server, before = copy.deepcopy(server), server  # a stop in between
        server._m = server._v = server._velocity = None
        server.load(before.state())
    return seen


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        (SGD(), [2.0, 1.5]),
        # m: 1, then 0.9 - 0.5 = 0.4
        (ServerMomentum(lr=LR, momentum=0.9), [1.5, 1.5 + 0.5 * 0.4]),
        # v: 1/16 + 1 = 1.0625, then + 0.25 = 1.3125
        (
            FedAdagrad(lr=LR, tau=TAU),
            [1 + 0.5 / (1.0625**0.5 + 0.25), 1 + 0.5 / (1.0625**0.5 + 0.25) - 0.25 / (1.3125**0.5 + 0.25)],
        ),
        # m: 0.2, then 0.8 * 0.2 + 0.2 * -0.5 = 0.06; v: 0.75/16 + 0.25 = 0.296875, then 0.28515625
        (
            FedAdam(lr=LR, beta1=0.8, beta2=0.75, tau=TAU),
            [
                1 + 0.1 / (0.296875**0.5 + 0.25),
                1 + 0.1 / (0.296875**0.5 + 0.25) + 0.03 / (0.28515625**0.5 + 0.25),
            ],
        ),
        # v: 1/16 + 0.25 (the square is larger) = 0.3125, then - 0.0625 (it is smaller) = 0.25
        (
            FedYogi(lr=LR, beta1=0.8, beta2=0.75, tau=TAU),
            [1 + 0.1 / (0.3125**0.5 + 0.25), 1 + 0.1 / (0.3125**0.5 + 0.25) + 0.03 / (0.5 + 0.25)],
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_two_steps_by_hand(server, expected):
    assert two_steps(server) == pytest.approx(expected, rel=1e-12)


@pytest.mark.usefixtures("same_draws")
@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "fednova", "scaffold", "ppsgd", "optimal"])
def test_every_algorithm_makes_the_move_that_the_server_takes(config, algorithm):
    plain = build(config(*SMALL, "dp=none", f"algorithm={algorithm}")).trainer
    start = plain.theta.clone()
    plain.round()
    adam = build(config(*SMALL, "dp=none", f"algorithm={algorithm}", "server=adam", "server.lr=0.1")).trainer
    adam.round()
    expected = FedAdam(lr=0.1).step(start, plain.theta - start)
    torch.testing.assert_close(adam.theta, expected, rtol=0, atol=1e-5)
    assert not torch.allclose(adam.theta, plain.theta, atol=1e-3)


@pytest.mark.usefixtures("same_draws")
@pytest.mark.parametrize("variant", sorted(catalogue.options("dp_variant")))
def test_the_ledger_does_not_see_the_server_step(config, variant):
    """Post-processing: the same charges, noise and epsilons under every DP variant and server step."""
    reports = []
    for server in ("sgd", "yogi"):
        trainer = build(config(*SMALL, f"dp={variant}", f"server={server}")).trainer
        trainer.round()
        reports.append(json.dumps(trainer.ledger.report(noise_seeded=True), sort_keys=True))
    assert len(set(reports)) == 1


def test_the_plain_step_is_no_part_of_an_identity_and_others_are(config):
    cfg = config(*SMALL)
    before = OmegaConf.create({k: v for k, v in cfg.items() if k != "server"})
    assert of_config(cfg) == of_config(before) == of_config(config(*SMALL, "server=sgd"))
    others = {of_config(config(*SMALL, f"server={name}")) for name in catalogue.options("server")}
    assert len(others) == len(catalogue.options("server"))
