"""FedPD: distillation, what is shared, what it costs, and how it mixes into training."""

import json
import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest, laplace, norm
from torch import nn

from fedpriv.building import build
from fedpriv.errors import UserError, positive
from fedpriv.privacy import accountants
from fedpriv.privacy.events import Direct, SampledGaussian
from fedpriv.privacy.shuffling import Reports
from fedpriv.randomness.laplace import END, laplaces
from fedpriv.randomness.source import Source
from fedpriv.stages.fedpd import cache, distil
from fedpriv.stages.fedpd.inversion import invert
from fedpriv.stages.fedpd.losses import Step
from fedpriv.stages.fedpd.noise import Distance, Noise, charge, epsilon, flaw, within
from fedpriv.stages.fedpd.quality import psnr, ssim
from fedpriv.stages.fedpd.release import clipped, distances
from fedpriv.stages.fedpd.share import Shared
from fedpriv.stages.fedpd.stage import FedPD
from fedpriv.stages.fedpd.vae import Distiller
from tests.conftest import SMALL
from tests.helpers.fedpd import a_recipe

QUICK = ("stage=fedpd", "stage.latent=8", "stage.rounds=1", "stage.data_fraction=0.2", "dp=none")
SOURCE = Source(bytes(32))
HALF = (torch.full((1, 1, 1), -1.0), torch.full((1, 1, 1), 1.0))


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    """Distillations are kept, but not in the cache of whoever runs the tests."""
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda *_: str(tmp_path / "cache"))
    return tmp_path / "cache" / "distilled"


def prepared(config, *overrides):
    return build(config(*SMALL, *QUICK, *overrides))


# -- the parts


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (1, 28, 28), (2, 9, 7)])
def test_the_distillers_output_has_the_inputs_shape_and_range(shape):
    low, high = torch.full((shape[0], 1, 1), -0.4), torch.full((shape[0], 1, 1), 2.8)
    distiller = Distiller(shape, low, high, 5)
    for parameter in distiller.parameters():
        parameter.data *= 50  # whatever the weights are
    out = distiller(100 * torch.randn(3, *shape))
    assert out.shape == (3, *shape)
    assert out.min() >= -0.4 - 1e-6 and out.max() <= 2.8 + 1e-6


def test_distances_by_hand():
    """Four pixels in [-1, 1]: x_g lies in [-2, 2], so replacing moves by up to 4 a pixel, emptying by 2."""
    replaced, emptied = distances("features", *HALF, (1, 2, 2), None)
    assert (replaced.l1, replaced.l2, emptied.l1, emptied.l2) == (16, 8, 8, 4)
    replaced, emptied = distances("raw", *HALF, (1, 2, 2), None)
    assert (replaced.l1, replaced.l2, emptied.l2) == (8, 4, 2)
    assert (replaced.most, emptied.most) == (2, 1)
    replaced, emptied = distances("features", *HALF, (1, 2, 2), 0.5)
    assert (replaced.l2, emptied.l2, emptied.l1) == (1.0, 0.5, 1.0)
    assert (replaced.most, emptied.most) == (1.0, 0.5)
    assert distances("noise", *HALF, (1, 2, 2), None)[0] == Distance(0, 0, 0)
    assert within(torch.ones(4), 100.0) == Distance(4, 2, 1)  # a clip beyond the box bounds nothing
    assert Distance(1.0, 3.0, 0.5).times(4) == Distance(4.0, 6.0, 0.5)


def test_epsilon_of_gaussian_noise_is_the_exact_one():
    """delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu) for mu = distance / std (Balle and Wang)."""
    found = epsilon(Noise("gaussian", 0.5), Distance(9.0, 1.0, 1.0), 1e-3)
    mu = 2.0
    delta = norm.cdf(mu / 2 - found / mu) - math.exp(found) * norm.cdf(-mu / 2 - found / mu)
    assert delta == pytest.approx(1e-3, rel=1e-3)
    # The notes' figure: an image of 3,072 pixels in [0, 1], deviation 0.15, gives mu 739 and about 2.7e5.
    image = distances("features", torch.zeros(3, 1, 1), torch.ones(3, 1, 1), (3, 32, 32), None)[0]
    assert image.l2 / 0.15 == pytest.approx(739, abs=0.5)
    assert epsilon(Noise("gaussian", 0.15), image, 1e-3) == pytest.approx(2.75e5, rel=0.01)


