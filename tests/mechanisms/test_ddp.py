"""The Skellam mechanism: rotation, rounding, noise, modulus, masks and its epsilon."""

import math
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest
import torch
from dp_accounting import rdp as dp_rdp
from scipy import stats
from scipy.special import ive

from fedpriv.aggregators.mean import Mean
from fedpriv.aggregators.sum import Sum
from fedpriv.algorithms.fedavg import FedAvg
from fedpriv.building import build
from fedpriv.errors import UserError
from fedpriv.mechanisms.ddp import DDP
from fedpriv.mechanisms.rotation import hadamard, padded, random_signs
from fedpriv.parts.declarations import Wiring
from fedpriv.parts.wiring import wire
from fedpriv.privacy.events import ORDERS, SampledGaussian
from fedpriv.privacy.skellam import SampledSkellam, l1_norm, poisson_amplified, rounded_norm, skellam_rdp
from fedpriv.randomness import poisson
from fedpriv.uploads.plain import Plain
from fedpriv.uploads.secure_sum import SecureSum
from tests.conftest import SMALL
from tests.helpers.draws import source
from tests.helpers.observers import observed, rdp_epsilon
from tests.helpers.settings import DIMENSION, epsilon_of, round_of, setting


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def prepared(upload=None, clients=40, rate=0.5, epsilon=20.0, **options):
    facts = setting(clients=clients, rounds=5, rate=rate, epsilon=epsilon)
    mechanism = DDP(clip_norm=1.0, **options)
    upload = SecureSum() if upload is None else upload
    wiring = wire(mechanism, FedAvg(), Sum(), upload, facts)
    guarantee = mechanism.setup(facts, wiring)
    upload.setup(facts, wiring)
    return mechanism, upload, facts, guarantee


def summed(mechanism, upload, updates, round_, seed=0):
    """One round: what the server makes of these updates."""
    sent, _ = upload.encode(mechanism.client(updates, round_, source(seed)), round_, source(seed + 1000))
    return mechanism.server(Sum()(upload.decode(sent, round_), round_), round_, 1.0, source())


# -- rotation


@pytest.mark.parametrize("power", [0, 1, 3, 7, 13])
def test_the_rotation_is_orthonormal_and_its_own_inverse(power):
    x = torch.randn(2, 1 << power, generator=seeded()).double()
    y = hadamard(x)
    torch.testing.assert_close(hadamard(y), x)
    torch.testing.assert_close(y.norm(dim=1), x.norm(dim=1))


def test_hadamard_by_hand():
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    torch.testing.assert_close(hadamard(x), torch.tensor([[10.0, -2.0, -4.0, 0.0]]) / 2)
    assert [padded(n) for n in (1, 2, 3, 1024, 1025, 531_400)] == [1, 2, 4, 1024, 2048, 1 << 20]
    signs = random_signs(10_000, source(), x)
    assert set(signs.tolist()) == {-1.0, 1.0} and abs(signs.mean()) < 5 / 100


# -- rounding and noise


def test_rounding_is_unbiased_and_keeps_its_bound():
    mechanism, *_ = prepared()
    x = torch.rand(DIMENSION + 2, generator=seeded()) * 4 - 2
    mechanism.bound = math.inf
    one = np.zeros(1, dtype=np.int64)
    draws = torch.cat([mechanism._rounded(x[None], one, source(s)) for s in range(4000)])
    assert ((draws - x).abs() < 1).all() and torch.equal(draws, draws.round())
    assert ((draws.mean(0) - x).abs() < 5 * 0.5 / math.sqrt(4000)).all()  # a rounding error is within 1/2 std
    mechanism.bound = float(draws.norm(dim=1).median())
    again = torch.cat([mechanism._rounded(x[None], one, source(s)) for s in range(200)])
    together = mechanism._rounded(x.expand(200, -1), np.arange(200), source(0))  # some of them more than once
    assert (again.norm(dim=1) <= mechanism.bound).all() and (together.norm(dim=1) <= mechanism.bound).all()


