"""dp=cdp_correlated: one Gaussian release of all rounds, for clients whose rounds are fixed beforehand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from fedpriv.building import build
from fedpriv.contracts.trial import round_of, setting
from fedpriv.engine.layout import Layout
from fedpriv.mechanisms.cdp_correlated import CorrelatedCDP
from fedpriv.privacy.accountants import RDP
from fedpriv.privacy.events import Joint, SampledGaussian
from fedpriv.randomness.source import Source
from tests.conftest import SMALL, refused

CROSS = ("clients=12", "rounds=12", "participations=3", "separation=4", "sample_rate=0.25", "model.sizes=[4]")
OTHERS = ("batch_size=64", "threads=1")


def alone(width: int = 6, rounds: int = 8, **options) -> CorrelatedCDP:
    layout = Layout({"t": torch.zeros(width)})
    facts = replace(setting(), sample_rate=1.0, rounds=rounds, layout=layout)
    mechanism = CorrelatedCDP(**options)
    mechanism.setup(facts)
    return mechanism


@pytest.mark.parametrize("matrix", ["banded", "blt", "tree"])
def test_the_noise_of_the_sums_has_the_variance_of_theory(matrix):
    width, rounds = 40_000, 8
    facts = replace(
        setting(), sample_rate=0.25, rounds=rounds, layout=Layout({"t": torch.zeros(width)}), separation=4,
        schedule=[np.arange(5)] * rounds,
    )  # fmt: skip
    mechanism, key = CorrelatedCDP(matrix=matrix, clip_norm=3.0), Source(bytes(32))
    promised = mechanism.setup(facts)
    total, seen = torch.zeros(width), []
    for number in range(rounds):
        draw = key.of("server", number)
        total += mechanism.server(torch.zeros(width), round_of(facts, [0, 1]), 0.5, draw)
        seen.append(total.double().var().item())
    reach = promised.details["sensitivity_of_the_matrix"]
    scale = (promised.noise[0] * reach * 3.0 * 0.5) ** 2
    # A variance of n normals has a deviation of sqrt(2 / n), 0.7 %.
    assert seen == pytest.approx(scale * mechanism.correlation.variances(), rel=0.03)
    independent = promised.noise[0] * math.sqrt(2) * 3.0 * 0.5 * math.sqrt(4.5)  # the root mean square
    ratio = promised.details["rms_error_of_the_sums_over_independent_noise"]
    assert math.sqrt(np.mean(seen)) == pytest.approx(ratio * independent, rel=0.03) and ratio < 1


def test_the_epsilon_is_that_of_one_gaussian_by_dp_accounting(config):
    trainer = build(config("dp=cdp_correlated", *CROSS, *OTHERS, "epsilon=3")).trainer
    z = float(trainer.ledger.guarantee.noise[0])
    while not trainer.exhausted and trainer.next_round < 12:
        trainer.round()
    assert (trainer.ledger.present == 3).all()
    spent = trainer.ledger.provable()
    event = GaussianDpEvent(z)
    assert spent.max() <= 3
    assert spent == pytest.approx(RdpAccountant().compose(event).get_epsilon(1e-3), rel=0.02)
    assert spent.min() >= PLDAccountant().compose(event).get_epsilon(1e-3)


def test_fewer_participations_cost_less_and_more_cannot_be_had():
    joint = Joint(2.0, (0.5, 0.8, 1.0))
    spent = [RDP().epsilon((joint,), count, 1e-3) for count in range(5)]
    assert spent[0] == 0 and spent[4] == math.inf
    assert spent[1] == RDP().epsilon((SampledGaussian(1.0, 4.0),), 1, 1e-3)
    assert spent[3] == RDP().epsilon((SampledGaussian(1.0, 2.0),), 1, 1e-3)
    assert spent[1] < spent[2] < spent[3]


def test_banded_noise_of_one_band_is_independent_noise(config):
    mechanism, key, like = alone(matrix="banded"), Source(bytes(32)), torch.zeros(6)
    assert mechanism.correlation.memory == 0 and "independent noise" in mechanism.remarks[0]
    for number in range(3):
        draw = key.of("server", number)
        noise = mechanism.server(like, round_of(mechanism.setting, [0]), 1.0, draw)
        assert torch.equal(noise, draw.normal(like) * (mechanism.scale * 2.0))


def test_what_it_rests_on_is_said(config):
    run = build(config("dp=cdp_correlated", *CROSS, *OTHERS), prepare=False)
    report = run.trainer.ledger.report(planned=np.full(12, 3), noise_seeded=True)
    assert report["unit"] == "client" and report["claim_holds"] and not report["no_guarantee"]
    assert "exactly 3 rounds, at least 4 apart" in report["sampler"] and "no sampling" in report["sampler"]
    assert report["sensitivity_is"] == "exact"


@pytest.mark.parametrize(
    "wrong",
    [
        ("sample_rate=0.5",),  # drawn
        (*CROSS, "dp_variant.bands=5"),  # more than the separation
        (*CROSS, "separation=5"),  # a pass has 4 rounds
        ("separation=2",),  # without participations
        ("agg=pfa",),
        ("agg=public_only", "budget=mixgauss1"),
        ("algorithm=scaffold",),
        ("budget=mixgauss1",),  # one budget
    ],
)
def test_what_does_not_fit_is_refused(config, wrong):
    refused(lambda: build(config(*SMALL, "dp=cdp_correlated", *wrong)))
