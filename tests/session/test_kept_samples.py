"""Transformed samples: they are the client's own transform of its own first sample, whatever interrupts."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedpriv.building import build
from fedpriv.config.checks import check
from fedpriv.config.identity import of_config
from fedpriv.engine.fast import FastEngine
from fedpriv.errors import UserError
from fedpriv.session.kept_samples import KeptSamples
from tests.conftest import SMALL


def kept(config, *overrides: str, rounds: int = 2):
    """A run of some rounds with its samples, as a session drives it."""
    cfg = config(*SMALL, *overrides, f"samples_at=[0,{rounds}]")
    run = build(cfg)
    samples = KeptSamples(cfg.samples_at, run)
    samples.keep(run.trainer)
    for _ in range(rounds):
        run.trainer.round()
        samples.keep(run.trainer)
    return run, samples


def test_the_linear_transform_by_hand(config):
    run, samples = kept(config, "transform=linear", "lr=0.5")
    for k, part in enumerate(run.split.train):
        x = run.data.prepare(run.data.x_train[part[0]])  # [1, 8, 8]
        alpha, beta = run.trainer.store["home"][k].split([1, 64])
        assert not torch.equal(alpha, torch.ones(1))
        assert torch.equal(samples.original[k], x) and torch.equal(samples.kept[0][k], x)
        torch.testing.assert_close(samples.kept[2][k], alpha * x + beta.view(1, 8, 8))
        assert samples.labels[k] == run.data.y_train[part[0]]


def test_the_convolution_by_hand(config):
    run, samples = kept(config, "transform=conv2d", "transform.kernel=3", "lr=0.5")
    assert torch.equal(samples.kept[0], samples.original)
    for k, x in enumerate(samples.original):
        kernel, bias = run.trainer.store["home"][k].split([9, 1])
        by_hand = F.conv2d(x[None], kernel.view(1, 1, 3, 3), bias, padding=1)[0]
        assert not torch.allclose(by_hand, x, atol=1e-3)
        torch.testing.assert_close(samples.kept[2][k], by_hand)


def test_personal_layers_of_the_model_are_not_taken_for_the_transform(config):
    """FedBN keeps norm layers at home too, in front of the transform in the flat order."""
    run, samples = kept(config, "transform=linear", "algorithm=fedgn", "model.norm=group", "model.sizes=[16]")
    layout, home = run.trainer.setting.layout, run.trainer.store["home"]
    assert home.shape[1] > 65
    places = {e.name: slice(e.start - layout.sent, e.stop - layout.sent) for e in layout.entries}
    alpha, beta = home[:, places["transform.0.alpha"]], home[:, places["transform.0.beta"]]
    by_hand = alpha.view(4, 1, 1, 1) * samples.original + beta.view(4, 1, 8, 8)
    torch.testing.assert_close(samples.kept[2], by_hand)


def test_a_run_writes_the_samples_of_its_first_ten_clients(fedpriv, one_run):
    many = (*SMALL, "clients=12", "transform=sigmoid", "samples_at=[3,0]")
    done = fedpriv("run", *many)
    assert done.code == 0, done.err
    files = np.load(one_run() / "samples.npz")
    assert files["original"].shape == (10, 1, 8, 8) and files["transformed"].shape == (2, 10, 1, 8, 8)
    assert files["rounds"].tolist() == [0, 3] and files["clients"].tolist() == list(range(10))
    np.testing.assert_allclose(files["transformed"][0], 1 / (1 + np.exp(-files["original"])), rtol=1e-5)
    assert files["labels"].shape == (10,) and (one_run() / "samples.png").stat().st_size > 10_000
    privacy = json.loads((one_run() / "privacy.json").read_text())
    assert any("samples.npz" in line and "raw" in line for line in privacy["not_covered"])


def test_a_continued_run_ends_with_the_same_files(fedpriv, tmp_path, monkeypatch):
    asked = (*SMALL, "rounds=6", "checkpoint.every=2", "transform=linear", "samples_at=[0,1,3,5]")
    assert fedpriv("run", *asked, "hydra.run.dir=whole").code == 0
    calls, original = 0, FastEngine.train

    def dies_in_round_4(self, work, data, *groups):
        nonlocal calls
        calls += 1
        if calls == 4:
            raise OSError("power cut")
        return original(self, work, data, *groups)

    monkeypatch.setattr(FastEngine, "train", dies_in_round_4)
    assert fedpriv("run", *asked, "hydra.run.dir=broken").code == 1
    monkeypatch.setattr(FastEngine, "train", original)
    done = fedpriv("run", *asked, "hydra.run.dir=broken")
    assert done.code == 0 and "continuing after round 2" in done.out
    for name in ("samples.npz", "samples.png"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert np.load(tmp_path / "whole" / "samples.npz")["rounds"].tolist() == [0, 1, 3, 5]


def test_nothing_is_kept_unasked_and_nothing_stale_stays(fedpriv, one_run, tmp_path):
    small = (*SMALL, "rounds=1", "transform=linear", "hydra.run.dir=here")
    assert fedpriv("run", *small, "samples_at=[1]").code == 0
    assert (tmp_path / "here" / "samples.npz").exists()
    assert fedpriv("run", *small, "resume=false").code == 0
    assert not list((tmp_path / "here").glob("samples.*"))
    privacy = json.loads((tmp_path / "here" / "privacy.json").read_text())
    assert not any("samples.npz" in line for line in privacy["not_covered"])


def test_a_run_with_samples_is_another_run(config):
    assert of_config(config(*SMALL)) != of_config(config(*SMALL, "samples_at=[1]"))


@pytest.mark.parametrize(
    ("samples_at", "words"),
    [("[-1]", "at least 0"), ("[0,4]", "no round 4; choose from 0 to rounds=3")],
)
def test_rounds_that_are_none(config, samples_at, words):
    with pytest.raises(UserError, match=words) as problem:
        check(config(*SMALL, f"samples_at={samples_at}"))
    assert str(problem.value).startswith("samples_at=[")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["transform=none"], ["transform=none", "transform=linear"]),
        (["transform=linear", "dataset=features", "dataset.path=x.npz"], ["(5,)", "leave samples_at empty"]),
        (["transform=linear", "samples_at=3"], ["samples_at=3: must be a list in brackets"]),
        (["transform=linear", "samples_at=[a]"], ["samples_at", "whole number"]),
    ],
)
def test_what_has_no_samples_to_show_is_refused_in_one_line(fedpriv, tmp_path, overrides, words):
    y = np.arange(80) % 10
    arrays = {f"x_{side}": np.ones((80, 5), np.float32) for side in ("train", "test")}
    np.savez(tmp_path / "x.npz", **arrays, y_train=y, y_test=y)
    done = fedpriv("run", *SMALL, f"data_dir={tmp_path}", "samples_at=[1]", *overrides)
    lines = done.err.splitlines()
    assert done.code == 2 and len(lines) == 1 and lines[0].startswith("error: "), done.err
    assert all(word in lines[0] for word in words), lines[0]
    assert not list(tmp_path.rglob("metrics.csv"))