def test_one_rounding_exceeds_the_bound_with_probability_at_most_beta():
    width, norm, beta = 256, 3.0, math.exp(-0.5)
    x = torch.full((width,), norm / math.sqrt(width))
    draws = (x + torch.rand(2000, width, generator=seeded())).floor()
    bound = rounded_norm(norm, width, beta)
    assert (draws.norm(dim=1) > bound).double().mean() <= beta
    assert rounded_norm(1000.0, 4, 1e-9) == 1002.0  # the bound that always holds, where it is smaller


@pytest.mark.parametrize("variance", [0.5, 40.0, 3e7, 2.0**41])
def test_skellam_noise_has_its_variance_and_no_mean(variance):
    draws = poisson.skellam(200_000, variance, source().stream()).astype(float)
    assert abs(draws.mean()) < 5 * math.sqrt(variance / 200_000)
    spread = math.sqrt(variance / 200_000 * (2 * variance + 1))  # std of a sample variance
    assert abs(draws.var() - variance) < 5 * spread


@pytest.mark.parametrize("rate", [0.25, 1.0, 3.7, 40.0, 2000.5, 1e6])
def test_poisson_numbers_follow_their_law(rate):
    """Counts of 200,000 draws in about 40 cells against the distribution function; p = 1e-6 by chance."""
    draws = poisson.poisson(200_000, rate, source(3).stream())
    law = stats.poisson(rate)
    edges = np.unique(law.ppf(np.linspace(0.001, 0.999, 40)))
    expected = np.diff([0.0, *law.cdf(edges), 1.0]) * len(draws)
    counts = np.bincount(np.searchsorted(edges, draws), minlength=len(expected))
    keep = expected > 5
    statistic = float((((counts - expected) ** 2) / expected)[keep].sum())
    assert statistic < stats.chi2(keep.sum()).isf(1e-6)


@pytest.mark.parametrize("rate", [0.25, 30.0, 999.0, 1001.0, 3e7])
def test_floats_decide_only_what_they_can(rate, monkeypatch):
    """With every candidate decided by mpmath instead, the same words give the same numbers."""
    law = poisson._Law(rate)
    quick = law.accepted(300, source(7).stream())
    decided = []
    exact = poisson._Law.decide
    monkeypatch.setattr(poisson._Law, "decide", lambda *a: decided.append(a) or exact(*a))
    monkeypatch.setattr(poisson, "_ERROR", 1.0)
    slow = law.accepted(300, source(7).stream())
    assert len(decided) > 100 and quick.tolist() == slow.tolist()


def test_a_bar_within_the_word_is_decided_by_further_bits():
    """At k = m in the first block V is compared with 1/c; here its first word is that of 1/c itself."""
    law, asked = poisson._Law(30.0), []

    def always(word):
        return lambda count: asked.append(count) or np.full(count, word, dtype=np.uint64)

    with mpmath.workprec(200):
        word = int(mpmath.floor(mpmath.ldexp(mpmath.exp(-law.bound), 64)))
    assert law.decide(30, 0, word, always(0)) and asked == [1]  # V is just below
    assert not law.decide(30, 0, word, always(2**64 - 1)) and asked == [1, 1]  # just above
    assert law.decide(30, 0, word - 1, always(0)) and not law.decide(30, 0, word + 1, always(0))
    assert asked == [1, 1]


def test_the_tail_of_the_noise_goes_on():
    """Of 4 million numbers of variance 1e6 the largest should be near 5.1 deviations, and none is cut."""
    draws = poisson.skellam(1 << 22, 1e6, source(1).stream()) / 1e3
    far = (np.abs(draws) > 4).sum()
    expected = (1 << 22) * 2 * stats.norm.sf(4)
    assert abs(far - expected) < 5 * math.sqrt(expected)
    law = poisson._Law(5e5)
    eight = np.array([law.mode + 8 * 707])
    assert law.log_ratio(eight)[0] == pytest.approx(
        stats.poisson(5e5).logpmf(eight[0]) - stats.poisson(5e5).logpmf(law.mode), abs=1e-6
    )


