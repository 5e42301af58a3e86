"""fedpriv runs: every run is listed as it ended, and nothing that is going on is deleted."""

import csv
import fcntl
import io
import os
import threading
import time

import pytest

import fedpriv as package
from fedpriv.errors import UserError
from fedpriv.files import LOCK, alone, held
from fedpriv.session.execution import execute
from fedpriv.studies import reader, runs, selecting
from tests.conftest import SMALL
from tests.helpers.runs import put


@pytest.fixture
def study(tmp_path):
    """Two finished runs, one cut off, one that failed, one that diverged."""
    put(tmp_path / "s" / "a-00000001", "epsilon=2", "seed=0", accuracies=[0.5, 0.75])
    put(tmp_path / "s" / "b-00000002", "epsilon=8", "seed=0", accuracies=[0.25, 0.875])
    put(tmp_path / "s" / "c-00000003", "epsilon=8", "seed=1", accuracies=[0.125], finished=False)
    put(tmp_path / "s" / "d-00000004", "epsilon=8", "seed=2", accuracies=[], error="no such data")
    put(tmp_path / "s" / "e-00000005", "dp=none", "seed=0", loss=float("inf"))
    return tmp_path / "s"


def states(folder) -> dict[str, str]:
    return {run.folder.name[0]: runs.state_of(run) for run in reader.look([folder])}


def test_every_run_is_found_as_it_ended(study):
    assert states(study) == {
        "a": "finished",
        "b": "finished",
        "c": "unfinished 1/60",
        "d": "failed 0/60",
        "e": "diverged",
    }
    with alone(study / "c-00000003"):
        assert states(study)["c"] == "running 1/60"
    (study / "a-00000001" / "summary.json").write_text("{")
    assert states(study)["a"] == "damaged" and states(study)["c"] == "unfinished 1/60"
    finished, others = reader.find([study])
    assert [run.folder.name[0] for run in finished] == ["b", "e"] and others == 2


def test_asking_whether_a_run_goes_on_makes_nothing_and_stops_nothing(tmp_path):
    assert not held(tmp_path) and not list(tmp_path.iterdir())
    with alone(tmp_path):
        assert held(tmp_path)
    assert not held(tmp_path)
    with open(tmp_path / LOCK) as file:  # somebody asks just when a run begins
        fcntl.flock(file, fcntl.LOCK_SH)
        threading.Timer(0.2, lambda: fcntl.flock(file, fcntl.LOCK_UN)).start()
        with alone(tmp_path):
            pass


def test_what_has_not_changed_is_not_read_again(study, monkeypatch):
    memory: reader.Memory = {}
    before = reader.look([study], memory)
    monkeypatch.setattr(reader, "read", lambda folder: pytest.fail(f"read {folder} again"))
    assert reader.look([study], memory) == before
    monkeypatch.undo()
    (study / "c-00000003" / "metrics.csv").write_text("round,accuracy_global\n1,0.5\n2,0.625\n")
    (again,) = [run for run in reader.look([study], memory) if run.folder.name[0] == "c"]
    assert again.column("accuracy_global") == {1: 0.5, 2: 0.625}


def test_the_list_says_what_differs(fedpriv, study):
    shown = fedpriv("runs", "s")
    assert shown.code == 0 and "5 runs: 3 finished, 1 failed, 1 unfinished" in shown.out
    line = next(line for line in shown.out.splitlines() if "00000002" in line)
    assert "epsilon=8 dp_variant=ldp seed=0" in line and "0.875" in line and "4.0" in line
    without = next(line for line in shown.out.splitlines() if "00000005" in line)
    assert "epsilon=" not in without, "without privacy there is no epsilon to tell apart"
    assert "failed: 00000004: no such data" in shown.out


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (["epsilon=2"], "a"),
        (["epsilon=2,8.0", "state=finished"], "ab"),
        (["dp=none"], "e"),
        (["seed=1"], "c"),
        (["state=failed,unfinished"], "cd"),
        (["accuracy_global_last=0.875"], "b"),
    ],
)
def test_filters(study, told, expected):
    filters = selecting.sort_out(told).filters
    assert "".join(r.folder.name[0] for r in selecting.chosen(reader.look([study]), filters)) == expected


def test_a_key_no_run_has_is_refused(fedpriv, study):
    wrong = fedpriv("runs", "s", "epsilom=2")
    assert wrong.code == 2 and wrong.err.count("\n") == 1 and "did you mean epsilon?" in wrong.err
    assert fedpriv("runs", "nowhere").code == 2
    assert "no such option" in fedpriv("runs", "s", "--sorted").err
    assert "needs 2 values" in fedpriv("runs", "s", "--diff", "a").err


@pytest.mark.parametrize(
    ("key", "expected"), [("accuracy", "c"), ("-accuracy", "d"), ("-seed", "d"), ("epsilon", "a")]
)
def test_sorting(study, key, expected):
    assert runs.ordered(reader.look([study]), key)[0].folder.name[0] == expected


