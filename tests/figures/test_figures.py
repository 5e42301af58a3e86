"""Figures: hand-made runs with known numbers give exactly their means, and mixed runs are refused."""

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

from fedpriv.config import catalogue
from fedpriv.config.catalogue import option_of
from fedpriv.config.schema import GROUPS
from fedpriv.errors import UserError
from fedpriv.figures import emd_accuracy, emd_classes, emd_epsilon, loss
from fedpriv.figures.command import KINDS
from fedpriv.studies import reader

OPTIONS = [(group, name) for group in GROUPS for name in catalogue.options(group)]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def put(config, tmp_path):
    """Write a finished run with these numbers into a folder."""

    def make(*overrides, emd=0.5, pairs=0.1, losses=(2.0, 1.0), folder="runs", name=None, **summary) -> Path:
        cfg = config(*overrides)
        place = tmp_path / folder / (name or f"run-{len(list(tmp_path.rglob('summary.json'))):02}")
        place.mkdir(parents=True)
        (place / "config.yaml").write_text(OmegaConf.to_yaml(cfg, resolve=True))
        (place / "summary.json").write_text(json.dumps(summary))
        lines = ["round,loss_global,emd_mean,emd_std,seconds"]
        for number, value in enumerate(losses, 1):
            last = number == len(losses)
            lines.append(f"{number},{value},{emd if last else 99},{pairs if last else 99},{os.urandom(1)[0]}")
        (place / "metrics.csv").write_text("\n".join(lines) + "\n")
        return place

    return make