def test_epsilon_of_other_noise():
    assert epsilon(Noise("laplace", 2.0), Distance(10.0, 4.0, 1.0), 1e-3) == pytest.approx(
        10 * math.sqrt(2) / 2
    )
    assert epsilon(Noise("gaussian", 0.0), Distance(1, 1, 1), 1e-3) == math.inf
    assert epsilon(Noise("gaussian", 1.0), Distance(0, 0, 0), 1e-3) == 0
    rdp = accountants.create("rdp")
    assert (
        rdp.epsilon((), 0, 1e-3, charge(Noise("laplace", math.sqrt(2)), Distance(3.0, 1.0, 1.0)))
        <= 3.0 + 1e-9
    )
    assert charge(Noise("gaussian", 3.0), Distance(9.0, 1.5, 1.0)) == (SampledGaussian(1.0, 2.0),)
    with pytest.raises(UserError, match="accountant=rdp"):
        accountants.create("prv").epsilon((), 0, 1e-3, (SampledGaussian(1.0, 1e-3),))


@pytest.mark.parametrize(("kind", "end"), [("gaussian", 8.07), ("laplace", 36.74 / math.sqrt(2))])
def test_noise_that_does_not_reach_over_a_pixel_proves_nothing(kind, end):
    """A thousand values at delta 1e-2: a chance of 1e-5 that one is beyond the end counts, 1e-8 each."""
    quantile = norm.isf(1e-8) if kind == "gaussian" else laplace.isf(1e-8) / math.sqrt(2)
    for excess, told in ((1.01, True), (0.99, False)):
        move = 0.2 * (end - quantile / excess)
        assert bool(flaw(Noise(kind, 0.2), Distance(9.0, 9.0, move), 1000, 1e-2)) == told
    assert not flaw(Noise(kind, 0.2), Distance(0.0, 0.0, 0.0), 1000, 1e-2)


@pytest.mark.parametrize("dp", ["ldp", "cdp"])
def test_at_the_papers_noise_nothing_is_provable_of_floats(config, dp):
    """A pixel moves by 13 deviations if its row is emptied; with enough noise the same run is proved."""
    reports = [
        build(config(*SMALL, *QUICK, f"dp={dp}", *more), prepare=False).trainer.ledger.report(
            noise_seeded=True
        )
        for more in ((), ("stage.noise_std=20",))
    ]
    assert "ends at 8.07 deviations, and a pixel can move by 13.3" in reports[0]["flaws"][0]
    assert [r["no_guarantee"] for r in reports] == [True, False]
    assert reports[0]["epsilon_if_mended_max"] > reports[1]["epsilon_provable_max"] > 0


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_noise_has_the_asked_deviation(kind):
    """40,000 draws: the variance is off by at most 5 of its deviations, sqrt(kurtosis - 1) / 200 of it."""
    drawn = Noise(kind, 0.3).draw(torch.zeros(40, 1000), SOURCE, torch.arange(40)).double()
    kurtosis = {"gaussian": 3, "laplace": 6}[kind]
    assert abs(float(drawn.var()) / 0.09 - 1) < 5 * math.sqrt(kurtosis - 1) / 200
    assert abs(float(drawn.mean())) < 5 * 0.3 / 200
    assert float((drawn**4).mean() / drawn.var() ** 2) == pytest.approx(kurtosis, rel=0.15)


def test_laplace_noise_follows_its_law_to_its_end():
    """Kolmogorov and Smirnov's distance of 100,000 draws; the smallest and largest u by hand."""
    drawn = laplaces(SOURCE, torch.arange(100), torch.zeros(100, 1000, dtype=torch.float64))
    assert kstest(drawn.flatten().numpy() * math.sqrt(2), "laplace").pvalue > 1e-3
    again = laplaces(SOURCE, [7, 3], torch.zeros(2, 1000, dtype=torch.float64))
    assert torch.equal(again, drawn[[7, 3]])

    class Ends(Source):
        def uniforms(self, rows, width, step=0):
            return torch.tensor([[0.0, 0.5, 0.5 - 2.0**-53, 1 - 2.0**-53]], dtype=torch.float64)

    ends = laplaces(Ends(bytes(32)), [0], torch.zeros(1, 4, dtype=torch.float64))[0].tolist()
    least = 2.0**-53 / math.sqrt(2)
    assert pytest.approx([END, -END, least, -least]) == ends
    assert pytest.approx(53 * math.log(2) / math.sqrt(2)) == END


