"""Which clients are computed together follows from the work alone, so that threads change not a bit."""

import pytest
import torch

from fedpriv import build
from fedpriv.engine import fast


@pytest.mark.parametrize("enough", [0, 1 << 40])  # in groups, or all at once and draws made ahead
@pytest.mark.parametrize("more", [("dp=ldp", "model=logreg"), ("dp=none", "partition=dirichlet")])
def test_threads_do_not_change_a_bit(monkeypatch, enough, more):
    monkeypatch.setattr(fast, "_ENOUGH", enough)
    models = []
    for threads in (1, 2, 3):
        trainer = build(*more, "batch_size=16", clients=13, rounds=1, threads=threads).trainer
        trainer.round()
        models.append(trainer.theta)
    assert torch.equal(models[0], models[1]) and torch.equal(models[0], models[2])
