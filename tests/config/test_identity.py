"""A run's identity: what counts, what does not, and what is said when the code or the data are others."""

import json
import sys

import numpy as np
from omegaconf import OmegaConf

from fedpriv.aggregators.pfa import PFA
from fedpriv.building import build
from fedpriv.config import identity
from fedpriv.config.identity import Identity, of_config
from fedpriv.reproduce import plan, recipe, rows
from tests.conftest import SMALL
from tests.helpers.own_data import features, on


def test_it_follows_what_is_run_and_not_where(config):
    base = of_config(config("device=cpu"))
    assert len(base) == 16 and int(base, 16) >= 0
    where = ["data_dir=/x", "checkpoint.every=3", "logger=wandb", "threads=1", "target=0.9", "resume=false"]
    assert base == of_config(config("device=cpu", *where)) == of_config(config(), "cpu")
    changed = [
        ["seed=1"],
        ["epsilon=4"],
        ["agg=size"],
        ["model.activation=relu"],
        ["rounds=61"],
        ["dp.clip_norm=1"],
        ["device=cuda"],
        ["device=mps"],
    ]
    assert len({base, *(of_config(config("device=cpu", *c)) for c in changed)}) == len(changed) + 1
    assert base == of_config(config("device=cpu", "dp.clip_norm=2")) != of_config(config("dp.clip_norm=2.5"))