@pytest.mark.parametrize("protocol", ["ideal", "masked"])
def test_the_mean_is_unbiased_and_the_noise_is_what_was_calibrated(protocol):
    mechanism, upload, facts, _ = prepared(SecureSum(protocol=protocol), clients=6, rate=1.0)
    round_ = round_of(facts)
    updates = torch.randn(6, DIMENSION, generator=seeded()) / 10  # norms below the clip
    results = torch.stack([summed(mechanism, upload, updates, round_, s) for s in range(600)])
    # Noise of the mean: (z C / n)^2 of Skellam plus n/4 at most of rounding, scaled back.
    skellam_part = (mechanism.z * 1.0 / 6) ** 2
    rounding = 6 / 4 / mechanism.scale**2 / 36
    spread = math.sqrt(skellam_part + rounding)
    assert ((results.mean(0) - updates.mean(0)).abs() < 5 * spread / math.sqrt(600)).all()
    variance = float(results.var(0).mean())
    assert skellam_part * 0.85 < variance < (skellam_part + rounding) * 1.15  # 3600 draws: 5 std are 12 %


def test_updates_are_clipped_before_anything_else():
    mechanism, upload, facts, _ = prepared(clients=6, rate=1.0)
    mechanism.variance = 0.0
    huge = torch.zeros(6, DIMENSION)
    huge[:, 0] = 1e6
    huge[1, 3] = torch.nan
    result = summed(mechanism, upload, huge, round_of(facts))
    assert result[0] == pytest.approx(
        5 / 6, abs=0.01
    )  # five clients of norm one; the broken one sends nothing


# -- the secure sum


def bare(bits=8, **options):
    upload = SecureSum(**options)
    upload.setup(setting(clients=30), Wiring(sends="shares", bits=bits))
    return upload


def residues(count, width=50, bits=8, seed=0):
    return torch.randint(0, 2**bits, (count, width), generator=seeded(seed), dtype=torch.int32)


def centred(total, bits=8):
    half = 1 << (bits - 1)
    return (total + half) % 2**bits - half


@pytest.mark.parametrize("count", [2, 3, 5, 30])
@pytest.mark.parametrize("neighbours", [None, 2, 6])
def test_masks_cancel_and_hide(count, neighbours):
    messages, round_ = residues(count), SimpleNamespace(clients=np.arange(count))
    sums = []
    for protocol in ("ideal", "masked"):
        upload = bare(protocol=protocol, neighbours=neighbours)
        sent, size = upload.encode(messages, round_, source(3))
        assert size == count * 50
        sums.append(upload.decode(sent, round_))
        if protocol == "masked":
            # 50 uniform residues agree with the message in each place with probability 1/256.
            assert ((sent.uploads == messages).sum(1) <= 4).all()
            assert sent.uploads.min() >= 0 and sent.uploads.max() < 256
    assert torch.equal(*sums) and torch.equal(sums[0][0], centred(messages.sum(0)))


def test_dropped_clients_are_recovered():
    messages, round_ = residues(30), SimpleNamespace(clients=np.arange(30))
    upload = bare(protocol="masked", dropout=0.2, tolerance=0.5)
    sent, size = upload.encode(messages, round_, source(1))
    left = len(sent.uploads)
    assert upload.diagnostics() == {"dropped": 30 - left, "refused": 0} and 15 <= left < 30
    assert sent.revealed and size == left * 50 + 32 * len(sent.revealed)
    gone = source(1).of("vanish").below(0.2, np.arange(30), 1)[:, 0]
    assert torch.equal(upload.decode(sent, round_)[0], centred(messages[~gone].sum(0)))
    same = bare(protocol="ideal", dropout=0.2, tolerance=0.5)
    assert torch.equal(
        same.decode(same.encode(messages, round_, source(1))[0], round_), upload.decode(sent, round_)
    )


