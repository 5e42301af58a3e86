"""Parts meet in one pure function: what fits, what is refused and why, and that nothing is written."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedpriv.aggregators.mean import Mean
from fedpriv.aggregators.pfa import PFA
from fedpriv.aggregators.pfa_plus import PFAPlus
from fedpriv.aggregators.selection import Selection
from fedpriv.aggregators.sum import Sum
from fedpriv.algorithms.fedavg import FedAvg
from fedpriv.algorithms.fednova import FedNova
from fedpriv.algorithms.ppsgd import PPSGD
from fedpriv.algorithms.scaffold import Scaffold
from fedpriv.building import build
from fedpriv.errors import UserError
from fedpriv.mechanisms.base import NoPrivacy
from fedpriv.mechanisms.cdp import CDP
from fedpriv.mechanisms.ddp import DDP
from fedpriv.mechanisms.duchi import Duchi
from fedpriv.mechanisms.ldp import LDP
from fedpriv.mechanisms.pldp_gaussian import PLDPGaussian
from fedpriv.parts.wiring import wire
from fedpriv.uploads.base import Upload
from fedpriv.uploads.plain import Plain
from fedpriv.uploads.projected import Projected
from fedpriv.uploads.secure_sum import SecureSum
from fedpriv.uploads.shuffled import Shuffled
from tests.conftest import SMALL
from tests.contracts.parts import Median, SaysLittle, Silent
from tests.helpers.settings import setting


def of(mechanism=None, algorithm=None, aggregator=None, upload=None, facts=None):
    parts = mechanism or NoPrivacy(), algorithm or FedAvg(), aggregator or Mean(), upload or Plain()
    return wire(*parts, facts or setting())


class OwnUpload(Upload):
    """Says nothing of itself."""

    def encode(self, messages, round_, source):
        return messages, 0

    def decode(self, sent, round_):
        return sent


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        # A part that says little is trusted with little.
        ({"mechanism": Silent()}, "does not say what it needs and bounds"),
        ({"upload": OwnUpload()}, "carries nothing it names"),
        ({"aggregator": SaysLittle(), "mechanism": CDP()}, "does not bound one client's weight"),
        ({"aggregator": SaysLittle(), "mechanism": PLDPGaussian()}, "sends whole models"),
        ({"aggregator": SaysLittle(), "upload": Shuffled()}, "hides who sent what"),
        ({"aggregator": SaysLittle(), "algorithm": FedNova()}, "has none"),
        # What leaves a client.
        ({"aggregator": Median(), "mechanism": Duchi()}, "two-point answer .* only a mean"),
        ({"aggregator": PFA(), "mechanism": PLDPGaussian()}, "makes something of updates, but"),
        ({"aggregator": Sum(), "mechanism": DDP()}, "needs upload=secure_sum"),
        ({"upload": SecureSum(), "mechanism": DDP()}, "and aggregator=sum"),
        ({"upload": SecureSum()}, "dp=ddp"),
        ({"upload": Projected()}, "only aggregator=pfa_plus keeps a subspace"),
        # What an algorithm makes of its data.
        ({"algorithm": PPSGD(), "mechanism": LDP()}, "trains its personal models on raw gradients"),
        ({"algorithm": Scaffold(), "mechanism": CDP()}, "never forget it"),
        ({"algorithm": Scaffold(option="I"), "mechanism": LDP()}, "option=II"),
        # Who takes part.
        (
            {
                "mechanism": DDP(against="outsider"),
                "aggregator": Sum(),
                "upload": SecureSum(tolerance=0.1),
            },
            "against=server",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(parts, why):
    with pytest.raises(UserError, match=why) as problem:
        of(**parts)
    assert "\n" not in str(problem.value)


def test_a_median_may_be_shuffled():
    assert of(aggregator=Median(), upload=Shuffled()).sends == "updates"
    assert of(PLDPGaussian(), aggregator=Median(), upload=Shuffled()).sends == "models"
    median = replace(Median.facts, symmetric="rows")  # such as a geometric one, of whole rows
    rows = type("Rows", (Median,), {"facts": median})()
    of(aggregator=rows, upload=Shuffled(unit="model"))
    with pytest.raises(UserError, match="hides who sent what"):
        of(aggregator=rows, upload=Shuffled(unit="parameter"))


def test_a_shuffled_median_is_the_median(config):
    """The order of messages is lost, the result is not."""
    target = "aggregator._target_=tests.contracts.parts.Median"
    thetas = []
    for upload in ("plain", "shuffled"):
        trainer = build(config(*SMALL, "dp=none", target, f"upload={upload}")).trainer
        uploads = torch.randn(4, trainer.setting.layout.sent, generator=torch.Generator().manual_seed(0))
        trainer.algorithm.message = lambda *_, sent=uploads: sent
        before = trainer.theta.clone()
        trainer.round()
        torch.testing.assert_close(trainer.theta, before + uploads.median(0).values)
        thetas.append(trainer.theta)
    assert torch.equal(*thetas)


def test_wiring_says_what_parts_may_rely_on():
    plus = PFAPlus()
    assert of(aggregator=plus, upload=Projected()).projected and of(aggregator=plus).aggregator is plus
    wired = of(DDP(bits=9), aggregator=Sum(), upload=SecureSum(tolerance=0.2))
    assert (wired.sends, wired.bits, wired.tolerance, wired.sum_only) == ("shares", 9, 0.2, True)
    assert wired.constant_weights and not wired.bounded_weights
    assert of(CDP()).bounded_weights and not of(LDP()).constant_weights


def test_wiring_writes_into_no_part():
    parts = [DDP(), FedAvg(), Sum(), SecureSum()]
    before = [copy.deepcopy(vars(part)) for part in parts]
    wire(*parts, setting())
    assert [vars(part) for part in parts] == before


# -- an empty round, in one place


@pytest.mark.parametrize("part", ["Median", "Trimmed"])
def test_nobody_in_a_round_leaves_the_model_whatever_aggregates(config, part):
    """A median of nothing raises, and a mean of nothing is no number."""
    target = f"aggregator._target_=tests.contracts.parts.{part}"
    trainer = build(config(*SMALL, "dp=none", target)).trainer
    trainer.ledger.eligible = lambda: np.zeros(4, dtype=bool)
    before = trainer.theta.clone()
    assert not len(trainer.round().clients) and torch.equal(trainer.theta, before)


def test_nobody_in_a_round_is_not_told_to_selection(config):
    trainer = build(config(*SMALL, "dp=pldp_gaussian", "agg=selection")).trainer
    assert isinstance(trainer.aggregator, Selection)
    trainer.ledger.eligible = lambda: np.zeros(4, dtype=bool)
    before = trainer.theta.clone()
    trainer.round()
    assert torch.equal(trainer.theta, before)


def test_the_servers_noise_comes_in_an_empty_round_too(config):
    trainer = build(config(*SMALL, "dp=cdp", "sample_rate=0.5")).trainer
    trainer.ledger.eligible = lambda: np.zeros(4, dtype=bool)
    before = trainer.theta.clone()
    trainer.round()
    noise = float((trainer.theta - before).std())
    expected = trainer.mechanism.z * trainer.mechanism.clip_norm / 2  # half of four clients
    assert noise == pytest.approx(expected, rel=5 / (2 * len(before)) ** 0.5)
