"""The bounds behind an audit, against numbers that can be computed by hand."""

import math

import numpy as np
import pytest
import torch
from dp_accounting import get_epsilon_gaussian

from fedpriv.audit.mechanism import clopper_pearson, lower_bound
from fedpriv.audit.one_run import bound, largest_epsilon
from fedpriv.audit.one_shot import epsilon, spread
from fedpriv.audit.shared_rounds import _signs
from fedpriv.audit.spread import alike, moved, moved_over_rounds


def test_twenty_right_guesses_of_twenty():
    """Without delta all are right with chance q^20, q = e^eps / (1 + e^eps): 0.05 at eps = 1.8229."""
    q = 0.05 ** (1 / 20)
    assert largest_epsilon(20, 20, 20, 0.0, 0.05) == pytest.approx(math.log(q / (1 - q)), abs=1e-6)
    assert largest_epsilon(20, 20, 10, 0.0, 0.05) == 0.0


def test_delta_costs_its_part_of_the_chance():
    """One guess of one canary, right: q + 2 delta (1 - q), which is 0.6 at q = 0.5 for delta = 0.1."""
    assert largest_epsilon(1, 1, 1, 0.1, 0.6 + 1e-9) == pytest.approx(0.0, abs=1e-6)
    q = (0.7 - 0.2) / 0.8
    assert largest_epsilon(1, 1, 1, 0.1, 0.7) == pytest.approx(math.log(q / (1 - q)), abs=1e-6)


def test_randomised_response_is_bounded_below_its_epsilon():
    """Answers that are right with chance e / (1 + e): epsilon 1. At 95 % two of forty bounds may be above."""
    draw, found = np.random.default_rng(0), []
    for _ in range(40):
        coins = draw.random(400) < 0.5
        true = draw.random(400) < 1 / (1 + math.exp(-1))
        scores = np.where(coins == true, 1.0, -1.0) + draw.normal(size=400) * 1e-3
        found.append(bound(scores, coins, 1e-6).epsilon)
    assert sum(e > 1 for e in found) <= 4 and np.mean(found) > 0.4


def test_clopper_pearson_of_nothing_and_of_all():
    """No hit of n: the rate is below 1 - level^(1/n)."""
    assert clopper_pearson(0, 50, 0.05) == (0.0, pytest.approx(1 - 0.05 ** (1 / 50)))
    assert clopper_pearson(50, 50, 0.05) == (pytest.approx(0.05 ** (1 / 50)), 1.0)


def test_an_event_that_comes_on_one_side_only():
    low, high = 0.00025 ** (1 / 100), 1 - 0.00025 ** (1 / 100)
    assert lower_bound(100, 0, 100, 0.0) == pytest.approx(math.log(low / high))
    assert lower_bound(50, 50, 100, 0.0) == 0.0


@pytest.mark.parametrize("mean", [0.5, 2.0])
def test_two_normals_of_one_width_are_the_gaussian_mechanism(mean):
    assert epsilon(mean, 1.0, 1.0, 1e-5) == pytest.approx(get_epsilon_gaussian(1 / mean, 1e-5), abs=1e-3)


def test_how_far_an_estimate_may_be_off():
    """Of 200 cosines that are normal: the estimates of other such cosines spread as the bootstrap says."""
    draw = np.random.default_rng(0)
    many = draw.normal(1.0, 1.0, (60, 200))
    found = np.std([epsilon(row.mean(), row.std(ddof=1), 1.0, 1e-3) for row in many])
    assert found == pytest.approx(spread(many[0], 1.0, 1e-3, 0), rel=0.5) and found > 0.2


def test_a_wider_normal_is_told_from_a_narrow_one():
    assert epsilon(0.0, 1.0, 1.0, 1e-5) == 0.0 < 1.0 < epsilon(0.0, 2.0, 1.0, 1e-5)


def test_a_move_in_units_of_its_noise():
    """A change of length 3 in noise of deviation 2; half of it where there is no noise is infinitely far."""
    draw = torch.Generator().manual_seed(0)
    change, noise = torch.zeros(2000), 2 * torch.randn(4, 2000, generator=draw)
    change[::2] = 3 / math.sqrt(1000)
    found = moved(change, noise)
    assert abs(found.length - 1.5) < 5 * found.error < 0.1
    noise[:, :1000] = 0
    assert moved(change, noise).length == math.inf


def test_a_move_in_units_of_laplace_noise():
    """Ten numbers that move by 0.6 in noise of scale 2: 10 * 0.6 / 2."""
    draw = np.random.default_rng(0)
    change, noise = torch.zeros(2000), torch.from_numpy(draw.laplace(scale=2, size=(10, 2000)))
    change[:10] = 0.6
    found = moved(change, noise, norm=1)
    assert abs(found.length - 3) < 5 * found.error < 0.3
    assert moved(change, 0 * noise, norm=1).length == math.inf


@pytest.mark.parametrize(("sign", "length"), [(1.0, math.sqrt(4 / 3)), (-1.0, 2.0)])
def test_a_move_over_two_rounds_that_share_noise(sign, length):
    """Noise of covariance [[1, 1/2], [1/2, 1]], whose inverse is [[4, -2], [-2, 4]] / 3: a change of (1, 1)
    is sqrt(4/3) long and one of (1, -1) is 2."""
    a, b = torch.randn(2, 20, 1000, generator=torch.Generator().manual_seed(0))
    noise = torch.stack([a, a / 2 + math.sqrt(3 / 4) * b], 1)  # [n, T, P]
    change = torch.zeros(2, 1000)
    change[:, 7] = torch.tensor([1.0, sign])
    found = moved_over_rounds(change, noise)
    assert abs(found.length - length) < 5 * found.error < 0.15
    assert moved_over_rounds(change, torch.stack([a, a], 1)).length > 1e3, "the same noise hides nothing"


@pytest.mark.parametrize("between", [0.5, -0.5])
def test_rounds_are_turned_so_that_they_add_up(between):
    precision = torch.tensor([[1.0, between], [between, 1.0]])
    assert float(_signs(torch.ones(2, 3), precision).prod()) == math.copysign(1, between)


def test_shared_noise_is_found():
    rows = torch.randn(5, 4000, generator=torch.Generator().manual_seed(0))
    assert not alike(rows, list("abcde")).found
    rows[3] = rows[1] + 3 * rows[3]
    found = alike(rows, list("abcde"))
    assert found.found and set(found.pair) == {"b", "d"} and found.value == pytest.approx(0.316, abs=0.05)
