"""How many threads there are changes nothing, not even the last bit."""

import torch

from fedpriv.engine.fast import FastEngine
from tests.engine.test_engine import round_of
from tests.helpers.networks import make


def test_noise_made_ahead_by_an_idle_worker_is_added_as_any_other():
    """A light model's noise is drawn one step ahead where there is a worker for it."""
    network, layout, stats, rows, buffers, samples = make("linear", False)
    models = []
    for threads in (1, 2, 3):
        work = round_of(layout, rows, buffers, samples)
        FastEngine(network, layout, stats, threads=threads).train(work, samples)
        models.append(work.rows)
    assert not torch.equal(models[0], rows)
    assert torch.equal(models[0], models[1]) and torch.equal(models[0], models[2])