@pytest.mark.parametrize("protocol", ["ideal", "masked"])
def test_a_round_with_too_few_left_is_refused(protocol):
    round_ = SimpleNamespace(clients=np.arange(30))
    upload = bare(protocol=protocol, dropout=0.5, tolerance=0.1)
    sent, _ = upload.encode(residues(30), round_, source(1))
    assert sent.refused and sent.revealed == [] and upload.decode(sent, round_).shape == (0, 50)
    assert upload.diagnostics()["refused"] == 1
    alone = bare(protocol=protocol)
    sent, _ = alone.encode(
        residues(1), SimpleNamespace(clients=np.arange(1)), source()
    )  # the sum of one, who adds all the noise
    assert torch.equal(alone.decode(sent, round_)[0], centred(residues(1)[0])) and not sent.refused
    nobody, _ = alone.encode(residues(0), SimpleNamespace(clients=np.arange(0)), source())
    assert alone.decode(nobody, round_).shape == (0, 50) and alone.diagnostics()["refused"] == 0


def test_a_round_whose_mask_graph_falls_apart_is_refused():
    upload = bare(protocol="masked", neighbours=2, dropout=0.3, tolerance=0.9)
    sent, _ = upload.encode(
        residues(30), SimpleNamespace(clients=np.arange(30)), source(1)
    )  # a circle cut in several places
    assert sent.refused


def test_a_refused_round_leaves_the_model_and_still_costs(config):
    options = ("dp=ddp", "rounds=2", "upload.dropout=0.9", "clients=6", "epsilon=30")
    trainer = build(config(*SMALL, *options)).trainer
    before = trainer.theta.clone()
    result = trainer.round()
    assert result.diagnostics["refused"] == 1 and torch.equal(trainer.theta, before)
    assert (trainer.ledger.participations == 1).all()


def test_tolerance_makes_every_share_larger():
    _, upload, facts, _ = prepared(SecureSum(protocol="masked", tolerance=0.5), clients=6, rate=1.0)
    mechanism, *_ = prepared(upload, clients=6, rate=1.0)
    drawn = []
    mechanism._skellam = lambda variance, source, like: drawn.append(variance) or torch.zeros_like(like)
    mechanism.client(torch.zeros(6, DIMENSION), round_of(facts), source())
    assert drawn == [mechanism.variance / 3] * 6  # three of six suffice


def test_wrapping_around_is_counted_and_the_rest_is_modular():
    mechanism, upload, facts, _ = prepared(clients=6, rate=1.0)
    mechanism.variance = 0.0
    mechanism.scale *= 50  # as if far too few bits had been chosen
    mechanism.bound *= 60
    updates = torch.zeros(6, DIMENSION)
    updates[:, 0] = 1.0
    wrong = summed(mechanism, upload, updates, round_of(facts))
    assert mechanism.diagnostics()["wrapped"] > 0
    assert wrong[0] < 0.9


# -- epsilon


@pytest.mark.parametrize(("variance", "slack"), [(3.0, 3.0), (30.0, 1.2), (100.0, 1.05)])
@pytest.mark.parametrize("shift", [1, 2])
@pytest.mark.parametrize("order", [2, 3, 8])
def test_the_closed_form_bounds_the_exact_divergence(variance, slack, shift, order):
    values = np.arange(-110, 111)
    p, q = (np.log(ive(np.abs(values - s), variance)) for s in (shift, 0))  # the Skellam distribution's
    exact = np.logaddexp.reduce(order * p + (1 - order) * q) / (order - 1)
    bound = skellam_rdp(order, variance, shift, shift)
    assert exact <= bound * (1 + 1e-9) and bound < slack * exact


