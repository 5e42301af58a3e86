"""Batches and noise: the distribution the accountant assumes, and the same numbers for everyone."""

import math

import pytest
import torch

from fedpriv.engine import batches
from fedpriv.engine.noise import NoiseShape, NoiseSource
from fedpriv.errors import UserError
from fedpriv.rng import generator


def test_poisson_batches_include_every_sample_independently_at_its_rate():
    samples, rates = torch.tensor([400, 300]), torch.tensor([0.05, 0.2])
    steps = torch.tensor([500, 300])
    plan = batches.poisson(samples, rates, steps, torch.Generator().manual_seed(0))
    for client in range(2):
        n, q, t = int(samples[client]), float(rates[client]), int(steps[client])
        sizes = plan.size[client, :t].double()
        # Binomial(n, q): mean and variance within five standard errors.
        deviation = math.sqrt(n * q * (1 - q))
        assert abs(sizes.mean() - n * q) < 5 * deviation / math.sqrt(t)
        assert abs(sizes.var() - deviation**2) < 5 * deviation**2 * math.sqrt(2 / t)
        assert plan.size[client, t:].sum() == 0 and not plan.active[client, t:].any()
        counts = torch.zeros(n)
        for step in range(t):
            own = plan.index[client, step, : plan.size[client, step]]
            assert len(own.unique()) == len(own)
            counts[own] += 1
        assert (counts - t * q).abs().max() < 5 * math.sqrt(t * q * (1 - q))


def test_poisson_batches_can_be_empty_and_full():
    one = torch.tensor([1])
    plan = batches.poisson(one, torch.tensor([0.5]), torch.tensor([64]), torch.Generator().manual_seed(0))
    assert set(plan.size.flatten().tolist()) == {0, 1} and plan.active.all()
    full = batches.poisson(torch.tensor([9]), torch.tensor([1.0]), torch.tensor([3]), torch.Generator())
    assert (full.size == 9).all()


def test_poisson_planning_in_blocks_is_only_about_memory(monkeypatch):
    arguments = torch.tensor([50, 20]), torch.tensor([0.3, 0.1]), torch.tensor([7, 9])
    whole = batches.poisson(*arguments, torch.Generator().manual_seed(1))
    monkeypatch.setattr(batches, "_BLOCK", 100)
    parts = batches.poisson(*arguments, torch.Generator().manual_seed(1))
    assert torch.equal(whole.index, parts.index) and torch.equal(whole.size, parts.size)


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_shuffled_pass_uses_every_sample_once(epochs):
    samples = torch.tensor([10, 3, 8])
    steps = batches.local_steps(samples, 4, epochs, None)
    assert steps.tolist() == [3 * epochs, epochs, 2 * epochs]
    plan = batches.shuffled(samples, 4, steps, torch.Generator().manual_seed(0))
    for client, n in enumerate(samples.tolist()):
        used = [i for t in range(plan.size.shape[1]) for i in plan.index[client, t, : plan.size[client, t]]]
        assert sorted(int(i) for i in used) == sorted(list(range(n)) * epochs)


def test_a_number_of_steps_goes_over_the_data_as_often_as_needed():
    samples = torch.tensor([10, 3])
    steps = batches.local_steps(samples, 4, 1, 7)
    plan = batches.shuffled(samples, 4, steps, torch.Generator().manual_seed(0))
    assert plan.size[0].tolist() == [4, 4, 2, 4, 4, 2, 4] and plan.size[1].tolist() == [3] * 7


def test_noise_has_the_right_moments_and_no_two_tiles_alike():
    shape = NoiseShape(rounds=2, steps=2, rows=3, width=100_000)
    source = NoiseSource(shape, 3)
    blocks = [source.draw(3, 0, r, s, torch.zeros(1)) for r in range(2) for s in range(2)]
    z = torch.stack(blocks)
    count = z.numel()
    assert abs(z.mean()) < 5 / math.sqrt(count) and abs(z.var() - 1) < 5 * math.sqrt(2 / count)
    rows = z.view(-1, 100_000)
    correlation = torch.corrcoef(rows) - torch.eye(len(rows))
    assert correlation.abs().max() < 5 / math.sqrt(100_000)


def test_tile_seeds_are_a_permutation():
    """A Feistel network is a bijection whatever its key: no two of these counters may share a stream."""
    source = NoiseSource(NoiseShape(1, 1, 1, 1), 0)
    seeds = {source._seed(counter) for counter in range(200_000)}
    assert len(seeds) == 200_000 and max(seeds) < 1 << 32


def test_too_many_tiles_are_refused():
    with pytest.raises(UserError, match="distinct streams"):
        NoiseSource(NoiseShape(10**4, 10**4, 10**3, 10**6), 0)


@pytest.mark.parametrize("width", [7, 5000, 70_000])
def test_added_noise_is_the_drawn_noise_for_any_rows(width):
    source = NoiseSource(NoiseShape(4, 4, 40, width), 1)
    group = source.shape.rows_per_tile
    whole = source.draw(40, 0, 2, 1, torch.zeros(1))
    first = group * (20 // group) if group < 20 else 0
    rows, scale = torch.ones(40 - first, width), torch.linspace(0, 2, 40 - first)
    source.add_(rows, scale, first, 2, 1)
    torch.testing.assert_close(rows, 1 + scale[:, None] * whole[first:])
    torch.testing.assert_close(source.draw(1, 33, 2, 1, torch.zeros(1))[0], whole[33])


def test_a_secret_key_sets_the_whole_state():
    """32-bit seeds could be searched: with a secret key even equal low bits give different streams."""
    shape, like = NoiseShape(2, 2, 3, 70_000), torch.zeros(1)
    a, b = NoiseSource(shape, b"one key"), NoiseSource(shape, b"another")
    assert torch.equal(a.draw(3, 0, 1, 1, like), NoiseSource(shape, b"one key").draw(3, 0, 1, 1, like))
    z = torch.cat([s.draw(3, 0, r, 1, like) for s in (a, b) for r in (0, 1)])
    assert (torch.corrcoef(z) - torch.eye(12)).abs().max() < 5 / math.sqrt(70_000)
    assert abs(z.var() - 1) < 5 * math.sqrt(2 / z.numel())
    first = torch.rand(1000, generator=generator(b"key", "batches", 0))
    assert abs(first.mean() - 0.5) < 5 / math.sqrt(12 * 1000)
    low = generator(b"key", "batches", 0).initial_seed() & 0xFFFFFFFF
    assert not torch.equal(first, torch.rand(1000, generator=torch.Generator().manual_seed(low)))


def test_generators_are_named():
    same = torch.rand(3, generator=generator(1, "batches", 4))
    assert torch.equal(same, torch.rand(3, generator=generator(1, "batches", 4)))
    for other in ((1, "batches", 5), (2, "batches", 4), (1, "sampling", 4)):
        assert not torch.equal(same, torch.rand(3, generator=generator(*other)))
