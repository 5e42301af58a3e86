"""Random numbers: the laws the accountant assumes, secure bits, and nobody's numbers depend on others."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from fedpriv.engine import batches
from fedpriv.engine.dropout import NamedDropout, check_draws, name_dropouts, sample_names
from fedpriv.errors import UserError
from fedpriv.randomness import chacha, compiled, gaussian
from fedpriv.randomness.source import Source, _order, generator, key_of
from tests.helpers.draws import source

# -- the generator


def test_the_words_are_those_of_the_published_cipher(monkeypatch):
    """The first block of ChaCha20 for an all-zero key and name (RFC 8439, A.1, test vector 1)."""
    monkeypatch.setattr(chacha, "ROUNDS", 20)
    zero = torch.zeros(1, 3, dtype=torch.int32)
    block = chacha.blocks(chacha.head(np.zeros(8, np.uint32)), zero[0, :1], zero)[0, 0]
    words = [int(w) & 0xFFFFFFFF for w in block]
    assert words[:4] == [0xADE0B876, 0x903DF1A0, 0xE56A5D40, 0x28BD8653]


@pytest.mark.parametrize("width", [1, 16, 35, 300])
def test_compiled_words_and_normals_are_those_of_the_oracle(width):
    rows = torch.tensor([0, 1, 7, 2**31 + 5, (3 << 32) + 4, 2**40, 6, 6, 9])
    for step in (0, 3):
        fast, slow = source(1).words(rows, width, step), source(1).words_there(rows, width, step)
        assert torch.equal(fast, slow)
    key = chacha.head(np.frombuffer(source(1).key, np.uint32))
    names = torch.stack([rows & 0xFFFFFFFF, torch.full_like(rows, 3), rows >> 32], 1)
    names = torch.where(names >= 2**31, names - 2**32, names).to(torch.int32)
    z = source(1).normals(rows, torch.zeros(len(rows), width), 3)
    assert torch.equal(z, gaussian.normals(key, names, width))


def test_a_row_depends_on_nothing_but_its_name():
    alone = source().normals([5], torch.zeros(1, 1000), 2)[0]
    among = source().normals([1, 5, 9], torch.zeros(3, 1000), 2)[1]
    longer = source().normals([5], torch.zeros(1, 5000), 2)[0, :1000]
    assert torch.equal(alone, among) and torch.equal(alone, longer)
    assert torch.equal(source().words([5], 40), source().words(range(9), 70)[5:6, :40])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_added_noise_is_the_drawn_noise(dtype):
    rows, scale = torch.ones(4, 1000, dtype=dtype), torch.linspace(0, 2, 4)
    source().add_normals_(rows, scale, [3, 1, 2, 0], 1)
    z = source().normals([3, 1, 2, 0], rows, 1)
    torch.testing.assert_close(rows, 1 + scale[:, None].to(dtype) * z)
    part = torch.ones(4, 2000, dtype=dtype)[:, :1000]  # rows with gaps between them
    source().add_normals_(part, scale, [3, 1, 2, 0], 1)
    torch.testing.assert_close(part, rows)


def normals(count: int) -> np.ndarray:
    out = np.zeros((1, count), np.float32)
    key = np.frombuffer(source(2).key, np.uint32).copy()
    compiled.add_normals(out, np.ones(1, np.float32), key, np.zeros((1, 3), np.uint32))
    return out[0]


def test_normals_follow_the_normal_law():
    z = normals(4_000_000).astype(np.float64)
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3), (6, 15)):
        spread = math.sqrt(stats.norm.moment(2 * power) - moment**2)
        assert abs((z**power).mean() - moment) < 5 * spread / math.sqrt(len(z))
    assert stats.kstest(z, "norm").pvalue > 1e-4
    pairs = z.reshape(-1, 2, 8)  # cosines and sines of the same radius
    assert abs(np.mean(pairs[:, 0] * pairs[:, 1])) < 5 / math.sqrt(len(z) / 2)
    assert abs(np.mean(z[:-1] * z[1:])) < 5 / math.sqrt(len(z))
    assert abs(np.mean(pairs[:, 0] ** 2 * pairs[:, 1] ** 2) - 1) < 5 * 3 / math.sqrt(len(z) / 2)


@pytest.mark.long
def test_tails_of_a_hundred_million_normals():
    z = np.abs(normals(100_000_000))
    for end in (1.0, 2.0, 3.0, 4.0, 5.0):
        expected = 2 * stats.norm.sf(end) * len(z)
        assert abs((z > end).sum() - expected) < 5 * math.sqrt(expected)
    assert 5.3 < z.max() < 7


def test_tails_reach_beyond_eight_deviations():
    """The rarest words: all bits of the radius zero, and one."""
    words = torch.tensor([[0, 0x1FFFF], [0, 0], [1, 0], [-(2**31), 0]], dtype=torch.int32)
    x, y = gaussian.pair(words[:, 0], words[:, 1])
    radius = (x**2 + y**2).sqrt()
    assert radius[0] == pytest.approx(math.sqrt(94 * math.log(2)), rel=1e-6) and radius[0] > 8.07 - 1e-2
    assert radius[0] >= gaussian.END - 0.005 and radius[2] < radius[1] == radius[3] and x[3] == -x[1]
    # A radius has the law of Rayleigh: its word is 2^46 times the chance of a longer one.
    assert math.exp(-(float(radius[2]) ** 2) / 2) == pytest.approx((2**15 + 0.5) / 2**46, rel=1e-5)


def test_normals_are_those_of_their_words():
    """Against Box and Muller's formula in double precision: a word is, bit by bit, what the file says."""
    a, b = source(3).words([0, 1], 100_000).to(torch.int64)
    u = ((a % 2**31) * 2**15 + b // 2**17).double() / 2.0**46 + 2.0**-47
    g = ((b // 2 % 2**16).double() + 0.5) / 2**16 - 0.5
    quarter = torch.where(b % 2 == 1, 0.5 - g / 2, g / 2) + torch.where(a >= 2**31, 1.0, 0.0)
    radius = (-2 * u.log()).sqrt()
    error = 2**-23 / radius + 1e-6 * radius  # u has 24 bits, of which a short radius is a root
    x, y = gaussian.pair(*(torch.where(w >= 2**31, w - 2**32, w).to(torch.int32) for w in (a, b)))
    for z, exact in ((x, (math.pi * quarter).cos()), (y, (math.pi * quarter).sin())):
        assert ((z - radius * exact).abs() <= error).all()


def test_purposes_rounds_steps_clients_and_keys_are_independent():
    like, root = torch.zeros(3, 70_000), source()
    made = [
        root.of("noise", 0).normals(range(3), like), root.of("noise", 1).normals(range(3), like),
        root.of("noise", 0).normals(range(3), like, 1), root.of("server", 0).normals(range(3), like),
        source(1).of("noise", 0).normals(range(3), like),
    ]  # fmt: skip
    z = torch.cat(made)
    assert (torch.corrcoef(z) - torch.eye(len(z))).abs().max() < 5 / math.sqrt(70_000)
    assert torch.equal(made[0], source().of("noise", 0).normals(range(3), like))


def test_uniform_numbers_chances_and_orders():
    u = source().uniforms(range(100), 1000)
    assert stats.kstest(u.flatten().numpy(), "uniform").pvalue > 1e-4 and u.min() >= 0 and u.max() < 1
    drawn = source().below(torch.tensor([[0.1], [0.7]]), range(2), 100_000).double().mean(1)
    assert abs(drawn[0] - 0.1) < 5 * 0.3 / math.sqrt(1e5) and abs(drawn[1] - 0.7) < 5 * 0.46 / math.sqrt(1e5)
    assert source().below(1.0, range(9), 99).all() and not source().below(0.0, range(9), 99).any()
    orders = torch.stack([source(n).permutation(5) for n in range(3000)])
    assert (orders.sort(1).values == torch.arange(5)).all()
    for place in range(5):
        counts = torch.bincount(orders[:, place], minlength=5)
        assert stats.chisquare(counts.numpy()).pvalue > 1e-4


@pytest.mark.parametrize("number", [0, 1, 2, 600, 70_000])
def test_an_order_is_that_of_the_words_and_alike_ones_stay_as_they_were(number):
    words = source().words([0], 2 * number)[0].numpy().astype(np.uint32).view(np.uint64)
    assert source().permutation(number).tolist() == words.argsort(kind="stable").tolist()
    # Alike but for the bits that a place is packed into, or altogether; one of two orders is not the places'.
    for some in (words << np.uint64(60) | words & np.uint64(1), words & np.uint64(1)):
        for each in (some, some[::-1]):
            assert _order(each).tolist() == each.argsort(kind="stable").tolist()


def test_a_key_has_all_its_bytes_and_runs_have_keys_of_their_own():
    with pytest.raises(ValueError, match="32 bytes"):
        Source(b"short")
    keys = {key_of(0, "a"), key_of(0, "b"), key_of(1, "a")}
    assert len(keys) == 3 and all(len(k) == 32 for k in keys) and key_of(0, "a") in keys


def test_public_generators_are_named():
    same = torch.rand(3, generator=generator(1, "aggregator", 4))
    assert torch.equal(same, torch.rand(3, generator=generator(1, "aggregator", 4)))
    for other in ((1, "aggregator", 5), (2, "aggregator", 4), (1, "share", 4)):
        assert not torch.equal(same, torch.rand(3, generator=generator(*other)))


# -- batches


def poisson(samples, rates, steps, key=0):
    samples = torch.tensor(samples)
    names = sample_names(
        torch.arange(len(samples)), torch.arange(int(samples.max())).expand(len(samples), -1)
    )
    return batches.poisson(samples, torch.tensor(rates), torch.tensor(steps), names, source(key))


def test_poisson_batches_include_every_sample_independently_at_its_rate():
    samples, rates, steps = [400, 300], [0.05, 0.2], [500, 300]
    plan = poisson(samples, rates, steps)
    for client, (n, q, t) in enumerate(zip(samples, rates, steps, strict=True)):
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
    plan = poisson([1], [0.5], [64])
    assert set(plan.size.flatten().tolist()) == {0, 1} and plan.active.all()
    assert (poisson([9], [1.0], [3]).size == 9).all()


def test_a_sample_that_is_absent_changes_no_other_samples_batches():
    numbers, one = torch.tensor([[7, 3, 9, 4, 8]]), torch.tensor([1])
    steps, rates = torch.tensor([40]), torch.tensor([0.4])

    def joined(owned):
        names = sample_names(one, owned)
        plan = batches.poisson(torch.tensor([owned.shape[1]]), rates, steps, names, source())
        return [{int(owned[0, i]) for i in plan.index[0, t, : plan.size[0, t]]} for t in range(40)]

    without = joined(numbers[:, [0, 1, 3, 4]])  # sample 9 is gone
    assert [batch - {9} for batch in joined(numbers)] == without and any(9 in b for b in joined(numbers))


def test_a_client_that_is_absent_changes_no_other_clients_batches():
    samples, steps = torch.tensor([10, 3, 50]), torch.tensor([6, 2, 26])
    plan = batches.shuffled(samples, 4, steps, torch.tensor([2, 5, 9]), source())
    without = batches.shuffled(samples[:2], 4, steps[:2], torch.tensor([2, 5]), source())
    for client in (0, 1):
        taken = int(steps[client])
        assert torch.equal(plan.index[client, :taken], without.index[client, :taken])


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_shuffled_pass_uses_every_sample_once(epochs):
    samples = torch.tensor([10, 3, 8])
    steps = batches.local_steps(samples, 4, epochs, None)
    assert steps.tolist() == [3 * epochs, epochs, 2 * epochs]
    plan = batches.shuffled(samples, 4, steps, torch.arange(3), source())
    for client, n in enumerate(samples.tolist()):
        used = [i for t in range(plan.size.shape[1]) for i in plan.index[client, t, : plan.size[client, t]]]
        assert sorted(int(i) for i in used) == sorted(list(range(n)) * epochs)


def test_a_number_of_steps_goes_over_the_data_as_often_as_needed():
    samples = torch.tensor([10, 3])
    steps = batches.local_steps(samples, 4, 1, 7)
    plan = batches.shuffled(samples, 4, steps, torch.arange(2), source())
    assert plan.size[0].tolist() == [4, 4, 2, 4, 4, 2, 4] and plan.size[1].tolist() == [3] * 7


# -- dropout


def test_masks_keep_their_share_and_belong_to_samples():
    layer = NamedDropout(0.3, 0).train()
    layer.name(source(), torch.arange(50), 2)
    kept = layer(torch.ones(50, 2000))
    torch.testing.assert_close(kept.unique(), torch.tensor([0, 1 / 0.7]))
    assert abs((kept > 0).double().mean() - 0.7) < 5 * math.sqrt(0.21 / 1e5)
    layer.name(source(), torch.tensor([4, 40]), 2)
    assert torch.equal(layer(torch.ones(2, 2000)), kept[[4, 40]])
    layer.name(source(), torch.arange(50), 3)
    assert not torch.equal(layer(torch.ones(50, 2000)), kept)
    whole = NamedDropout(0.5, 1, channels=True).train()
    whole.name(source(), torch.arange(9), 0)
    images = whole(torch.ones(9, 6, 4, 4))
    assert ((images == images[:, :, :1, :1]).all()) and 0 < (images == 0).double().mean() < 1


def test_dropout_that_no_key_protects_is_refused():
    with pytest.raises(UserError, match="AlphaDropout"):
        name_dropouts(torch.nn.Sequential(torch.nn.AlphaDropout()))

    class Own(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.dropout(x, 0.5)

    with pytest.raises(UserError, match="draws random numbers"):
        check_draws(Own(), torch.ones(2, 3))
    check_draws(torch.nn.Linear(3, 2), torch.ones(2, 3))