def test_clipping_bounds_rows_and_leaves_short_ones():
    x = torch.stack([torch.full((1, 2, 2), 3.0), torch.full((1, 2, 2), 0.1)])
    out = clipped(x, 1.0)
    assert out[0].norm() == pytest.approx(1.0) and torch.equal(out[1], x[1])


def test_a_share_is_balanced_and_repeats_only_what_runs_out():
    labels = torch.tensor([0] * 50 + [1] * 3 + [3] * 50)  # nobody holds class 2
    draw = Shared(labels, 4).draw(31, torch.Generator().manual_seed(0))
    counts = torch.bincount(labels[draw], minlength=4)
    assert len(draw) == 31 and counts[2] == 0 and set(counts[[0, 1, 3]].tolist()) == {10, 11}
    for c in (0, 3):
        own = draw[labels[draw] == c]
        assert len(own.unique()) == len(own)
    assert len(draw[labels[draw] == 1].unique()) == 3
    assert len(Shared(labels, 4).draw(1, torch.Generator().manual_seed(0))) == 1


def test_psnr_and_ssim_by_hand():
    image = np.random.default_rng(0).random((1, 12, 12))
    assert psnr(image, image, 1.0) == math.inf and ssim(image, image, 1.0) == pytest.approx(1)
    assert psnr(image, image + 0.1, 1.0) == pytest.approx(20)
    # Of constant images only the means count: (2 ab + c1) / (a^2 + b^2 + c1).
    flat = np.ones((1, 12, 12))
    assert ssim(0.5 * flat, 0.8 * flat, 1.0) == pytest.approx((0.8 + 1e-4) / (0.25 + 0.64 + 1e-4))


def constant_distiller():
    """It says 0.2 whatever it sees, so x_g + 0.2 is the image."""
    distiller = Distiller((1, 8, 8), *HALF, 4)
    for parameter in distiller.parameters():
        parameter.data.zero_()
    distiller.decoder[-1].bias.data.fill_(math.log(0.6 / 0.4))
    return distiller


def test_inversion_gets_the_image_back_where_the_distiller_keeps_nothing():
    distiller = constant_distiller()
    x = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 1.6 - 0.8
    found = invert(x - distiller(x), distiller, steps=100, tv=0.0)
    torch.testing.assert_close(found, x, atol=0.02, rtol=0)


def test_inversion_knows_the_clip():
    """Features scaled to a fifth of their norm: the attack explains them, and is nearer to the image."""
    distiller = constant_distiller()
    x = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 1.6 - 0.8
    features = x - distiller(x).detach()
    clip = 0.2 * float(features.flatten(1).norm(dim=1).min())
    shared = clipped(features, clip)
    knowing = invert(shared, distiller, clip, steps=100, tv=0.0)
    torch.testing.assert_close(clipped(knowing - distiller(knowing), clip), shared, atol=1e-3, rtol=0)
    ignoring = invert(shared, distiller, steps=100, tv=0.0)
    assert (knowing - x).square().mean() < 0.9 * (ignoring - x).square().mean()


def a_step(**options):
    """Of a distiller that says 0.2 and a linear classifier of three classes; and all costs it descends on."""
    classifier = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    nn.init.zeros_(classifier[1].weight).data[0] = 1 / 64  # the first logit is the image's mean
    nn.init.zeros_(classifier[1].bias)
    step, seen = Step(a_recipe(**options), constant_distiller(), classifier, SOURCE), []
    descend = step._descend

    def spied(cost, *optimisers):
        networks = (step.distiller, step.classifier)
        before = [[p.detach().clone() for p in n.parameters()] for n in networks]
        descend(cost, *optimisers)
        moved = [
            any(not torch.equal(a, b) for a, b in zip(old, n.parameters(), strict=True))
            for old, n in zip(before, networks, strict=True)
        ]
        seen.append((float(cost.detach()), *moved))

    step._descend = spied
    return step, seen