def test_auto_is_the_device_that_is_chosen(config, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert (
        of_config(config("device=auto"))
        == of_config(config("device=cuda"))
        != of_config(config("device=cpu"))
    )


def test_a_default_that_changes_makes_other_runs(config, monkeypatch):
    """What is run counts, not how it differs from whatever the defaults are today."""
    given = config("agg=pfa", "agg.k=1")
    before = of_config(given)
    monkeypatch.setattr(PFA.__init__, "__kwdefaults__", {**PFA.__init__.__kwdefaults__, "k": 3})
    assert of_config(given) == before
    assert of_config(config("agg=pfa", "agg.k=3")) != before


def test_a_key_added_later_leaves_old_identities(config, monkeypatch):
    whole = config("agg=pfa", "rounds=7")
    older = OmegaConf.create(OmegaConf.to_container(whole, resolve=True))
    del older["samples_at"], older["aggregator"]["centred"], older["aggregator"]["fraction"]
    before = of_config(older)
    assert of_config(whole) != before
    monkeypatch.setattr(
        identity,
        "ADDED",
        identity.ADDED
        | {"samples_at": [], "aggregator.centred": False, "aggregator.fraction": 0.1, "x.y": 1},
    )
    assert of_config(whole) == of_config(older) == before
    assert of_config(config("agg=pfa", "rounds=7", "agg.centred=true")) != before


def test_a_part_that_cannot_be_imported_has_one(config):
    """The check says what is wrong with it; this must not get in the way."""
    one, other = (config(f"aggregator._target_=nowhere.{name}") for name in ("A", "B"))
    assert of_config(one) != of_config(other)


MINE = """
from fedpriv.aggregators.mean import Mean


class Scaled(Mean):
    def __call__(self, uploads, round_):
        return super().__call__(uploads, round_) * {factor}
"""


def test_an_edited_part_of_ones_own_is_run_again(fedpriv, tmp_path, monkeypatch):
    """The old code said "already done" and showed the accuracy of the part as it was before."""
    monkeypatch.syspath_prepend(tmp_path)
    own = (*SMALL, "dp=none", "aggregator._target_=scaled_by.Scaled")
    shown = []
    for factor in (1.0, 0.25):
        (tmp_path / "scaled_by.py").write_text(MINE.format(factor=factor))
        sys.modules.pop("scaled_by", None)
        done = fedpriv("run", *own)
        assert done.code == 0 and "already done" not in done.out
        shown.append(done)
    folders = list((tmp_path / "outputs" / "runs").glob("*/summary.json"))
    accuracies = {json.loads(f.read_text())["accuracy_global_last"] for f in folders}
    assert len(folders) == 2 and len(accuracies) == 2
    assert "already done" in fedpriv("run", *own).out
    sys.modules.pop("scaled_by", None)


def test_a_finished_run_of_other_code_says_so(fedpriv, one_run, monkeypatch):
    assert fedpriv("run", *SMALL).code == 0
    assert "other code" not in fedpriv("run", *SMALL).err
    monkeypatch.setattr(identity, "code", lambda: "another")
    again = fedpriv("run", *SMALL)
    assert (
        again.code == 0 and "already done" in again.out and "made by other code (fedpriv 0.1.0" in again.err
    )


# -- data


def test_one_sample_changes_the_fingerprint_and_nothing_of_the_config(config, tmp_path):
    found = []
    for shift in (0.0, 0.0, 1e-3):
        features(tmp_path / "own.npz", shift)
        cfg = config(*on(tmp_path)[:-1])
        found.append((of_config(cfg), build(cfg).data.fingerprint))
    assert found[0] == found[1] and found[0][0] == found[2][0] and found[0][1] != found[2][1]


def test_data_that_changed_under_a_continued_run_are_noticed(fedpriv, tmp_path, monkeypatch):
    from fedpriv.engine.fast import FastEngine

    original, calls = FastEngine.train, []

    def dies_in_round_2(self, work, data, *groups):
        calls.append(1)
        if len(calls) == 2:
            raise OSError("power cut")
        return original(self, work, data, *groups)

    features(tmp_path / "own.npz")
    monkeypatch.setattr(FastEngine, "train", dies_in_round_2)
    assert fedpriv("run", *on(tmp_path)).code == 1
    features(tmp_path / "own.npz", 1.0)
    refused = fedpriv("run", *on(tmp_path))
    assert refused.code == 2 and "the data have changed" in refused.err and refused.err.count("\n") == 1
    (tmp_path / "here" / "identity.txt").unlink()  # the checkpoint knows it too
    assert "the data have changed" in fedpriv("run", *on(tmp_path)).err
    features(tmp_path / "own.npz")
    done = fedpriv("run", *on(tmp_path))
    assert done.code == 0 and "continuing after round 1" in done.out


def test_a_finished_run_of_other_data_is_not_shown_as_done(fedpriv, tmp_path, monkeypatch):
    features(tmp_path / "own.npz")
    assert fedpriv("run", *on(tmp_path)).code == 0
    features(tmp_path / "own.npz")  # another time, the same content
    assert "already done" in fedpriv("run", *on(tmp_path)).out
    features(tmp_path / "own.npz", 1.0)
    refused = fedpriv("run", *on(tmp_path))
    assert refused.code == 2 and "the data have changed" in refused.err
    (tmp_path / "own.npz").unlink()  # a run can be shown where its data are not
    assert "already done" in fedpriv("run", *on(tmp_path)).out
    features(tmp_path / "own.npz", 1.0)
    assert fedpriv("run", *on(tmp_path), "resume=false").code == 0


def test_the_file_of_statistics_is_among_the_files(config, tmp_path):
    """With dn=source the samples are scaled by a second file."""
    from fedpriv.parts.making import source

    for name in ("own", "public"):
        features(tmp_path / f"{name}.npz")
    more = ("dataset.dn=source", f"dataset.statistics={tmp_path / 'public.npz'}")
    dataset = source(config(*on(tmp_path)[:-1], *more))
    before = identity.of_files(*dataset)
    np.savez(tmp_path / "public.npz", mean=np.ones(6), variance=np.ones(6))
    assert before and identity.of_files(*dataset) != before


def test_values_that_compute_the_same_are_one_run(config, tmp_path):
    """A mean of 0 and a variance of 1 leave features as they are; other normalisations do not."""
    kinds = ("none", "unit", "half")
    none, unit, half = (identity.of_config(config(*on(tmp_path), f"dataset.dn={kind}")) for kind in kinds)
    assert none == unit == identity.of_config(config(*on(tmp_path))) != half
    after = identity.of_config(config(*on(tmp_path), "dataset.after_transform=false"))
    assert after == none != identity.of_config(config(*on(tmp_path), "dataset.after_transform=true"))


def test_what_is_written_is_read_again():
    own = Identity("0123", "4567", "")
    assert Identity.read(str(own)) == own and Identity.read("89abcdef") == Identity("", "", "")


# -- committed rows


def test_a_row_made_on_another_kind_of_device_serves(tmp_path):
    own = recipe.load("pfa/fig3")
    (job, *_) = plan.jobs_of([own], "full", 1, device="cuda")
    assert job.identity == job.alike[1] and len(set(job.alike)) == 3
    rows.add(own, job.cell, 0, "full", job.alike[0], rows.of_summary({"data": "d"}, []), tmp_path)
    assert plan.collect([job], tmp_path / "runs", tmp_path) == []
    (row,) = rows.read(own, tmp_path)
    assert row.identity == job.alike[0] and row.about["data"] == "d"
