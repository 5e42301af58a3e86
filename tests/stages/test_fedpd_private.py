"""FedPD under ldp and cdp: the distillation's own updates are protected and paid for."""

import copy
import math

import numpy as np
import pytest
import torch

from fedpriv.building import build
from fedpriv.errors import UserError
from fedpriv.models.resnet import resnet18
from fedpriv.privacy import accountants
from fedpriv.privacy.events import SampledGaussian
from fedpriv.randomness.source import Source
from fedpriv.stages.fedpd.losses import Step
from fedpriv.stages.fedpd.private_step import PrivateStep
from fedpriv.stages.fedpd.protection import OfClients, OfSamples, Open
from fedpriv.stages.fedpd.vae import Distiller
from tests.conftest import SMALL
from tests.helpers.fedpd import distilling, networks, recipe

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")
SOURCE = Source(bytes(32))
QUICK = ("stage=fedpd", "stage.latent=4", "stage.rounds=2", "stage.data_fraction=0.2", "stage.cache=false")


def a_batch(count):
    torch.manual_seed(1)
    return torch.rand(count, 1, 8, 8, dtype=torch.float64) * 2 - 1, torch.arange(count) % 3


def private_step(options, *, clip, std):
    return PrivateStep(options, *networks(), SOURCE, clip=clip, std=std)


def gradients(step, x, y):
    """What the optimisers of the two networks are given for a batch, one vector each."""
    given = []
    for optimiser in step.optimisers:
        optimiser.step = lambda optimiser=optimiser: given.append(
            torch.cat([p.grad.flatten() for g in optimiser.param_groups for p in g["params"]]).clone()
        )
    step(torch.arange(len(x)), x, y)
    assert len(given) == 2
    return given