def test_the_cost_of_the_generalisation_view_by_hand():
    """x is 0.5 and x_g 0.3 everywhere, so the first class costs log(1 + 2 exp(-0.5)) and -0.3."""
    step, seen = a_step()
    step.distiller.mean.bias.data.fill_(0.5)  # KL of four latents at 0.5: 4 * 0.5^2 / 2
    step(torch.arange(2), torch.full((2, 1, 8, 8), 0.5), torch.tensor([0, 0]))
    raw, features = (math.log(1 + 2 * math.exp(-m)) for m in (0.5, 0.3))
    by_hand = 5 * 0.3**2 + 0.7 * 0.5 / 64 + 2 * features + 0.4 * raw + 3 * 0.2**2
    assert seen == [(pytest.approx(by_hand, rel=1e-5), True, True)]


@pytest.mark.parametrize("mixup", [0.0, 1.0])
def test_in_the_optimisation_view_either_network_moves_alone(mixup):
    step, seen = a_step(view="optimisation", mixup=mixup, noise=Noise("gaussian", 0.1))
    x = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for _ in range(2):
        step(torch.arange(2), x, torch.tensor([0, 1]))
    assert [moved for _, *moved in seen] == 2 * [[True, False], [False, True]]


# -- the ledger


def test_the_ledger_says_what_sharing_costs_and_that_nothing_is_proved(config):
    """Under a variant that cannot protect the distillation; 64 pixels in [-1, 1], so x_g moves by up to 4."""
    ledger = build(config(*SMALL, *QUICK, "dp=duchi"), prepare=False).trainer.ledger
    before = build(config(*SMALL, "dp=duchi"), prepare=False).trainer.ledger
    report = ledger.report(noise_seeded=True)
    (sent,) = report["releases"]
    assert sent["sensitivity_l2"] == pytest.approx(4 * 8)
    assert sent["range_of_inputs"] == "[-1, 1]" and sent["noise_std"] == 0.15
    assert sent["epsilon_alone"] == pytest.approx(
        epsilon(Noise("gaussian", 0.15), Distance(0, 32.0, 4.0), 1e-3)
    )
    assert report["no_guarantee"] and any("without any privacy" in flaw for flaw in report["flaws"])
    assert any("labels" in line for line in report["not_covered"])
    public = "labels and numbers of samples being public: what is replaced keeps its label"
    assert report["neighbouring_relation"] == f"{before.guarantee.relation}, {public}"
    assert sent["neighbouring_relation"] == f"replace one sample, {public}"
    assert ledger.eligible().all()  # the budget is the training's
    counts = np.full(4, 3)
    assert (ledger.claimed(counts) > before.claimed(counts)).all()
    assert (ledger.if_mended(counts) > before.provable(counts)).all()
    assert np.isinf(ledger.provable(np.zeros(4, dtype=int))).all()  # before any round


@pytest.mark.parametrize(("dp", "one"), [("ldp", "one sample of one client"), ("cdp", "one client with all")])
@pytest.mark.parametrize("share", ["features", "raw", "noise"])
def test_what_is_proved_is_proved_of_neighbours_with_the_same_labels(config, dp, one, share):
    """Labels are sent as they are with every kind of share, so no finite epsilon covers them."""
    options = (f"dp={dp}", f"stage.share={share}", "stage.noise_std=40")
    report = build(config(*SMALL, *QUICK, *options), prepare=False).trainer.ledger.report(noise_seeded=True)
    assert not report["no_guarantee"]
    relations = [report["neighbouring_relation"], *(r["neighbouring_relation"] for r in report["releases"])]
    assert one in relations[0] and all("labels and numbers of samples being public" in r for r in relations)
    assert any("labels" in line and "protected by nothing" in line for line in report["not_covered"])


def test_without_distilling_the_composed_total_is_proved(config):
    raw = build(config(*SMALL, *QUICK, "dp=ldp", "stage.share=raw", "stage.noise_std=40"), prepare=False)
    ledger, counts = raw.trainer.ledger, np.full(4, 3)
    assert ledger.report(noise_seeded=True)["flaws"] == []
    assert np.isfinite(ledger.provable(counts)).all()
    plain = build(config(*SMALL, "dp=ldp"), prepare=False).trainer.ledger
    assert (ledger.provable(counts) > plain.provable(counts)).all()
    nothing = build(config(*SMALL, *QUICK, "dp=ldp", "stage.share=noise"), prepare=False).trainer.ledger
    assert nothing.provable(counts).tolist() == plain.provable(counts).tolist()


