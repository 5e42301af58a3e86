"""FedPD: who is absent changes nobody else's numbers, so a release moves by no more than it is charged."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv.building import build
from fedpriv.engine import batches
from fedpriv.engine.data import ClientData
from fedpriv.mechanisms.client_level import clip
from fedpriv.randomness.source import Source
from fedpriv.stages.fedpd import cache
from fedpriv.stages.fedpd.distil import distil
from fedpriv.stages.fedpd.private_step import PrivateStep
from fedpriv.stages.fedpd.protection import setting_of
from fedpriv.stages.fedpd.release import released
from fedpriv.stages.fedpd.vae import Distiller
from tests.conftest import SMALL

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")
QUICK = ("stage=fedpd", "stage.latent=4", "stage.rounds=1", "stage.cache=false")
SAMPLES = 48  # of the one client whose distillation is looked at


def networks():
    torch.manual_seed(0)
    low = torch.full((1, 1, 1), -1.0)
    classifier = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.Tanh(), nn.Dropout(0.5), nn.Linear(24, 10))
    return Distiller((1, 8, 8), low, -low, 4), classifier


def without(data: ClientData, client: int, place: int) -> ClientData:
    """The data set from which one sample is gone; the others keep their numbers."""
    owned, size = data.owned.clone(), data.size.clone()
    owned[client, place:-1] = data.owned[client, place + 1 :]
    size[client] -= 1
    return replace(data, owned=owned, size=size)


def clipped_sums(monkeypatch, own, data):
    """What the client would have noised, a row a batch, [T, P]; the networks stay as they are."""
    recorded = []

    def release(self, parameters, totals):
        recorded.extend(total.flatten() for total in totals)
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)

    monkeypatch.setattr(PrivateStep, "_release", release)
    both = networks()
    distil(own, *both, data, workers=1)
    count = sum(1 for n in both for _ in n.parameters())
    return torch.stack([torch.cat(recorded[at : at + count]) for at in range(0, len(recorded), count)])


@pytest.mark.parametrize("fraction", [1, 0.5])
@pytest.mark.parametrize("view", ["optimisation", "generalisation"])
def test_a_sample_moves_the_clipped_sums_by_no_more_than_the_clip(config, monkeypatch, view, fraction):
    """It adds its own gradient to the batches it is in, and nothing to the others."""
    options = (f"stage.view={view}", f"stage.data_fraction={fraction}", "stage.distil_clip=0.1", "dp=ldp")
    trainer = build(config(*SMALL, *QUICK, *options), prepare=False).trainer
    recipe = replace(trainer.stage.recipe, batch_size=8, lr=0.0)
    sizes, first = (round(fraction * SAMPLES),), replace(trainer.setting, clients=1, budgets=np.array([8.0]))
    setting = setting_of(recipe, sizes, networks(), first)
    own = replace(trainer.stage.protection, recipe=recipe, setting=setting)
    data = replace(trainer.train, owned=trainer.train.owned[:1, :SAMPLES], size=torch.tensor([SAMPLES]))
    whole = clipped_sums(monkeypatch, own, data)  # 6 or 3 batches
    moved = torch.stack(
        [clipped_sums(monkeypatch, own, without(data, 0, place)) - whole for place in range(0, SAMPLES, 6)]
    ).norm(dim=2)  # [8, T]
    assert moved.max() <= 0.1 * (1 + 1e-4), f"{float(moved.max()) / 0.1:.3f} times the clip"
    # A sample is in one of 6 batches, or in none or one of 3; its gradients are longer than the clip.
    assert 0 < (moved > 0.099).float().mean() < 0.5 and (moved < 1e-5).float().mean() > 0.5


def a_round(trainer, clients):
    setting = trainer.setting
    clients = np.asarray(clients, dtype=np.int64)
    noise = trainer.ledger.guarantee.noise
    return setting.round(0, clients, 4.0, True, lr=trainer.sgd.lr, noise=noise, start=trainer.theta)


def test_a_client_moves_the_sum_of_clipped_updates_by_no_more_than_the_bound(config):
    options = (
        "dp=cdp",
        "stage.share=raw",
        "stage.noise_std=0.5",
        "partition=iid",
        "local_epochs=1",
        "lr=0.5",
    )
    trainer = build(config(*SMALL, *QUICK, *options)).trainer
    bound = 0.5

    def summed(clients):
        local, _ = trainer._local_training(a_round(trainer, clients))
        return clip(local - trainer.theta, bound)[0].sum(0)

    moved = float((summed([0, 1, 2, 3]) - summed([0, 1, 2])).norm())
    assert 0.9 * bound < moved <= bound * (1 + 1e-5), f"{moved / bound:.3f} times the bound"


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_clients_shared_batches_are_its_own(config, epochs):
    """Whoever else is there; other clients, and the next round, get other ones."""
    options = ("dp=cdp", "stage.share=noise", "partition=dirichlet", f"local_epochs={epochs}")
    trainer = build(config(*SMALL, *QUICK, *options)).trainer
    stage, data = trainer.stage, trainer.train
    sizes = torch.as_tensor(trainer.setting.sizes)
    steps = torch.as_tensor(trainer.setting.steps)
    plan = batches.shuffled(sizes, 64, steps, torch.arange(len(sizes)), Source(bytes(32)))

    def seen(clients, number=0):
        round_ = replace(a_round(trainer, clients.tolist()), number=number)
        mixed, both = stage.mix(plan.rows(clients), round_, data)
        return {
            k: [
                both.owned[k][mixed.index[i, t, mixed.size[i, t] : mixed.taken[i, t]]].tolist()
                for t in range(mixed.index.shape[1])
            ]
            for i, k in enumerate(clients.tolist())
        }

    everybody = torch.arange(4)
    whole = seen(everybody)
    for absent in range(4):
        others = everybody[everybody != absent]
        assert seen(others) == {k: whole[k] for k in others.tolist()}
    assert seen(everybody, 1)[0] != whole[0]
    small, big = sorted((set(chain(*whole[k])) for k in (0, 2)), key=len)
    assert not small <= big
    for k in range(4):  # every pass has the whole share once
        size, per_pass = int(sizes[k]), -(-int(sizes[k]) // 64)
        passes = [list(chain(*whole[k][n * per_pass : (n + 1) * per_pass])) for n in range(epochs)]
        assert all(sorted(p) == sorted(passes[0]) and len(p) == size for p in passes)
        assert len({tuple(p) for p in passes}) == epochs


# -- rounds and clients have numbers of their own


def correlation(a, b):
    return abs(float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]))


def test_noise_of_rounds_clients_and_batches_is_uncorrelated(config):
    """Of 5,000 numbers or more each: a correlation is below 5 / sqrt(5000) unless the noise is shared."""
    trainer = build(config(*SMALL, *QUICK, "dp=ldp"), prepare=False).trainer
    own, drawn = trainer.stage.protection, []
    empty = torch.zeros(0, dtype=torch.int64)
    for number, client in ((0, 0), (0, 1), (1, 0)):
        step = own.step(*networks(), number, client)
        for _ in range(2):
            step(empty, torch.zeros(0, 1, 8, 8), empty)
            parameters = [p for o in step.optimisers for g in o.param_groups for p in g["params"]]
            drawn.append(torch.cat([p.grad.flatten() for p in parameters]))
    drawn += [trainer.stage.recipe.noise.draw(drawn[0][None], own._steps(0, k), [5], 0) for k in (0, 1)]
    assert drawn[0].numel() > 5000
    for i, one in enumerate(drawn):
        assert all(correlation(one, other) < 5 / 5000**0.5 for other in drawn[:i])


def test_released_noise_is_a_samples_own(config):
    """Without a sample the others' rows are bit for bit the same; rows are uncorrelated."""
    trainer = build(config(*SMALL, *QUICK, "dp=ldp"), prepare=False).trainer
    data, noise = trainer.train, trainer.stage.noise
    options = ("noise", None, noise, None, Source(bytes(32)))
    whole, fewer = released(data, *options)[0], released(without(data, 0, 3), *options)[0]
    assert torch.equal(fewer, torch.cat([whole[:3], whole[4:]]))
    assert correlation(whole[:500], whole[500:1000]) < 5 / (500 * 64) ** 0.5


