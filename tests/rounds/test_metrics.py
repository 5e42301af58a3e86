"""Earth mover's distance against scipy; both accuracy views with and without personal layers."""

import itertools

import numpy as np
import pytest
import torch
from scipy.stats import wasserstein_distance
from torch import nn

from fedpriv.datasets.base import Data
from fedpriv.engine.data import ClientData
from fedpriv.engine.fast import FastEngine
from fedpriv.engine.layout import Layout
from fedpriv.models.linear import linear
from fedpriv.models.parts import Network
from fedpriv.rounds.metrics import EMD_CLIENTS, earth_movers_distances, evaluate
from fedpriv.rounds.store import ClientStore


@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_distances_equal_scipys(missing):
    rng = np.random.default_rng(0)
    history = rng.gamma(2.0, size=(12, 7))
    history[rng.random(history.shape) < missing] = np.nan
    values = [
        wasserstein_distance(a[np.isfinite(a)], b[np.isfinite(b)])
        for a, b in itertools.combinations(history.T, 2)
    ]
    mean, std = earth_movers_distances(history)
    assert mean == pytest.approx(np.mean(values)) and std == pytest.approx(np.std(values))


def test_distances_need_two_clients_and_thin_out_many():
    assert np.isnan(earth_movers_distances(np.full((3, 4), np.nan))[0])
    history = np.full((3, 4), np.nan)
    history[0, 1] = 1.0
    assert np.isnan(earth_movers_distances(history)[0])
    many = np.tile(np.arange(10 * EMD_CLIENTS, dtype=float), (2, 1))
    # Evenly spaced points: the mean distance of two of n over a span s is s (n + 1) / (3 (n - 1)).
    span, n = 10 * EMD_CLIENTS - 1, EMD_CLIENTS
    assert earth_movers_distances(many)[0] == pytest.approx(span * (n + 1) / (3 * (n - 1)), rel=0.01)


class Shift(nn.Module):
    def __init__(self):
        super().__init__()
        self.beta = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return x + self.beta


@pytest.mark.parametrize("personal", [False, True])
def test_both_views_by_hand(personal):
    """Three features; the class is the largest. A personal shift of (0, 0, 9) makes a client always say 2."""
    x = torch.eye(3).repeat(4, 1)  # classes 0 1 2 0 1 2 ...
    y = torch.arange(3).repeat(4)
    data = Data("hand", x, y, x, y, 3)
    network = Network(Shift() if personal else nn.Identity(), linear((3,), 3, bias=False))
    network.model[1].weight.data = torch.eye(3)
    layout = Layout.of_parameters(network, ["transform.beta"] if personal else [])
    stats = Layout.of_statistics(network)
    parts = [np.array([0, 1, 2]), np.array([2, 5]), np.array([], dtype=int)]
    samples = ClientData.of(data, "test", parts, "cpu", torch.float32)
    home = torch.zeros(3, layout.total - layout.sent)
    if personal:
        home[1] = torch.tensor([0.0, 0.0, 9.0])
    theta = layout.flatten(network)[: layout.sent]
    engine = FastEngine(network, layout, stats, threads=1)
    store = ClientStore(3)
    store.claim("home", home[0])
    store.claim("statistics", torch.zeros(0))
    store["home"][:] = home
    result = evaluate(engine, lambda who: theta.expand(len(who), -1), store, samples)
    assert result.correct.tolist() == [3, 2, 0] and result.count.tolist() == [3, 2, 0]
    assert result.accuracy_local == 1.0
    assert result.accuracy_global == pytest.approx((1 + 1 / 3 + 1) / 3 if personal else 1.0)
    assert np.isnan(result.accuracy_of_clients[2])