def test_protecting_a_client_counts_all_its_rows_jointly(config):
    ledger = build(config(*SMALL, *QUICK, "dp=cdp", "stage.clip=2"), prepare=False).trainer.ledger
    trainer = build(config(*SMALL, "dp=cdp"), prepare=False).trainer
    (event,) = ledger.releases[0].charges[0]
    rows = trainer.setting.sizes.max()
    assert event.noise_multiplier == pytest.approx(0.15 / (2 * math.sqrt(rows)))


@pytest.mark.parametrize("dp", ["pldp_gaussian", "pldp_sign", "duchi", "ldp", "cdp"])
def test_the_charge_follows_the_neighbours_of_the_training(config, dp):
    """Raw pixels in [-1, 1]: a replaced row moves by 2 a pixel, an emptied one by 1; 64 pixels a row."""
    options = (f"dp={dp}", "stage.share=raw", "stage.noise_std=40", "epsilon=1")
    trainer = build(config(*SMALL, *QUICK, *options), prepare=False).trainer
    rows = 1 if dp == "ldp" else int(trainer.setting.sizes.max())
    replaced = dp not in ("ldp", "cdp")
    moved = (16 if replaced else 8) * math.sqrt(rows)
    (release,) = trainer.ledger.releases
    assert release.charge(0) == (SampledGaussian(1.0, pytest.approx(40 / moved)),)
    told = release.details["composed_with_training_as"]
    assert told.startswith(f"{rows} rows {'replaced' if replaced else 'emptied'}")


def test_a_stated_epsilon_and_a_release_share_delta():
    rdp, once = accountants.create("rdp"), (SampledGaussian(1.0, 2.0),)
    for charge_, alone in (((Direct(3.0, 0.5),), 6.0), ((Reports(0.1, 5),), 2.0)):
        assert rdp.epsilon(charge_, 4, 1e-3) == alone
        assert rdp.epsilon(charge_, 4, 1e-3, once) == pytest.approx(alone + rdp.epsilon((), 0, 5e-4, once))


# -- the whole stage


@pytest.mark.parametrize("view", ["optimisation", "generalisation"])
def test_distilling_keeps_most_of_a_sample_out_of_its_features(config, view):
    """x_g carries less than x: its mean square falls below half of the samples' own."""
    run = prepared(config, f"stage.view={view}", "stage.rounds=4", "stage.data_fraction=1", "stage.lr=0.01")
    stage, data = run.trainer.stage, run.trainer.train
    x, _ = data.take(torch.arange(len(data.y)))
    assert float((x - stage.distiller(x)).square().mean()) < 0.5 * float(x.square().mean())
    losses = stage.summary()["stage"]["feature_loss"]
    assert losses[-1] < losses[0]
    shared, labels = data.shared
    order = data.all_owned
    assert torch.equal(labels, data.y[order])
    noise = shared - (x - stage.distiller(x))[order]
    assert float(noise.std()) == pytest.approx(0.15, rel=0.02)


def test_one_distillation_serves_optimisers_and_seeds_and_noise_levels(config, empty_cache):
    first = prepared(config, "partition_seed=5", "stage.distil_noise_std=0.1")
    (file,) = empty_cache.iterdir()
    content = file.read_bytes()
    other = prepared(
        config,
        "partition_seed=5",
        "stage.distil_noise_std=0.1",
        "seed=3",
        "algorithm=scaffold",
        "stage.noise_std=0.7",
    )
    assert other.trainer.stage.summary()["stage"]["distillation_is"] == "from the cache"
    a, b = (r.trainer.stage.distiller.state_dict() for r in (first, other))
    assert all(torch.equal(a[k], b[k]) for k in a)
    prepared(config, "partition_seed=6", "stage.distil_noise_std=0.1")
    assert len(list(empty_cache.iterdir())) == 2
    file.write_bytes(content[:-1] + b"x")
    with pytest.warns(UserWarning, match="damaged"):
        again = prepared(config, "partition_seed=5", "stage.distil_noise_std=0.1")
    fresh = again.trainer.stage.distiller.state_dict()
    assert all(torch.equal(a[k], fresh[k]) for k in a) and cache.load(file.stem) is not None


def test_bare_features_are_of_the_same_distillation(config, empty_cache):
    keys = {
        prepared(config, f"stage.share={share}").trainer.stage.summary()["stage"]["distillation"]
        for share in ("features", "bare")
    }
    assert len(keys) == 1 and len(list(empty_cache.iterdir())) == 1