def test_the_closed_form_by_hand():
    """Order 3, variance 4, D1 = 2, D2^2 = 2: 3 * 2 / 8 + min((5 * 2 + 12) / 64, 6 / 8) = 0.75 + 0.34375."""
    assert skellam_rdp(3, 4.0, 2.0, math.sqrt(2)) == pytest.approx(1.09375)
    assert l1_norm(3.0, 4) == 6.0 and l1_norm(3.0, 400) == 9.0


def test_amplification_against_dp_accountings_sampled_gaussian():
    """On a Gaussian's curve the general bound is above the tight one, and not far at small rates."""
    sigma, rate = 2.0, 0.02
    tight = dp_rdp.rdp_privacy_accountant._compute_rdp_poisson_subsampled_gaussian(rate, sigma, [2, 4, 8])
    for order, exact in zip((2, 4, 8), tight, strict=True):
        bound = poisson_amplified(order, rate, lambda a: a / (2 * sigma**2))
        assert exact <= bound * (1 + 1e-9) and bound < 2 * exact
    assert poisson_amplified(5, 1.0, lambda a: a * 0.25) == 1.25


def test_amplification_by_hand():
    """Order 3 at rate 1/2 with rdp(2) = log 2, rdp(3) = log 3: (1/4 * 2 + 3/8 * 2 + 3 * 1/8 * 9) = 4.625."""
    assert poisson_amplified(3, 0.5, math.log) == pytest.approx(math.log(4.625) / 2)


def test_much_noise_makes_skellam_as_good_as_gaussian():
    event = SampledSkellam(1.0, 1e8, 300.0, 1e3)
    gaussian = SampledGaussian(1.0, 10.0).rdp()
    whole = [i for i, o in enumerate(ORDERS) if o == int(o)]
    np.testing.assert_allclose(event.rdp()[whole], gaussian[whole], rtol=1e-3)


@pytest.mark.parametrize(
    ("against", "rate", "count"), [("server", 1.0, 5), ("server", 0.3, 2), ("outsider", 0.3, 5)]
)
def test_the_budget_is_kept_and_used(against, rate, count):
    mechanism, _, facts, guarantee = prepared(clients=100, rate=rate, against=against)
    # Of five rounds at rate 0.3 a client is expected in two.
    assert mechanism.facts.participation.rounds_charged(facts) == count
    assert 0.98 * 20 < epsilon_of(guarantee, facts, count) <= 20 < epsilon_of(guarantee, facts, count + 1)
    assert guarantee.unit == "client" and guarantee.provable is guarantee.claimed
    assert guarantee.details["sensitivity_factor_of_rounding"] > 1


def test_too_few_bits_are_refused_with_the_number_that_is_enough():
    facts = setting(clients=1000, rate=1.0, epsilon=1.0)
    with pytest.raises(UserError, match=r"bits=4: too few .* use dp_variant\.bits=(\d+)") as refusal:
        DDP(bits=4).setup(facts)
    enough = int(str(refusal.value).rpartition("=")[2].split()[0])
    DDP(bits=enough).setup(facts)
    with pytest.raises(UserError, match="too few"):
        DDP(bits=enough - 1).setup(facts)


@pytest.mark.parametrize("pair", [(Mean(), SecureSum()), (Sum(), Plain())])
def test_only_the_secure_sum_will_do(pair):
    with pytest.raises(UserError, match="upload=secure_sum and aggregator=sum"):
        wire(DDP(), FedAvg(), *pair, setting())


def test_the_secure_sum_needs_integers(config):
    with pytest.raises(UserError, match="ddp"):
        build(config(*SMALL, "upload=secure_sum")).trainer.round()


@pytest.mark.parametrize(
    "wrong", [{"bits": 1}, {"bits": 25}, {"beta": 0.0}, {"deviations": 0.0}, {"clip_norm": -1.0}]
)
def test_wrong_options(wrong):
    with pytest.raises(UserError):
        DDP(**wrong)