@pytest.mark.parametrize("view", ["optimisation", "generalisation"])
def test_without_clip_and_noise_it_is_the_plain_step(view):
    """The sum over three samples by the expected batch of four; the plain step has the mean of three."""
    x, y = a_batch(3)
    plain = gradients(Step(recipe(view=view), *networks(), SOURCE), x, y)
    private = gradients(private_step(recipe(view=view), clip=1e9, std=0.0), x, y)
    for a, b in zip(plain, private, strict=True):
        torch.testing.assert_close(3 * a, 4 * b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("view", ["optimisation", "generalisation"])
def test_one_sample_weighs_exactly_the_clip_over_both_networks(view):
    g, a = gradients(private_step(recipe(view=view), clip=1e-3, std=0.0), *a_batch(1))
    assert 4 * torch.cat([g, a]).norm() == pytest.approx(1e-3)
    if view == "optimisation":  # two answers, half of the squared clip each
        assert 4 * g.norm() == pytest.approx(1e-3 / math.sqrt(2)) == 4 * a.norm()


def test_samples_are_clipped_one_by_one():
    """Of two equal pairs the sums are equal whatever a third, a thousand times larger sample would add."""
    x, y = a_batch(3)
    x[2] *= 1000
    g, a = gradients(private_step(recipe(), clip=1e-3, std=0.0), x, y)
    assert 4 * torch.cat([g, a]).norm() <= 3e-3 * (1 + 1e-9)
    x[2, 0, 0, 0] = math.inf  # nothing bounds it: it is left out, and the others are as without it
    left = gradients(private_step(recipe(), clip=1e-3, std=0.0), x, y)
    alone = gradients(private_step(recipe(), clip=1e-3, std=0.0), x[:2], y[:2])
    for a, b in zip(left, alone, strict=True):
        torch.testing.assert_close(a, b)


def test_an_empty_batch_still_gets_noise():
    """Of deviation std / batch on every weight: 5 of the variance's deviations, sqrt(2 / n), are allowed."""
    x, y = a_batch(0)
    drawn = 4 * torch.cat(gradients(private_step(recipe(), clip=1.0, std=0.3), x, y))
    assert abs(float(drawn.var()) / 0.09 - 1) < 5 * math.sqrt(2 / len(drawn))


def test_a_resnet_can_be_the_classifier():
    """Its activations are in place, which gradients of single samples do not allow."""
    distiller = Distiller((3, 8, 8), torch.full((3, 1, 1), -1.0), torch.ones(3, 1, 1), 4)
    classifier = resnet18((3, 8, 8), 3)
    step = PrivateStep(recipe(), distiller, classifier, SOURCE, clip=1e-3, std=0.0)
    g, a = gradients(step, torch.rand(2, 3, 8, 8), torch.tensor([0, 2]))
    assert 0 < 4 * torch.cat([g, a]).norm() <= 2e-3 * (1 + 1e-5)


def test_noise_is_the_same_with_and_without_samples():
    x, y = a_batch(2)
    quiet = torch.cat(gradients(private_step(recipe(), clip=0.5, std=0.0), x, y))
    noisy = torch.cat(gradients(private_step(recipe(), clip=0.5, std=0.3), x, y))
    drawn = 4 * (noisy - quiet)
    assert abs(float(drawn.var()) / 0.09 - 1) < 5 * math.sqrt(2 / len(drawn))


def test_poisson_batches_have_the_rate_the_charge_names():
    """Client 1 has 40 samples in batches of 4: rate 0.1, ten steps an epoch; 3 rounds of 2 epochs."""
    own = distilling(OfSamples, recipe(local_epochs=2), (8, 40))
    z, numbers = own.ledger.guarantee.noise, own.setting.layout.total
    assert own.charges() == (
        (SampledGaussian(1 / 2, z[0], 12, numbers),),
        (SampledGaussian(1 / 10, z[1], 60, numbers),),
    )
    drawn = [list(own.batches(torch.arange(40), number, 1)) for number in range(100)]
    assert {len(batches) for batches in drawn} == {20}
    total = sum(len(b) for batches in drawn for b in batches)  # of 80,000 draws
    assert abs(total - 8000) < 5 * math.sqrt(80_000 * 0.1 * 0.9)
    assert any(len(b) == 0 for batches in drawn for b in batches)
    assert all(len(b.unique()) == len(b) for batches in drawn for b in batches)


def test_a_client_pays_for_the_rounds_it_took_part_in():
    """Six clients, three of them in each of five rounds: nobody more often than the three it can pay for."""
    own = distilling(OfSamples, recipe(sample_rate=0.5, rounds=5), (4,) * 6)
    counts = np.bincount(np.concatenate(own.participants), minlength=6)
    z, numbers = own.ledger.guarantee.noise, own.setting.layout.total
    assert counts.sum() == 15 and counts.max() <= 3
    assert own.charges() == tuple(
        (SampledGaussian(1.0, z[k], int(c), numbers),) if c else () for k, c in enumerate(counts)
    )
    rdp = accountants.create("rdp")
    spent = [rdp.epsilon((), 0, 1e-3, charge) for charge in own.charges()]
    assert all(7.9 < e <= 8 if c == 3 else e < 8 for e, c in zip(spent, counts, strict=True))


def test_the_server_clips_whole_updates_and_adds_noise_once():
    """One client moves every weight by 1, one by a hair: the first is cut to the clip, the second kept."""
    both = networks()
    count = sum(p.numel() for n in both for p in n.parameters())
    start = torch.cat([p.detach().flatten() for n in both for p in n.parameters()])

    def moved(by):
        states = [copy.deepcopy(n.state_dict()) for n in both]
        for network, state in zip(both, states, strict=True):
            for name, _ in network.named_parameters():
                state[name] += by
        return tuple(states)

    def after(noise, trained, rate=0.5):
        own = copy.deepcopy(both)
        server = distilling(OfClients, recipe(sample_rate=rate, rounds=99), (5,) * 4, clip=2.0, both=both)
        number = next(n for n, who in enumerate(server.participants) if len(who) == len(trained))
        server.mechanism.z = noise
        server.merge(own, trained, number)
        assert torch.equal(own[0].low, both[0].low)  # what is no weight is neither sent nor noised
        return torch.cat([p.detach().flatten() for n in own for p in n.parameters()]) - start

    hair = 1e-6
    expected = (2.0 / math.sqrt(count) + hair) / 2  # two of four clients are expected
    torch.testing.assert_close(after(0.0, [moved(1.0), moved(hair)]), torch.full_like(start, expected))
    drawn = after(3.0, [])  # nobody came: noise of 3 * 2 / 2
    assert abs(float(drawn.var()) / 9 - 1) < 5 * math.sqrt(2 / count)


# -- whole runs


@pytest.mark.parametrize("dp", ["ldp", "cdp"])
def test_distilling_sharing_and_training_compose(config, dp):
    options = (*SMALL, *QUICK, f"dp={dp}", "stage.distil_epsilon=3", "stage.noise_std=40")
    trainer = build(config(*options)).trainer
    plain = build(config(*SMALL, f"dp={dp}")).trainer
    report = trainer.ledger.report(noise_seeded=True)
    shared, networks_ = report["releases"]
    assert report["flaws"] == [] and not report["no_guarantee"] and report["claim_holds"]
    assert 2.98 < networks_["epsilon_alone"] <= 3
    rdp, counts = accountants.create("rdp"), np.full(4, 3)
    once = tuple(e for r in trainer.ledger.releases for e in r.charge(2))
    assert len(once) == 2
    kind = plain.ledger.guarantee.kinds[2]
    total = rdp.epsilon(plain.ledger.guarantee.claimed[kind], 3, 1e-3, once)
    assert trainer.ledger.provable(counts)[2] == pytest.approx(total) == trainer.ledger.claimed(counts)[2]
    assert total > max(plain.ledger.claimed(counts)[2], shared["epsilon_alone"] / 4, 3)
    trainer.round()
    assert bool(trainer.theta.isfinite().all())


def test_budgets_of_their_own_hold_for_the_distillation_too(config):
    options = ("dp=ldp", "budget=list", "budget.epsilons=[1,2,4,8]", "stage.sample_rate=0.5")
    trainer = build(config(*SMALL, *QUICK, *options), prepare=False).trainer
    rdp = accountants.create("rdp")
    spent = [rdp.epsilon((), 0, 1e-3, c) for c in trainer.stage.protection.charges()]
    counts = trainer.stage.protection.ledger.participations
    assert counts.tolist() == [1, 1, 1, 1]  # two rounds of two: each is drawn once, as planned
    for budget, epsilon in zip((1, 2, 4, 8), spent, strict=True):
        assert 0.99 * budget < epsilon <= budget


@pytest.mark.parametrize("dp", ["none", "duchi", "pldp_gaussian"])
def test_other_variants_leave_the_distillation_open(config, dp):
    trainer = build(config(*SMALL, *QUICK, f"dp={dp}"), prepare=False).trainer
    assert type(trainer.stage.protection) is Open and len(trainer.ledger.releases) == 1
    assert any("without any privacy" in flaw for flaw in trainer.ledger.guarantee.flaws)


def test_its_noise_follows_the_runs_key_and_is_kept_under_it(config, tmp_path, monkeypatch):
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda *_: str(tmp_path))
    options = (*SMALL, *QUICK, "dp=ldp", "stage.cache=true", "noise_seed=os")
    first, second, again = (build(config(*options), lambda k=k: k) for k in (b"a" * 32, b"b" * 32, b"a" * 32))
    one, two, three = (r.trainer.stage.distiller.mean.weight for r in (first, second, again))
    assert torch.equal(one, three) and not torch.equal(one, two)
    assert again.trainer.stage.summary()["stage"]["distillation_is"] == "from the cache"
    assert len(list((tmp_path / "distilled").iterdir())) == 2


def test_what_mixes_samples_is_refused_or_left_out(config):
    with pytest.raises(UserError, match=r"stage\.entropy=variance: .* use stage\.entropy=mse"):
        build(config(*SMALL, *QUICK, "dp=ldp", "stage.entropy=variance"), prepare=False)
    with pytest.raises(UserError, match=r"model\.norm=batch: the auxiliary classifier's"):
        build(config(*SMALL, *QUICK, "dp=cdp", "model.norm=batch"), prepare=False)
    for dp, mixes in (("ldp", False), ("cdp", True)):
        run = build(config(*SMALL, *QUICK, f"dp={dp}"), prepare=False)
        assert any("no mixup" in w for w in run.warnings) != mixes
        step = run.trainer.stage.protection.step(*(n.float() for n in networks()), 0, 0)
        assert bool(step.recipe.mixup) == mixes
