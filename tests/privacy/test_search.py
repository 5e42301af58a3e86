"""The cost of a search (Papernot and Steinke 2022): by hand, against dp-accounting, and of all trials."""

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant

from fedpriv.privacy import search
from fedpriv.privacy.accountants import RDP, curve_of
from fedpriv.privacy.events import ORDERS, Laplace, SampledGaussian

GAUSS = curve_of((SampledGaussian(1.0, 4.0),), 1)
LAWS = [("geometric", 1.0), ("logarithmic", 0.0), ("negative_binomial", 2.5), ("negative_binomial", -0.5)]


def test_theorem_2_by_hand():
    """One trial is 0.1-DP without a delta. At order 512, with g = 1/10: 0.1 + 2 (0.1 + (ln 10 - 0.1) / 512) +
    ln 10 / 511; at ever larger orders this is the paper's (2 + shape) epsilon (corollary 3)."""
    curve = np.full(len(ORDERS), 0.1)
    found = search.repeated(curve, "geometric", 10.0, 0.0)
    assert ORDERS[-1] == 512
    assert found[-1] == pytest.approx(0.3 + 2 * (math.log(10) - 0.1) / 512 + math.log(10) / 511)
    assert found[-1] == pytest.approx(0.31311, abs=1e-5)
    shaped = search.repeated(curve, "negative_binomial", 10.0, 3.0)
    chance = search.chance_of(3.0, 10.0)
    by_hand = 0.1 + 4 * (0.1 + (math.log(1 / chance) - 0.1) / 512) + math.log(10) / 511
    assert shaped[-1] == pytest.approx(by_hand)


@pytest.mark.parametrize(("law", "shape"), [*LAWS[:3], ("poisson", math.inf)])
@pytest.mark.parametrize("mean", [1.5, 10.0, 300.0])
def test_against_dp_accounting(law, shape, mean):
    theirs = RdpAccountant(orders=list(ORDERS)).compose(
        RepeatAndSelectDpEvent(GaussianDpEvent(4.0), mean, shape)
    )
    ours = search.epsilon(search.repeated(GAUSS, law, mean, shape), 1e-5)
    assert ours == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-3)


@pytest.mark.parametrize(("law", "shape"), [*LAWS, ("poisson", 0.0)])
@pytest.mark.parametrize("mean", [1.2, 10.0, 100.0])
def test_numbers_of_trials_have_their_law(law, shape, mean):
    chances = search.chances(law, mean, shape)
    assert chances.sum() == pytest.approx(1, abs=1e-9) and (chances >= 0).all()
    assert chances @ np.arange(len(chances)) == pytest.approx(mean, rel=1e-6)
    drawn = np.array([search.drawn(law, mean, shape, u) for u in (np.arange(200) + 0.5) / 200])
    assert np.mean(drawn <= 1) == pytest.approx(chances[:2].sum(), abs=0.006)
    assert drawn.min() >= (law != "poisson")


def test_a_geometric_number_by_hand():
    assert search.chances("geometric", 4.0, 0.0)[:4] == pytest.approx([0, 1 / 4, 3 / 16, 9 / 64])
    assert [search.drawn("geometric", 4.0, 0.0, u) for u in (0.0, 0.24, 0.26, 0.43, 0.44)] == [1, 1, 2, 2, 3]
    assert search.drawn("fixed", 20, 1.0, 0.7) == 20


def report(curve, **more):
    spent = RDP.convert(curve, 1e-5)
    whole = {"delta": 1e-5, "epsilon_provable_max": spent, "delta_of_the_noises_end": 0.0}
    return whole | {"renyi_curve": curve.tolist()} | more


def test_the_price_of_a_search():
    price = pytest.importorskip("fedpriv.commands.search").price
    one = price([report(GAUSS)], "fixed", 1, 1.0)
    assert (
        one["epsilon_search"]
        == one["epsilon_one_run"]
        == RDP().epsilon((SampledGaussian(1.0, 4.0),), 1, 1e-5)
    )
    nine = price([report(GAUSS)] * 9, "fixed", 9, 1.0)
    assert nine["epsilon_search"] == RDP().epsilon((SampledGaussian(1.0, 4.0),), 9, 1e-5)
    # A trial that failed costs as much as the others.
    assert price([*[report(GAUSS)] * 8, None], "fixed", 9, 1.0)["epsilon_search"] == nine["epsilon_search"]
    random = price([report(GAUSS)] * 2, "geometric", 300.0, 1.0)
    assert random["epsilon_search"] == search.epsilon(search.repeated(GAUSS, "geometric", 300.0, 1.0), 1e-5)
    assert random["epsilon_search"] < price([report(GAUSS)] * 300, "fixed", 300, 1.0)["epsilon_search"]
    # Trials that differ in their noise, or several objectives: everything is composed.
    other = report(curve_of((Laplace(0.5),), 1))
    mixed = price([report(GAUSS), other], "geometric", 300.0, 1.0)
    assert "composition of all 2" in mixed["search_is"]
    several = price([report(GAUSS)] * 2, "geometric", 300.0, 1.0, one=False)
    assert several["epsilon_search"] == RDP().epsilon((SampledGaussian(1.0, 4.0),), 2, 1e-5)


def test_the_price_without_a_curve_or_a_guarantee():
    price = pytest.importorskip("fedpriv.commands.search").price
    bare = price([report(GAUSS, renyi_curve=None)] * 3, "fixed", 3, 1.0)
    assert bare["epsilon_search"] == pytest.approx(3 * bare["epsilon_one_run"])
    assert bare["delta"] == pytest.approx(3e-5)
    nothing = price([report(GAUSS), report(GAUSS, epsilon_provable_max=None)], "fixed", 2, 1.0)
    assert nothing["epsilon_search"] is None and nothing["epsilon_one_run"] is None
    assert price([report(GAUSS, delta_of_the_noises_end=1e-5)], "fixed", 1, 1.0)["epsilon_search"] is None