def test_csv_has_every_key_and_number(fedpriv, study):
    rows = list(csv.DictReader(io.StringIO(fedpriv("runs", "s", "--csv", "state=finished").out)))
    assert [(r["epsilon"], r["accuracy_global_last"], r["diverged"]) for r in rows] == [
        ("2.0", "0.75", "0"),
        ("8.0", "0.875", "0"),
        ("", "0.5", "1"),
    ]


def test_two_runs_are_compared(fedpriv, study):
    shown = fedpriv("runs", "s", "--diff", "00000001", "s/b-00000002").out
    assert "epsilon" in shown and "0.875" in shown and "clients" not in shown
    one, other = (runs.named(name, reader.look([study])) for name in ("00000001", "00000002"))
    assert runs.difference(one, other) == [("epsilon", "2", "8")]
    assert "no run has this name" in fedpriv("runs", "s", "--diff", "x", "y").err


# -- cleaning up


def test_cleaning_asks_and_takes_only_what_is_meant(fedpriv, study, monkeypatch):
    refused = fedpriv("runs", "s", "--clean", "unfinished")
    assert refused.code == 2 and "--yes" in refused.err and (study / "c-00000003").exists()
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: "n")
    assert "nothing was deleted" in fedpriv("runs", "s", "--clean", "unfinished").out
    monkeypatch.setattr("builtins.input", lambda question: "y")
    assert "1 runs deleted" in fedpriv("runs", "s", "--clean", "unfinished").out
    assert sorted(f.name[0] for f in study.iterdir()) == ["a", "b", "d", "e"]
    assert "there is none" in fedpriv("runs", "s", "--clean", "unfinished").out
    assert fedpriv("runs", "s", "--clean", "everything").code == 2


def test_what_is_running_is_never_deleted(fedpriv, study):
    with alone(study / "c-00000003"):
        assert "there is none" in fedpriv("runs", "s", "--clean", "unfinished", "--yes").out
        with pytest.raises(UserError, match="being written"):
            runs.delete(study / "c-00000003")
    assert (study / "c-00000003" / "metrics.csv").exists()


def test_old_runs_go_by_age(fedpriv, study):
    then = time.time() - 31 * 86400
    os.utime(study / "a-00000001" / "summary.json", (then, then))
    assert "1 runs deleted" in fedpriv("runs", "s", "--clean", "older-than", "30d", "--yes").out
    assert not (study / "a-00000001").exists() and (study / "b-00000002").exists()


def test_a_folder_with_other_runs_below_it_is_kept(fedpriv, study):
    put(study / "c-00000003" / "below", "epsilon=4")
    done = fedpriv("runs", "s", "--clean", "unfinished", "--yes")
    assert done.code == 1 and "other runs are in folders below it" in done.out
    assert (study / "c-00000003" / "below" / "summary.json").exists()


# -- runs that fail


def test_a_failed_run_leaves_its_reason_until_it_is_run_again(tmp_path, monkeypatch):
    cfg, trainer = package.compose(*SMALL, "dp=none"), "fedpriv.rounds.trainer.Trainer.round"

    def broken(self):
        raise UserError("the power is out")

    with monkeypatch.context() as patch:
        patch.setattr(trainer, broken)
        with pytest.raises(UserError, match="power"):
            execute(cfg, tmp_path / "run", "")
    (run,) = reader.look([tmp_path])
    assert (run.state, run.error, run.values["clients"]) == ("failed", "the power is out", 4)
    execute(cfg, tmp_path / "run", "")
    (run,) = reader.look([tmp_path])
    assert run.state == "finished" and not (tmp_path / "run" / reader.STATUS).exists()


def test_a_run_that_broke_while_it_was_built_is_listed_with_its_config(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("out of memory")

    monkeypatch.setattr("fedpriv.rounds.trainer.Trainer.__init__", broken)
    with pytest.raises(RuntimeError):
        execute(package.compose(*SMALL, "dp=none"), tmp_path / "run", "")
    (run,) = reader.look([tmp_path])
    assert run.state == "failed" and "out of memory" in run.error and run.values["clients"] == 4


def test_somebody_elses_folder_is_not_marked(tmp_path):
    put(tmp_path / "run", "dp=none")
    (tmp_path / "run" / "summary.json").write_text('{"identity": "another"}')
    with pytest.raises(UserError, match="another config"):
        execute(package.compose(*SMALL), tmp_path / "run", "")
    assert not (tmp_path / "run" / reader.STATUS).exists()


def test_the_python_door_reads_the_same(study, monkeypatch):
    frame = package.results(study)
    assert sorted(frame["accuracy_global_last"]) == [0.5, 0.75, 0.875] and set(frame["state"]) == {"finished"}
    every = package.results(study, unfinished=True)
    assert sorted(every["state"]) == ["failed", "finished", "finished", "finished", "unfinished"]
    assert package.results(study, "epsilon=2")["seed"].tolist() == [0]