def test_who_distils_does_not_depend_on_who_else_there_is(config):
    """Under cdp every client is drawn by itself: 200 rounds of 4 at rate 0.3."""
    options = ("dp=cdp", "stage.sample_rate=0.3")
    own = build(config(*SMALL, *QUICK, *options), prepare=False).trainer.stage.protection
    many = replace(own.setting, rounds=200)
    fewer = replace(many, clients=3, sizes=many.sizes[:3], budgets=many.budgets[:3])
    drawn, others = (replace(own, setting=setting).participants for setting in (many, fewer))
    assert [c.tolist() for c in others] == [[k for k in c if k < 3] for c in drawn]
    counts = np.array([len(c) for c in drawn])
    assert abs(counts.mean() - 1.2) < 5 * (0.84 / 200) ** 0.5
    assert abs(counts.var() - 0.84) < 5 * 0.84 * (2 / 200) ** 0.5


def test_a_kept_distillation_is_the_one_its_key_would_make(config, tmp_path, monkeypatch):
    """Other keys find nothing; with and without the cache a run is the same."""
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda *_: str(tmp_path))
    options = (*SMALL, *QUICK, "dp=cdp", "stage.data_fraction=0.05", "noise_seed=os")
    cells = (config(*options, f"stage.cache={kept}") for kept in ("true", "true", "false"))
    runs = [build(cell, lambda: b"k" * 32).trainer for cell in cells]
    facts = [t.stage.summary()["stage"] for t in runs]
    assert [f["distillation_is"] for f in facts] == ["made now", "from the cache", "made now"]
    assert len({f["distillation"] for f in facts}) == 1
    for trainer in runs:
        trainer.round()
    assert torch.equal(runs[0].theta, runs[1].theta) and torch.equal(runs[0].theta, runs[2].theta)
    stage = runs[0].stage
    other = replace(stage.protection, source=Source(bytes(32)))
    arguments = (stage.distiller, stage.classifier, runs[0].train)
    assert cache.fingerprint(other, *arguments) != cache.fingerprint(stage.protection, *arguments)