@pytest.mark.parametrize("wrong", [{"dropout": 1.0}, {"tolerance": -0.1}, {"neighbours": 1}])
def test_wrong_options_of_the_sum(wrong):
    with pytest.raises(UserError):
        SecureSum(**wrong)


def test_ddp_alone_selects_what_it_needs_and_runs_on_both_protocols(config):
    ideal, masked = (
        build(config(*SMALL, "dp=ddp", "epsilon=50", "rounds=2", f"upload.protocol={p}")).trainer
        for p in ("ideal", "masked")
    )
    assert isinstance(ideal.aggregator, Sum) and isinstance(ideal.upload, SecureSum)
    for trainer in (ideal, masked):
        result = trainer.round()
        assert result.uplink == 4 * 1024 * 16 // 8  # 592 weights padded to 1024, two bytes each
        assert bool(trainer.theta.isfinite().all())
    # Noise differs (one draw against shares), the signal does not: both are near the plain mean.
    assert ideal.mechanism.z == masked.mechanism.z


# -- against whom


def test_a_pinned_epsilon_at_a_rate_below_one():
    """Variance, norms and both epsilons from the formulas alone. K = 100, rate 0.1, 50 rounds, six weights
    padded to eight: at 8.0 against outsiders, five participations are 14.5 against the server."""
    mechanism, _, ledger = observed("outsider")
    z, j, n, q = mechanism.z, 8, 10, 0.1
    s = math.sqrt(((2**16 / 8) ** 2 - n / 4) / (n**2 / j + z**2))
    l2 = math.sqrt(s**2 + j / 4 + (s + math.sqrt(j) / 2))  # sqrt(2 log(1 / beta)) is 1
    l1, v = min(math.sqrt(j) * l2, l2**2), (s * z) ** 2

    def skellam_curve(a):
        return a * l2**2 / (2 * v) + min(((2 * a - 1) * l2**2 + 6 * l1) / (4 * v**2), 3 * l1 / (2 * v))

    def sampled(a):
        total = (1 - q) ** (a - 1) * (a * q - q + 1)
        for k in range(2, a + 1):
            factor = 1 if k == 2 else 3
            total += (
                factor * math.comb(a, k) * (1 - q) ** (a - k) * q**k * math.exp((k - 1) * skellam_curve(k))
            )
        return math.log(total) / (a - 1)

    (event,) = ledger.guarantee.claimed[0]
    assert (event.variance, event.l1, event.l2) == pytest.approx((v, l1, l2)) and l1 > 2 * l2
    small = [rdp_epsilon(sampled, 50, 1e-3), rdp_epsilon(skellam_curve, 5, 1e-3)]
    assert small == pytest.approx([8.0, 14.5], rel=0.01)
    outsider, server = (ledger.observed(name, planned=True).max() for name in ("outsider", "server"))
    assert [outsider, server] == pytest.approx(small, rel=0.005)
    report = ledger.report(planned=np.full(100, 50), noise_seeded=False)
    assert report["against"] == "outsider" and report["epsilon_claimed_max"] == pytest.approx(8.0, rel=0.01)
    assert report["observers"]["server"]["epsilon_max"] == pytest.approx(14.5, rel=0.01)


