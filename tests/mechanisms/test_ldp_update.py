"""dp=ldp_update: what a client sends is a clipped update with noise of its own, for all of its data."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, LaplaceDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy.stats import norm

from fedpriv.building import build
from fedpriv.contracts.trial import round_of, setting
from fedpriv.engine.layout import Layout
from fedpriv.mechanisms.ldp_update import LDPUpdate
from fedpriv.privacy import accountants
from fedpriv.randomness.source import Source
from tests.conftest import SMALL

WIDTH = 20_000


def facts(**more):
    layout = Layout({"t": torch.zeros(WIDTH)})
    return replace(setting(), layout=layout, rounds=10, sample_rate=0.5, delta=1e-5, **more)


def test_gaussian_noise_of_twice_the_bound_and_each_clients_own():
    run = facts(budgets=np.array([1.0, 1.0, 4.0, 4.0, 8.0]))
    mechanism = LDPUpdate(clip_norm=3.0)
    promised = mechanism.setup(run)
    for epsilon, z in zip(run.budgets, promised.noise, strict=True):
        five = SelfComposedDpEvent(GaussianDpEvent(z), 5)  # half of ten rounds
        assert RdpAccountant().compose(five).get_epsilon(1e-5) == pytest.approx(epsilon, rel=0.02)
        assert PLDAccountant().compose(five).get_epsilon(1e-5) <= epsilon
    messages = torch.zeros(5, WIDTH)
    messages[:, 0] = 100.0
    sent = mechanism.client(messages.clone(), round_of(run, range(5)), Source(bytes(32)))
    assert sent[:, 1:].std(1).numpy() == pytest.approx(6.0 * promised.noise, rel=0.03)
    # Two clients' worst: from one end of the ball to the other.
    other = mechanism.client(-messages, round_of(run, range(5)), Source(bytes(32)))
    assert (sent - other).norm(dim=1).numpy() == pytest.approx(np.full(5, 6.0), rel=1e-4)


def test_laplace_noise_of_the_l1_ball():
    run = facts(budgets=np.full(5, 2.0))
    mechanism = LDPUpdate(clip_norm=3.0, noise="laplace")
    promised = mechanism.setup(run)
    scale = 6.0 * promised.noise[0]
    event = SelfComposedDpEvent(LaplaceDpEvent(promised.noise[0]), 5)
    assert PLDAccountant().compose(event).get_epsilon(1e-5) <= 2.0
    messages = torch.full((5, WIDTH), 1.0)  # an L1 norm of 20,000, clipped to 3
    sent = mechanism.client(messages.clone(), round_of(run, range(5)), Source(bytes(32)))
    assert sent.abs().mean().item() == pytest.approx(scale, rel=0.02)  # the mean of |Laplace|
    bare = mechanism.client(torch.zeros_like(messages), round_of(run, range(5)), Source(bytes(32)))
    assert (sent - bare).abs().sum(1).numpy() == pytest.approx(np.full(5, 3.0), rel=1e-2)


def test_laplace_noise_that_ends_too_early_is_not_called_private():
    promised = LDPUpdate(noise="laplace").setup(facts(budgets=np.full(5, 400.0)))
    assert promised.provable is None and "ends at" in promised.flaws[0]


def test_what_others_state_for_the_same_parameters():
    """By hand: Flower's formula at epsilon 1 and delta 1e-5 is 4.8448 times the sensitivity."""
    stated = LDPUpdate(clip_norm=2.0).others(1.0, 1e-5, 1)
    flower, pfl = (
        stated["Flower LocalDpMod, sensitivity=clip_norm"],
        stated["pfl GaussianMechanism.construct_single_iteration"],
    )
    assert flower["noise_std"] == pytest.approx(2 * 4.8448, rel=1e-4)
    sigma = pfl["noise_std"] / 2.0  # the analytic one: Phi(1/2s - s) - e Phi(-1/2s - s) = delta at epsilon 1
    left = norm.cdf(0.5 / sigma - sigma) - math.e * norm.cdf(-0.5 / sigma - sigma)
    assert left == pytest.approx(1e-5, rel=0.01)
    # Replacing moves twice as far, so that neither keeps its epsilon even in one round.
    assert flower["epsilon_of_all_rounds"] > 1.5 and pfl["epsilon_of_all_rounds"] > 1.5
    many = LDPUpdate(clip_norm=2.0).others(1.0, 1e-5, 60)
    assert many["Flower LocalDpMod, sensitivity=clip_norm"]["epsilon_of_all_rounds"] > 10
    laplace = LDPUpdate(clip_norm=2.0, noise="laplace").others(1.0, 1e-5, 1)["pfl LaplaceMechanism"]
    assert laplace["noise_std"] == pytest.approx(2 * math.sqrt(2)) and laplace["epsilon_of_all_rounds"] == 2


def test_a_client_opts_out_when_its_budget_is_spent(config):
    trainer = build(config(*SMALL, "dp=ldp_update", "sample_rate=0.5", "rounds=4", "epsilon=2")).trainer
    for _ in range(4):
        if not trainer.exhausted:
            trainer.round()
    assert trainer.ledger.participations.max() <= 2 and (trainer.ledger.provable() <= 2).all()
    report = trainer.ledger.report(noise_seeded=True)
    assert report["unit"] == "client" and "replace all data" in report["neighbouring_relation"]
    assert report["claim_holds"] and report["others_with_these_parameters"]


def test_laplace_noise_by_the_pld_accountant():
    run = facts(budgets=np.full(5, 2.0), accountant=accountants.create("pld"))
    tight = LDPUpdate(noise="laplace").setup(run).noise[0]
    assert tight < LDPUpdate(noise="laplace").setup(facts(budgets=np.full(5, 2.0))).noise[0]