def table(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def runs_in(folder: Path) -> list:
    return reader.find([folder])[0]


# -- what is drawn


def test_emd_against_epsilon_with_the_baseline(fedpriv, put, tmp_path):
    for seed, shift in ((0, 0.0), (1, 0.5)):
        for epsilon in (8, 2):
            put("dp=ldp", f"epsilon={epsilon}", f"seed={seed}", emd=1 / epsilon + shift, pairs=0.25 + shift)
            put("dp=ldp", f"epsilon={epsilon}", f"seed={seed}", "transform=linear", emd=shift, pairs=0)
        for epsilon in (2, 8):  # to which nothing without privacy depends: one run, not two
            put("dp=none", f"epsilon={epsilon}", f"seed={seed}", emd=0.0625 + shift, pairs=0.125)
    done = fedpriv("figure", "emd-epsilon", "runs", "out=new/emd.png")
    assert done.code == 0, done.err
    assert "new/emd.png and emd.csv, from 12 runs" in done.out and (tmp_path / "new" / "emd.png").exists()
    names = ("dp", "transform", "epsilon", "emd_mean", "emd_std_over_pairs", "seeds")
    rows = table(tmp_path / "new" / "emd.csv")
    assert [tuple(r[n] for n in names) for r in rows] == [
        ("ldp", "none", "2.0", "0.75", "0.5", "2"),
        ("ldp", "none", "8.0", "0.375", "0.5", "2"),
        ("ldp", "linear", "2.0", "0.25", "0.0", "2"),
        ("ldp", "linear", "8.0", "0.25", "0.0", "2"),
        ("none", "none", "", "0.3125", "0.125", "2"),
    ]
    assert all(float(r["emd_std_over_seeds"]) == pytest.approx(0.5 / 2**0.5) for r in rows)
    drawn = emd_epsilon.draw(runs_in(tmp_path / "runs"))
    (axes,) = drawn.figure.axes
    (baseline,) = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert baseline.get_label() == "no DP, no transform" and set(baseline.get_ydata()) == {0.3125}
    labels = [t.get_text() for t in drawn.figure.legends[0].get_texts()]
    assert labels == ["LDP, no transform", "LDP, linear transform", "no DP, no transform"]
    assert "mean of 2 seeds" in axes.get_title()


def test_emd_against_classes_per_client(put, tmp_path):
    for number, dp in enumerate(("none", "cdp")):
        for classes in (10, 2, 4):
            put(f"dp={dp}", f"partition.classes_per_client={classes}", emd=number + classes / 16)
    drawn = emd_classes.draw(runs_in(tmp_path / "runs"))
    points = [(r["dp"], r["classes_per_client"], r["emd_mean"]) for r in drawn.rows]
    assert points == [
        ("cdp", 2, 1.125),
        ("cdp", 4, 1.25),
        ("cdp", 10, 1.625),
        ("none", 2, 0.125),
        ("none", 4, 0.25),
        ("none", 10, 0.625),
    ]
    (axes,) = drawn.figure.axes
    cdp, none = axes.lines
    assert list(cdp.get_xdata()) == [2, 4, 10] and list(none.get_ydata()) == [0.125, 0.25, 0.625]
    assert "one seed" in axes.get_title() and drawn.rows[0]["emd_std_over_seeds"] is None


@pytest.mark.parametrize(
    ("view", "pick", "word"), [("local", "last", "own test"), ("global", "best", "whole")]
)
def test_accuracy_against_emd_says_which(put, tmp_path, view, pick, word):
    accuracies = {f"accuracy_{v}_{p}": n / 8 for n, (v, p) in enumerate(
        [("local", "last"), ("local", "best"), ("global", "last"), ("global", "best")])}  # fmt: skip
    for epsilon, emd in ((2, 0.5), (8, 0.25), (4, 0.75)):
        put("dp=ldp", f"epsilon={epsilon}", emd=emd, **accuracies)
    put("dp=none", emd=0.125, **accuracies)
    drawn = emd_accuracy.draw(runs_in(tmp_path / "runs"), view=view, pick=pick)
    assert [(r["epsilon"], r["emd_mean"]) for r in drawn.rows] == [
        (2, 0.5),
        (4, 0.75),
        (8, 0.25),
        ("", 0.125),
    ]
    name = f"accuracy_{view}_{pick}"
    assert {r[name] for r in drawn.rows} == {accuracies[name]}
    (axes,) = drawn.figure.axes
    assert word in axes.get_ylabel() and f"{pick} round" in axes.get_ylabel()
    assert [t.get_text() for t in axes.texts] == ["2", "4", "8"]
    assert list(axes.lines[0].get_xdata()) == [0.5, 0.75, 0.25]  # in the order of epsilon


def test_loss_has_a_line_for_what_by_names_and_refuses_the_rest(put, tmp_path):
    put("lr=0.1", "seed=0", losses=[4, 2, 1])
    put("lr=0.1", "seed=1", losses=[6, 3])  # ended early
    put("lr=0.2", "seed=0", losses=[5, "", 3])  # not evaluated in round 2
    with pytest.raises(UserError, match=r"loss: the runs differ in lr \(0.1, 0.2\);"):
        loss.draw(runs_in(tmp_path / "runs"))
    drawn = loss.draw(runs_in(tmp_path / "runs"), by=["lr"])
    assert [(r["lr"], r["round"], r["loss_global"], r["seeds"]) for r in drawn.rows] == [
        ("0.1", 1, 5.0, 2),
        ("0.1", 2, 2.5, 2),
        ("0.1", 3, 1.0, 1),
        ("0.2", 1, 5.0, 1),
        ("0.2", 3, 3.0, 1),
    ]
    (axes,) = drawn.figure.axes
    labels = [t.get_text() for t in drawn.figure.legends[0].get_texts()]
    assert labels == ["LDP, no transform, lr=0.1", "LDP, no transform, lr=0.2"]
    assert "mean of 1 to 2 seeds" in axes.get_title()


def keep_samples(folder: Path, image: float, original: float = 0.0, last: int = 7) -> None:
    first = np.full((2, 1, 2, 2), original)
    both = np.stack([first, first + np.arange(4).reshape(2, 2) + image])
    np.savez(
        folder / "samples.npz",
        original=first,
        transformed=both,
        rounds=[0, last],
        clients=[3, 4],
        labels=[9, 8],
    )


def test_samples_take_the_last_round_of_the_first_client(fedpriv, put, tmp_path):
    keep_samples(put("dataset=digits", "transform=linear"), 10)
    keep_samples(put("dataset=digits", "transform=conv2d"), 20)
    for transform in ("linear", "conv2d"):  # another seed, another sample: not shown
        keep_samples(put("dataset=digits", f"transform={transform}", "seed=1"), 50, original=5)
    keep_samples(put("dataset=mnist", "transform=linear", "clients=3"), 30, original=-1)
    put("dataset=mnist", "transform=none", "clients=3")  # has none, is left out
    done = fedpriv("figure", "samples", "runs")
    assert done.code == 0, done.err
    rows = table(tmp_path / "runs" / "figure-samples.csv")
    found = {}
    for r in rows:
        assert r["client"] == "3" and r["label"] == "9" and r["round"] == "7"
        found.setdefault((r["dataset"], r["transform"]), []).append(float(r["value"]))
    assert found == {
        ("digits", "original"): [0, 0, 0, 0],
        ("digits", "linear"): [10, 11, 12, 13],
        ("digits", "conv2d"): [20, 21, 22, 23],
        ("mnist", "original"): [-1, -1, -1, -1],
        ("mnist", "linear"): [29, 30, 31, 32],
    }


# -- what must not meet


def test_runs_that_differ_in_what_is_not_shown_are_refused_in_one_line(fedpriv, put):
    put("dp=ldp", "epsilon=2")
    put("dp=ldp", "epsilon=4", "rounds=70", "transform=linear", "lr=0.2")
    refused = fedpriv("figure", "emd-epsilon", "runs")
    assert refused.code == 2 and refused.err.count("\n") == 1
    assert "rounds (60, 70)" in refused.err and "lr (0.1, 0.2)" in refused.err
    assert "by=rounds,lr" in refused.err and "epsilon (" not in refused.err
    done = fedpriv("figure", "emd-epsilon", "runs", "by=rounds,lr")
    assert done.code == 0, done.err


def test_by_makes_further_lines(put, tmp_path):
    for lr, seed, emd in ((0.1, 0, 0.25), (0.1, 1, 0.75), (0.05, 0, 1.0)):
        put("dp=cdp", f"lr={lr}", f"seed={seed}", "transform=linear", "transform.lr=0.1", emd=emd)
    put("dp=none", "lr=0.1", emd=0.125)
    runs = runs_in(tmp_path / "runs")
    with pytest.raises(UserError, match=r"differ in lr \(0.05, 0.1\);"):
        emd_epsilon.draw(runs)
    rows = emd_epsilon.draw(runs, by=["lr", "transform.lr"]).rows
    assert [(r["dp"], r["lr"], r["transform.lr"], r["emd_mean"], r["seeds"]) for r in rows] == [
        ("cdp", "0.05", "0.1", 1.0, 1),
        ("cdp", "0.1", "0.1", 0.5, 2),
        ("none", "0.1", "", 0.125, 1),  # without a transform
    ]
    with pytest.raises(UserError, match="by=leraning_rate: no run has this key"):
        emd_epsilon.draw(runs, by=["leraning_rate"])


def test_options_are_compared_where_the_same_option_was_chosen(put, tmp_path):
    put("dp=ldp", "transform=linear")
    put("dp=cdp", "dp.bound=median", "transform=conv2d")
    emd_epsilon.draw(runs_in(tmp_path / "runs"))
    put("dp=cdp", "dp.bound=adaptive", "transform=none")
    with pytest.raises(UserError, match=r"differ in dp_variant.bound \(adaptive, median\);"):
        emd_epsilon.draw(runs_in(tmp_path / "runs"))


def test_a_value_taken_over_from_the_top_level_is_one_value_not_two(put, tmp_path):
    put("dp=ldp", "clip_norm=1", "epsilon=2")
    put("dp=ldp", "clip_norm=2", "epsilon=2")
    with pytest.raises(UserError, match=r"differ in clip_norm \(1, 2\);"):
        emd_epsilon.draw(runs_in(tmp_path / "runs"))
    put("dp=ldp", "clip_norm=2", "dp.clip_norm=3", "epsilon=4")
    with pytest.raises(UserError, match=r"clip_norm \(1, 2\), dp_variant.clip_norm \(3, null\);"):
        emd_epsilon.draw(runs_in(tmp_path / "runs"))


def test_where_and_how_a_run_was_watched_makes_no_difference(put, tmp_path):
    put("threads=1", "logger=wandb", "checkpoint.every=3", "data_dir=/x", "seed=0")
    put("seed=1", "samples_at=[1]")
    (row,) = emd_epsilon.draw(runs_in(tmp_path / "runs")).rows
    assert row["seeds"] == 2


def test_one_run_in_two_folders_counts_once_unless_the_numbers_differ(put, tmp_path):
    put("seed=0", emd=0.5, folder="a")
    put("seed=0", emd=0.5, folder="b")
    put("seed=1", emd=1.0, folder="b")
    (row,) = emd_epsilon.draw(reader.find([tmp_path / "a", tmp_path, tmp_path / "b"])[0]).rows
    assert row["seeds"] == 2 and row["emd_mean"] == 0.75
    put("seed=1", emd=0.75, folder="a")
    with pytest.raises(UserError, match="the same run with other numbers"):
        emd_epsilon.draw(runs_in(tmp_path))


@pytest.mark.parametrize(
    ("second", "samples", "words"),
    [
        (["transform=tanh", "seed=1"], {"original": 1.0}, "no tanh with seed 0; give runs of one seed"),
        (["transform=tanh", "lr=0.3"], {}, r"lr \(0.1, 0.3\); give folders of runs that agree$"),
        (["transform=tanh"], {"last": 9}, r"after rounds \[7, 9\]"),
    ],
)
def test_samples_of_different_things_are_refused(put, tmp_path, second, samples, words):
    keep_samples(put("transform=linear"), 1)
    keep_samples(put(*second), 2, **samples)
    with pytest.raises(UserError, match=words):
        KINDS["samples"](runs_in(tmp_path / "runs"))


# -- the command


def test_unfinished_runs_are_left_out_and_said_so(fedpriv, put):
    put("epsilon=2", emd=0.25)
    (put("epsilon=4", emd=0.5) / "summary.json").unlink()
    done = fedpriv("figure", "loss", "runs")
    assert done.code == 0 and "from 1 runs" in done.out and "1 unfinished runs left out" in done.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["choose a kind of accuracy"]),
        (["emd"], ["figure emd", "emd-classes"]),
        (["loss"], ["figure loss", "name the folders"]),
        (["loss", "nowhere"], ["nowhere: no such folder"]),
        (["loss", "empty"], ["empty: no finished run"]),
        (["samples", "runs", "by=lr"], ["by=lr: no such option of figure samples", "out"]),
        (["loss", "runs", "out=x.jpg"], ["out=x.jpg", ".png or .pdf"]),
        (["loss", "runs", "out=runs/one/metrics.png"], ["would replace a file of the run"]),
        (["loss", "runs", "out=runs/one/config.yaml/x.png"], ["out=", "cannot be written"]),
        (["emd-accuracy", "runs", "pick=mean"], ["pick=mean", "last, best"]),
        (["emd-accuracy", "runs", "view=mine"], ["view=mine", "local, global"]),
        (["emd-classes", "runs"], ["partition=iid has no classes_per_client"]),
        (["emd-epsilon", "runs"], ["all runs have dp=none"]),
        (["samples", "runs"], ["no run there has a samples.npz"]),
        (["loss", "damaged"], ["damaged/one/summary.json: cannot be read"]),
    ],
)
def test_mistakes(fedpriv, put, tmp_path, arguments, words):
    (tmp_path / "empty").mkdir()
    put("dp=none", "partition=iid", name="one")
    (put(folder="damaged", name="one") / "summary.json").write_text("{")
    before = (tmp_path / "runs" / "one" / "metrics.csv").read_bytes()
    done = fedpriv("figure", *arguments)
    assert done.code == 2 and done.err.count("\n") == 1 and done.err.startswith("error: "), done.err
    assert all(word in done.err for word in words), done.err
    assert (tmp_path / "runs" / "one" / "metrics.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("summary.json", b"{"),
        ("summary.json", b"[]"),
        ("summary.json", b"\xff\xfe"),
        ("config.yaml", b"a: [1"),
        ("config.yaml", b"dataset: 3\n"),
        ("metrics.csv", b"round,accuracy_global\nx,0.5\n"),
        ("metrics.csv", b"round,accuracy_global\n1,7\n"),
        ("metrics.csv", b"\0"),
    ],
)
def test_a_damaged_run_is_named_and_the_others_are_drawn(fedpriv, put, name, content):
    put("epsilon=2", name="sound")
    (put("epsilon=4", name="other") / name).write_bytes(content)
    done = fedpriv("figure", "loss", "runs")
    assert done.code == 0 and "from 1 runs" in done.out
    assert done.err.count("\n") == 1 and f"runs/other/{name}" in done.err


@pytest.mark.parametrize(("group", "name"), OPTIONS)
def test_an_option_is_recognised_in_a_composed_config(config, group, name):
    assert option_of(group, OmegaConf.to_container(config(f"{group}={name}")[group], resolve=True)) == name


def test_a_part_of_ones_own_goes_by_its_class():
    assert option_of("transform", {"_target_": "mine.Blur", "width": 3}) == "Blur"


def test_help_and_completion(fedpriv, monkeypatch, tmp_path):
    shown = fedpriv("figure", "--help").out
    assert all(kind in shown for kind in KINDS) and "by=" in shown and "Figure 7" in shown
    monkeypatch.setenv("COMP_LINE", "fedpriv figure emd")
    assert fedpriv("-sc", "query=bash").out.split() == list(KINDS)
    (tmp_path / "outputs").mkdir()
    monkeypatch.setenv("COMP_LINE", "fedpriv figure loss out")
    assert {"out=", "outputs/"} <= set(fedpriv("-sc", "query=bash").out.split())
