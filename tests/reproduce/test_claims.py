"""What goes past a DP variant is refused, or said: models, aggregators, data sets and diagnostics."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedpriv.aggregators.mean import Mean
from fedpriv.building import build
from fedpriv.datasets.covtype import Covtype, scales
from fedpriv.errors import UserError
from fedpriv.models.lstm import lstm
from fedpriv.models.parts import mixes_samples
from tests.conftest import SMALL, refused


class Own(nn.Module):
    """A linear model after what a subclass does to a batch."""

    def __init__(self, *, shape: tuple[int, ...], classes: int):
        super().__init__()
        self.last = nn.Linear(int(np.prod(shape)), classes)

    def forward(self, x):
        return self.last(self.prepared(x.flatten(1)))

    def prepared(self, x):
        return x


class Centred(Own):
    def prepared(self, x):
        return x - 0.001 * x.mean(0).detach()


class CentredInTraining(Own):
    def prepared(self, x):
        return x - x.mean(0) if self.training else x


class CountedInTraining(Own):
    def prepared(self, x):
        return x * len(x) if self.training else x


class Dropped(Own):
    """Random in training, by a function that no engine replaces; samples stay apart."""

    def prepared(self, x):
        return F.dropout(x, 0.5, self.training)


class DroppedAndCentred(Own):
    def prepared(self, x):
        return F.dropout(x - x.mean(0) * self.training, 0.5, self.training)


MIXING = (Centred, CentredInTraining, CountedInTraining, DroppedAndCentred)


@pytest.mark.parametrize("kind", MIXING)
def test_a_model_that_mixes_samples_is_found(kind):
    assert mixes_samples(kind(shape=(1, 8, 8), classes=10), (1, 8, 8))


def test_models_that_do_not_are_left_alone():
    apart = [Own(shape=(6,), classes=3), Dropped(shape=(6,), classes=3)]
    apart.append(nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)))
    reader = lstm(shape=(7,), classes=2, vocabulary=50)
    before = torch.get_rng_state()
    for model in apart:
        state = {k: v.clone() for k, v in model.state_dict().items()}
        assert not mixes_samples(model, (6,))
        assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items()) and model.training
    assert not mixes_samples(reader, (7,), 50)
    assert torch.equal(before, torch.get_rng_state())


def of(kind: type[nn.Module]) -> tuple[str, ...]:
    own = f"model._target_=tests.reproduce.test_claims.{kind.__name__}"
    return (own,)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("dp=ldp",), "clipped one sample at a time"),
        (("dp=ldp", "engine=loop"), "clipped one sample at a time"),
        (("dp=none",), "use engine=loop"),
        (("dp=cdp",), "use engine=loop"),
    ],
)
def test_a_model_that_mixes_samples_is_refused_in_one_line(config, more, words):
    cfg = config(*SMALL[1:], *of(Centred), *more)
    with pytest.raises(UserError, match=words) as problem:
        build(cfg)
    assert "\n" not in str(problem.value)


def test_the_loop_engine_runs_it_where_no_sample_is_protected(config):
    build(config(*SMALL[1:], *of(Centred), "dp=none", "engine=loop")).trainer.round()


class Broken(Own):
    def prepared(self, x):
        raise ValueError("out of order")


def test_a_model_that_cannot_be_run_says_so_in_one_line(config):
    with pytest.raises(UserError, match=r"shape \[1, 8, 8\] \(ValueError: out of order\)"):
        build(config(*SMALL[1:], *of(Broken)))


# -- aggregators


class Picky(Mean):
    def accepts(self, clients: np.ndarray) -> bool:
        return 0 in clients


def test_rounds_are_not_drawn_again_where_sampling_is_charged_as_poisson(config):
    """Drawn until client 0 is in, it takes part every round and is charged for half of them."""
    picky = (*SMALL, "aggregator._target_=tests.reproduce.test_claims.Picky")
    refused(lambda: build(config(*picky, "dp=cdp", "sample_rate=0.5")))
    refused(lambda: build(config(*picky, "dp=ddp", "sample_rate=0.5")))
    build(config(*picky, "dp=cdp"))  # everybody, every round
    build(config(*picky, "dp=ldp", "sample_rate=0.5"))  # pays by participation


# -- data sets


def covtype(folder, features: np.ndarray) -> Covtype:
    import joblib

    own = Covtype(train_size=70, test_size=20)
    own.folder(folder).mkdir(parents=True, exist_ok=True)
    labels = np.arange(len(features)) % 7 + 1
    for array, part in zip((features, labels), own.parts, strict=True):
        joblib.dump(array, folder / part.path)
    return own


def test_no_sample_of_covtype_scales_another(tmp_path):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(90, 54)) * 100
    before = covtype(tmp_path, features).load(tmp_path)
    features[:, 0][features[:, 0] == features[:, 0].max()] = 1e6  # one patch of land is very high up
    after = covtype(tmp_path, features).load(tmp_path)
    moved = (before.x_train != after.x_train).sum() + (before.x_test != after.x_test).sum()
    assert moved == 1


def test_covtype_is_scaled_by_constants():
    mean, std = scales()
    assert mean.shape == std.shape == (54,)
    assert (mean[0], std[0]) == (np.float32(2959.36), np.float32(279.98))
    assert mean[10] == 0.25 and std[10] == pytest.approx(0.4330127)  # one of four
    assert mean[-1] == pytest.approx(0.025) and std[-1] == pytest.approx(0.1561250)  # one of forty


def test_what_a_data_set_took_from_everybody_reaches_the_guarantee(fedpriv, one_run, monkeypatch):
    from dataclasses import replace

    from fedpriv.datasets.digits import Digits

    read = Digits.read
    monkeypatch.setattr(Digits, "read", lambda *a: replace(read(*a), not_covered=("a vocabulary of all",)))
    assert fedpriv("run", *SMALL).code == 0
    assert "a vocabulary of all" in json.loads((one_run() / "privacy.json").read_text())["not_covered"]


@pytest.mark.parametrize("dp", ["ldp", "cdp", "ddp", "duchi", "pldp_gaussian", "pldp_sign"])
def test_every_variant_lists_its_diagnostics(config, dp):
    listed = " ".join(build(config(*SMALL, f"dp={dp}")).trainer.ledger.guarantee.not_covered)
    for name in ("metrics.csv", "clients.csv", "partition.csv", "partition.png", "checkpoint", "wrapped"):
        assert name in listed, name