def test_threads_do_not_change_a_distillation(config):
    states = [
        prepared(config, f"threads={n}", "stage.cache=false").trainer.stage.distiller.state_dict()
        for n in (1, 3)
    ]
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])


@pytest.mark.parametrize(
    "algorithm", ["fedavg", "fedprox", "scaffold", "scaffold algorithm.option=I", "fednova"]
)
def test_it_plugs_into_every_optimiser(config, algorithm):
    options = (*f"algorithm={algorithm}".split(), "momentum=0.9", "partition=dirichlet", "stage.share=raw")
    run = prepared(config, *options, "lr=0.02")
    for _ in range(2):  # variates are zero in the first
        start = run.trainer.theta.clone()
        result = run.trainer.round()
        assert bool(run.trainer.theta.isfinite().all()) and not torch.equal(start, run.trainer.theta)
        size = run.trainer.setting.sizes[result.clients].sum()
        assert result.downlink == len(result.clients) * 4 * start.numel() + size * 64 * 4


@pytest.mark.parametrize("dp", ["none", "ldp"])
def test_both_engines_agree_on_a_round_with_shared_samples(config, dp):
    thetas = []
    for engine in ("fast", "loop"):
        options = (f"dp={dp}", f"engine={engine}", "stage.share=raw", "dtype=float64")
        run = build(config(*SMALL, *QUICK, *options))
        run.trainer.round()
        thetas.append(run.trainer.theta)
    torch.testing.assert_close(*thetas)


def test_a_plan_holds_every_own_sample_and_a_share_of_the_same_size(config):
    trainer = prepared(config, "stage.share=noise", "partition=dirichlet").trainer
    captured = []
    mix = trainer.stage.mix
    trainer.stage.mix = lambda *a: captured.append(mix(*a)) or captured[-1]
    trainer.round()
    plan, data = captured[0]
    for client, size in enumerate(trainer.setting.sizes):
        used = [plan.index[client, t, : plan.taken[client, t]] for t in range(plan.index.shape[1])]
        numbers = data.owned[client][torch.cat(used)]
        own, shared = numbers[numbers < len(data.y)], numbers[numbers >= len(data.y)]
        assert sorted(own.tolist()) == sorted(trainer.train.owned[client, :size].tolist())
        counts = torch.bincount(data.shared[1][shared - len(data.y)], minlength=10)
        assert len(shared) == size and counts.max() - counts.min() <= 1


def test_the_ablations_share_what_they_say(config):
    trainer = prepared(config, "stage.share=bare").trainer
    data, stage = trainer.train, trainer.stage
    order = data.all_owned
    x, _ = data.take(order)
    torch.testing.assert_close(data.shared[0], x - stage.distiller(x))
    assert trainer.ledger.releases[0].epsilon == math.inf
    alone = prepared(config, "stage.share=noise").trainer
    assert alone.stage.distiller is None and alone.ledger.releases[0].epsilon == 0
    values = alone.train.shared[0].double()
    assert float(values.std()) == pytest.approx(0.15, rel=0.02) and abs(float(values.mean())) < 0.003


# -- bad input


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("stage.noise_std=0",), r"stage\.noise_std=0: must be positive; stage\.share=bare"),
        (("stage.noise_variance=0.1",), "set the other to null"),
        (("stage.noise_std=null",), "set the other to null"),
        (("stage.clip=0",), r"stage\.clip=0: must be positive"),
        (("stage.share=bare", "stage.noise_std=0"), r"noise_std=0: must be positive; with stage\.share=bare"),
        (("stage.weight_raw=-1",), r"stage\.weight_raw=-1: must be finite and not negative"),
        (("stage.distil_noise_std=-1",), r"stage\.distil_noise_std=-1: must be finite and not negative"),
        (("stage.weight_raw=0", "stage.weight_features=0"), "both 0"),
        (("stage.data_fraction=1.5",), "at most 1"),
        (("stage.lr=1e9", "stage.rounds=2"), "diverged"),
    ],
)
def test_bad_options_are_one_line(config, options, words):
    with pytest.raises(UserError, match=words):
        prepared(config, *options)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_what_is_not_finite_is_refused_without_a_config_too(value):
    for name in ("noise_std", "clip", "lr", "weight_kl", "distil_noise_std"):
        with pytest.raises(UserError, match=rf"stage\.{name}={value}: must be (a )?finite"):
            FedPD(**{name: value})
    positive("group", option=None, other=1)
    with pytest.raises(UserError, match=r"^option=0: must be more$"):
        positive("", "must be more", option=0)