def test_the_server_sees_who_takes_part_so_only_they_pay():
    mechanism, facts, ledger = observed("server")
    assert ledger.guarantee.sampler.startswith("none")
    assert mechanism.facts.participation.rounds_charged(facts) == 5
    one, two = np.array([3]), np.array([3, 7])
    for present in (one, two):
        ledger.charge(mechanism.facts.participation.charged(present, facts), present)
    event = ledger.guarantee.claimed[0]
    spent = ledger.claimed()
    assert spent[3] == facts.accountant.epsilon(event, 2, 1e-3) > spent[7] > spent[0] == 0
    assert (ledger.observed("server") == spent).all()
    amplified = ledger.guarantee.observers["outsider"].charges[0]
    assert amplified[0].sampling_rate == 0.1 and event[0].sampling_rate == 1
    assert (ledger.observed("outsider") == facts.accountant.epsilon(amplified, 2, 1e-3)).all()  # everybody
    for _ in range(3):
        assert ledger.eligible()[3]
        ledger.charge(one)
    assert not ledger.eligible()[3] and ledger.eligible()[7]
    other = observed("server")[2]
    other.load(ledger.state())
    assert all((other.observed(n) == ledger.observed(n)).all() for n in ("server", "outsider"))


def test_outsiders_pay_every_round_and_the_server_is_still_shown():
    mechanism, facts, ledger = observed("outsider")
    payers = mechanism.facts.participation.charged(np.array([3]), facts)
    ledger.charge(payers, np.array([3]))
    assert (ledger.participations == 1).all() and (ledger.claimed() > 0).all()
    seen = ledger.observed("server")
    assert seen[3] > ledger.claimed()[3] and np.delete(seen, 3).max() == 0


@pytest.mark.parametrize("protocol", ["ideal", "masked"])
@pytest.mark.parametrize("present", [0, 1, 2, 5])
def test_every_round_releases_the_same_noise_whoever_takes_part(protocol, present):
    """Otherwise a model that stays as it was shows that fewer than two took part."""
    mechanism, upload, *_ = prepared(SecureSum(protocol=protocol), clients=10, rate=0.2)
    round_ = SimpleNamespace(clients=np.arange(present), expected=2.0)
    nothing = torch.zeros(present, DIMENSION)
    results = []
    for s in range(300):
        sent, _ = upload.encode(mechanism.client(nothing, round_, source(s)), round_, source(1000 + s))
        total = Sum()(upload.decode(sent, round_), round_)
        results.append(mechanism.server(total, round_, 1.0, source(2000 + s)))
    variance = float(torch.stack(results).var())
    assert variance == pytest.approx((mechanism.z / 2) ** 2, rel=0.2)  # 1800 draws: 5 deviations are 17 %


def test_one_clients_absence_leaves_the_others_roundings():
    mechanism, _, facts, _ = prepared(clients=6, rate=1.0)
    updates = torch.randn(6, DIMENSION, generator=seeded()) / 10
    everyone, rest = round_of(facts), round_of(facts, [0, 2, 3, 4, 5])
    mechanism._signs = torch.ones(mechanism.width)
    all_rows = mechanism._integers(updates, everyone, source(4))
    rows = mechanism._integers(updates[rest.clients], rest, source(4))
    assert torch.equal(rows, all_rows[rest.clients])


@pytest.mark.parametrize("option", ["upload.dropout=0.1", "upload.tolerance=0.2"])
def test_where_clients_may_vanish_nothing_is_amplified(config, option):
    options = (*SMALL, "dp=ddp", "epsilon=30", "sample_rate=0.5", "clients=6", option)
    with pytest.raises(UserError, match="against=server") as problem:
        build(config(*options, "dp_variant.against=outsider"))
    assert "\n" not in str(problem.value)
    guarantee = build(config(*options)).trainer.ledger.guarantee
    server, outsider = (guarantee.observers[n] for n in ("server", "outsider"))
    assert outsider.charges == server.charges and outsider.pays == "participants"
    assert outsider.relation == server.relation


def test_nobody_in_a_round_still_moves_the_model(config):
    trainer = build(config(*SMALL, "dp=ddp", "epsilon=30", "sample_rate=0.5")).trainer
    trainer.ledger.eligible = lambda: np.zeros(4, dtype=bool)
    before = trainer.theta.clone()
    result = trainer.round()
    assert len(result.clients) == 0 and (trainer.theta != before).float().mean() > 0.9
    assert result.diagnostics["refused"] == 0
