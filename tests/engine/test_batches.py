"""Poisson batches of many clients: the same whoever is drawn together, and never all words at once."""

import pytest
import torch

from fedpriv.engine import batches
from fedpriv.randomness.source import Source

CLIENTS, WIDEST, STEPS = 40, 9, 20


def drawn() -> batches.Plan:
    draw = torch.Generator().manual_seed(0)
    samples = torch.randint(0, WIDEST + 1, (CLIENTS,), generator=draw)
    samples[0] = WIDEST
    steps = torch.randint(1, STEPS + 1, (CLIENTS,), generator=draw)
    names = torch.arange(CLIENTS * WIDEST).view(CLIENTS, WIDEST)
    rates = torch.rand(CLIENTS, generator=draw, dtype=torch.float64)
    return batches.poisson(samples, rates, steps, names, Source(bytes(32)))


@pytest.mark.parametrize("at_once", [1, 2 * WIDEST, 7 * WIDEST + 5])
def test_a_plan_does_not_depend_on_how_many_clients_are_drawn_together(at_once, monkeypatch):
    whole, words, most = drawn(), Source.words, []

    def watched(self, rows, width, step=0):
        most.append(len(rows))
        return words(self, rows, width, step)

    monkeypatch.setattr(Source, "words", watched)
    monkeypatch.setattr(batches, "_SAMPLES", at_once)
    parts = drawn()
    assert max(most) <= max(WIDEST, at_once)
    for name in ("index", "size", "active"):
        assert torch.equal(getattr(parts, name), getattr(whole, name)), name