@pytest.mark.parametrize("which", [0, 1])
def test_a_network_that_diverged_is_not_kept(config, monkeypatch, empty_cache, which):
    train = distil._train

    def broken(*arguments):
        trained = train(*arguments)
        next(iter(trained[which].values())).fill_(math.nan)
        return trained

    monkeypatch.setattr(distil, "_train", broken)
    with pytest.raises(UserError, match="diverged"):
        prepared(config)
    assert not empty_cache.exists()


def test_a_variance_is_not_a_deviation(config):
    run = build(config(*SMALL, *QUICK, "stage.noise_std=null", "stage.noise_variance=0.15"), prepare=False)
    assert run.trainer.stage.noise.std == pytest.approx(math.sqrt(0.15))


def test_a_class_nobody_holds_and_a_client_with_one_sample(config, monkeypatch):
    from fedpriv.partitions.iid import IID

    def owners(self, y, *, clients, classes, rng):
        who = rng.integers(1, clients, len(y))
        who[y == 7] = -1
        who[0] = 0  # client 0 has one sample
        return who

    monkeypatch.setattr(IID, "owners", owners)
    run = prepared(config, "partition=iid", "model.norm=batch")
    assert any("no client holds class 7" in w for w in run.warnings)
    assert run.trainer.setting.sizes[0] == 1
    run.trainer.round()
    assert bool(run.trainer.theta.isfinite().all())


def test_only_images_have_a_public_range(config, tmp_path):
    path = tmp_path / "features"
    path.mkdir()
    x, y = np.ones((80, 5)), np.arange(80) % 10
    np.savez(path / "f.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    options = ("dataset=features", "dataset.path=f.npz", "model=linear", f"data_dir={tmp_path}", "clients=2")
    with pytest.raises(UserError, match="use a dataset of images"):
        build(config(*options, *QUICK), prepare=False)


# -- from the command line


def test_a_run_continues_and_records_the_stage_and_the_target(fedpriv, one_run):
    command = ("run", *SMALL, *QUICK, "stage.share=raw", "partition=iid", "target=0.01")
    assert fedpriv(*command).code == 0
    folder = one_run()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["stage"]["shared_samples"] == 1437 and summary["rounds_to_target"] == 1
    assert "epsilon_alone" in json.loads((folder / "privacy.json").read_text())["releases"][0]
    shown = fedpriv(*command[:-1], "target=1.0")  # asked of the finished run, not run again
    assert shown.code == 0 and "already done" in shown.out
    assert json.loads((folder / "summary.json").read_text())["rounds_to_target"] is None


def test_privacy_is_forecast_without_distilling(fedpriv, empty_cache):
    done = fedpriv("privacy", *SMALL, *QUICK, "dp=duchi")
    assert done.code == 0 and "sent once" in done.out and "nothing is provable" in done.out
    done = fedpriv("privacy", *SMALL, *QUICK, "dp=ldp", "stage.noise_std=20")
    assert done.code == 0 and done.out.count("sent once") == 2 and "nothing is provable" not in done.out
    assert not empty_cache.exists()


def test_distilled_writes_views_and_an_inversion(fedpriv, tmp_path):
    done = fedpriv("distilled", *SMALL, *QUICK, "images=3", "epochs=1", "steps=5", "out=looked")
    assert done.code == 0, done.err
    views = (tmp_path / "looked" / "views.csv").read_text().splitlines()
    assert views[0] == "classifier,accuracy_on_x,accuracy_on_x_s,accuracy_on_x_g" and len(views) == 4
    assert len((tmp_path / "looked" / "inversion.csv").read_text().splitlines()) == 1 + 2 * 3
    assert (tmp_path / "looked" / "inversion.png").stat().st_size > 1000
    assert fedpriv("distilled", *SMALL, "stage=none").code == 2
    assert "images=0" in fedpriv("distilled", "images=0").err


def test_too_many_images_are_refused_before_distilling(fedpriv, empty_cache):
    done = fedpriv("distilled", *SMALL, *QUICK, "images=100000")
    assert done.code == 2 and "training samples; ask for fewer" in done.err
    assert not empty_cache.exists()
