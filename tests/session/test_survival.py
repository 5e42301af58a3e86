"""Kills, damage, power cuts and growth: a run ends with the right numbers or with one line."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import OmegaConf
from opacus.accountants import PRVAccountant
from torch.utils._python_dispatch import TorchDispatchMode

from fedpriv import compose, files
from fedpriv.building import build
from fedpriv.commands import sweeping
from fedpriv.errors import UserError
from fedpriv.partitions import picture
from fedpriv.privacy import accountants, events
from fedpriv.rounds.trainer import Trainer
from fedpriv.session import checkpoint, pictures, recorder
from fedpriv.session.claim import FORGET, IDENTITY
from fedpriv.session.execution import execute
from fedpriv.session.growing import Growing
from tests.conftest import SMALL

OWN = (*SMALL, "rounds=4", "checkpoint.every=1", "sample_rate=0.5", "evaluate_every=2", "seed=5")


def composed(*more: str):
    return compose(*OWN, *more)


def numbers(folder: Path) -> tuple:
    """All that a run says, without what depends on the clock or the process."""
    with open(folder / "metrics.csv", newline="") as file:
        rows = [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]
    summary = json.loads((folder / "summary.json").read_text())
    for name in ("seconds", "peak_memory_mb", "warnings"):
        del summary[name]
    return rows, (folder / "clients.csv").read_bytes(), summary


class Dies(BaseException):
    """As a kill does: nothing gets to run after it."""


def dying(function: Callable, call: int) -> Callable:
    count = 0

    def wrapped(*arguments, **more):
        nonlocal count
        count += 1
        if count == call:
            raise Dies
        return function(*arguments, **more)

    return wrapped


@pytest.fixture(scope="module", autouse=True)
def without_pictures() -> Iterator[None]:
    """They take longest and say nothing here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(picture, "save", lambda *_: None)
        patch.setattr(pictures, "curves", lambda *_: None)
        patch.setattr(recorder, "git_revision", lambda: None)
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> SimpleNamespace:
    """A whole run, the same one killed in round 4, and the whole run of another config."""
    place = tmp_path_factory.mktemp("runs")
    execute(composed(), place / "whole", "")
    execute(composed("seed=6"), place / "other", "")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Dies):
        patch.setattr(Trainer, "round", dying(Trainer.round, 4))
        execute(composed(), place / "killed", "")
    return SimpleNamespace(
        whole=place / "whole",
        killed=place / "killed",
        right=numbers(place / "whole"),
        of_other=numbers(place / "other"),
    )


@pytest.fixture
def killed(runs, tmp_path) -> Path:
    return Path(shutil.copytree(runs.killed, tmp_path / "run"))


# -- resume=false


@pytest.mark.long
def test_a_kill_while_a_run_is_forgotten_leaves_no_other_runs_numbers(runs, tmp_path, monkeypatch):
    """At every step: the old run's command ends with its numbers, the new one's with a line."""
    original, steps = Path.unlink, sum(map(len, FORGET))
    for source, call in [(runs.killed, n + 1) for n in range(steps)] + [(runs.whole, 1), (runs.whole, 2)]:
        folder = Path(shutil.copytree(source, tmp_path / f"{source.name}-{call}"))
        with monkeypatch.context() as patch, pytest.raises(Dies):
            patch.setattr(Path, "unlink", dying(original, call))
            execute(composed("seed=6", "resume=false"), folder, "")
        with pytest.raises(UserError, match="another config"):
            execute(composed("seed=6"), folder, "")
        execute(composed(), folder, "")
        assert numbers(folder) == runs.right
    execute(composed("seed=6", "resume=false"), folder, "")
    assert numbers(folder) == runs.of_other


def test_another_runs_checkpoint_or_summary_is_refused(runs, killed):
    (killed / IDENTITY).unlink()
    for _ in range(2):  # a refusal claims nothing
        with pytest.raises(UserError, match="another config"):
            execute(composed("seed=6"), killed, "")
    execute(composed(), killed, "")
    assert numbers(killed) == runs.right
    (killed / IDENTITY).unlink()
    with pytest.raises(UserError, match="another config"):
        execute(composed("seed=6"), killed, "")


# -- the tables


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def edit(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"\n2,", b"\n1,", 1))


def double(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], lines[1], *lines[2:]]))


def swap(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], *reversed(lines[1:])]))


DAMAGES = [Path.unlink, cut, edit, double, swap, lambda path: path.write_bytes(b"")]


@pytest.mark.parametrize("damage", DAMAGES)
def test_metrics_that_were_changed_are_made_again(runs, killed, damage, capfd):
    damage(killed / "metrics.csv")
    execute(composed(), killed, "")
    assert numbers(killed) == runs.right and "made again from the checkpoint" in capfd.readouterr().err


@pytest.mark.parametrize("damage", DAMAGES)
def test_clients_that_were_changed_are_refused(killed, damage):
    damage(killed / "clients.csv")
    with pytest.raises(UserError, match=r"clients.csv: was removed or changed .* resume=false"):
        execute(composed(), killed, "")


def test_what_a_kill_leaves_behind_the_checkpoint_is_dropped(runs, killed):
    for name in ("metrics.csv", "clients.csv"):
        with open(killed / name, "a") as file:
            file.write("4,0.5,0.5\n5,0.")
    execute(composed(), killed, "")
    assert numbers(killed) == runs.right


def during(monkeypatch, act: Callable[[], object]) -> None:
    """Do something before round 3."""
    original = Trainer.round

    def round_(self):
        if self.next_round == 2:
            act()
        return original(self)

    monkeypatch.setattr(Trainer, "round", round_)


@pytest.mark.parametrize("name", ["metrics.csv", "clients.csv"])
def test_a_table_removed_during_the_run_is_put_back(runs, tmp_path, monkeypatch, capfd, name):
    folder = tmp_path / "run"
    during(monkeypatch, (folder / name).unlink)
    execute(composed(), folder, "")
    assert numbers(folder) == runs.right and "was removed during the run" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["metrics.csv", "clients.csv"])
@pytest.mark.parametrize("damage", [cut, edit])
def test_a_table_changed_during_the_run_is_refused(tmp_path, monkeypatch, name, damage):
    folder = tmp_path / "run"
    during(monkeypatch, lambda: damage(folder / name))
    with pytest.raises(UserError, match=f"{name}: was removed or changed"):
        execute(composed(), folder, "")
    assert not (folder / "summary.json").exists()


@pytest.mark.parametrize("damage", DAMAGES)
def test_another_target_is_not_read_from_changed_metrics(runs, tmp_path, damage):
    folder = Path(shutil.copytree(runs.whole, tmp_path / "run"))
    damage(folder / "metrics.csv")
    with pytest.raises(UserError, match="once each"):
        execute(composed("target=0.05"), folder, "")


@pytest.mark.parametrize("name", ["summary.json", "privacy.json"])
def test_damaged_results_are_one_line(runs, tmp_path, name):
    folder = Path(shutil.copytree(runs.whole, tmp_path / "run"))
    (folder / name).write_text('{"rounds": 4,')
    with pytest.raises(UserError, match=f"{name} is missing or damaged"):
        execute(composed(), folder, "")


# -- power cuts


class Disk:
    """What a power cut would leave of a folder: names as of its last sync, contents as of theirs."""

    def __init__(self, folder: Path):
        self.folder, self.contents, self.names = folder, {}, {}
        self.left: list[dict[str, bytes]] = []  # after every sync
        self._fsync = os.fsync

    def fsync(self, handle: int) -> None:
        self._fsync(handle)
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if path == self.folder:
            self.names = {f.name: f.stat().st_ino for f in path.iterdir() if f.is_file()}
        elif path.parent == self.folder:
            self.contents[os.fstat(handle).st_ino] = path.read_bytes()
        else:
            return
        self.keep(self.names)  # names come late
        self.keep({f.name: f.stat().st_ino for f in self.folder.iterdir() if f.is_file()})  # or early

    def keep(self, names: dict[str, int]) -> None:
        found = {name: self.contents.get(inode, b"") for name, inode in names.items()}
        if found not in self.left:
            self.left.append(found)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs the names of open files")
def test_after_a_power_cut_at_any_sync_the_run_ends_with_the_same_numbers(runs, tmp_path, monkeypatch):
    disk = Disk(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", disk.fsync)
        execute(composed(), disk.folder, "")
    assert {"summary.json", "metrics.csv", "clients.csv", checkpoint.NAME} <= set(disk.left[-1])
    continued = 0
    for number, content in enumerate(disk.left[::3] + disk.left[-1:]):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, data in content.items():
            (folder / name).write_bytes(data)
        continued += checkpoint.load(folder)[0] is not None
        execute(composed(), folder, "")
        assert numbers(folder) == runs.right
    assert continued > 3


def test_a_write_lasts_once_it_is_done(tmp_path, monkeypatch):
    """File first, then its name, then the folder: otherwise a power cut may keep a name of nothing."""
    order = []
    fsync, replace = os.fsync, os.replace

    def note_sync(handle):
        order.append("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append("name"), replace(a, b)))
    files.write_atomically(tmp_path / "a", b"content")
    assert order == ["file", "name", "folder"] and (tmp_path / "a").read_bytes() == b"content"
    files.remove(tmp_path, ["a", "b"])
    assert order[3:] == ["folder"] and not list(tmp_path.iterdir())


@pytest.mark.parametrize("what", ["fsync", "replace"])
def test_a_failed_write_leaves_the_file_that_was_there(tmp_path, monkeypatch, what):
    (tmp_path / "a").write_bytes(b"before")

    def fails(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, what, fails)
    with pytest.raises(OSError, match="No space"):
        files.write_atomically(tmp_path / "a", b"after")
    assert {f.name: f.read_bytes() for f in tmp_path.iterdir()} == {"a": b"before"}


# -- sweeps


def hydra_config(folder: Path, number: int = 0):
    job = {"num": number, "override_dirname": f"seed={number}"}
    return OmegaConf.create({"hydra": {"sweep": {"dir": str(folder)}, "job": job, "launcher": {}}})


def test_two_sweeps_in_one_folder_count_their_own_cells(tmp_path, capfd, monkeypatch):
    """With the clock set back meanwhile: it has no say."""
    summary = dict.fromkeys(("accuracy_local_last", "accuracy_global_last", "seconds", "epsilon_spent"), 1.0)
    one, other = sweeping.SweepReport(), sweeping.SweepReport()
    one.on_multirun_start(hydra_config(tmp_path))
    assert sweeping.failures, "no sweep is a success before its cells are counted"
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.setattr(sweeping, "summary", summary)  # as the job that ran in this process leaves it
    other.on_multirun_start(hydra_config(tmp_path))
    for report, number, result in ((one, 0, "no such data"), (other, 0, summary), (one, 1, summary)):
        config = hydra_config(tmp_path, number)
        report.on_job_start(config)
        report.on_job_end(config, JobReturn(status=JobStatus.COMPLETED, _return_value=result))
    one.on_job_start(hydra_config(tmp_path, 2))  # and was never heard of again
    other.on_multirun_end(hydra_config(tmp_path))
    assert sweeping.failures == 0 and "1 of 1 cells done" in capfd.readouterr().out
    one.on_multirun_end(hydra_config(tmp_path))
    shown = capfd.readouterr().out
    assert sweeping.failures == 2 and "1 of 3 cells done" in shown
    assert "failed: seed=0: no such data" in shown and "failed: seed=2: not finished" in shown
    assert not list(tmp_path.iterdir())


def test_a_worker_ends_when_its_parent_is_killed(tmp_path):
    child = "import time; from fedpriv.commands import sweeping; sweeping.end_with_parent();"
    child += "print('up', flush=True);"
    child += "time.sleep(99)"
    parent = (
        "import os, subprocess, sys; os.environ['FEDPRIV_PARENT'] = str(os.getpid());"
        f"c = subprocess.Popen([sys.executable, '-c', {child!r}]); print(c.pid, flush=True); c.wait()"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert int(process.stdout.readline())
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGKILL)
    assert process.stdout.read() == ""  # which ends when the worker, who has the other end too, is gone
    process.wait()


# -- growth


class Largest(TorchDispatchMode):
    """The largest tensor that is made meanwhile, in numbers."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result._base is None:
            self.numel = max(self.numel, result.numel())
        return result


def test_scaffold_does_not_hold_the_variates_twice(config):
    run = build(config(*SMALL, "dp=none", "clients=150", "algorithm=scaffold", "partition=iid")).trainer
    run.round()
    width = run.setting.layout.sent
    round_ = SimpleNamespace(clients=np.arange(150))
    with Largest() as seen:
        term = run.algorithm.correction(round_, run.store)
        some = term(run.theta.expand(3, -1), slice(5, 8))
    own = run.store["control"]
    assert torch.equal(some, run.algorithm._control - own[5:8])
    assert 0 < seen.numel <= 64 * width < own.numel()


def traced(action: Callable[[], object]) -> int:
    """The most memory Python takes meanwhile, in bytes."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_saving_and_checking_need_little_memory(tmp_path):
    state = {"values": torch.randn(1 << 22)}  # 16 MB
    assert traced(lambda: checkpoint.save(tmp_path, state)) < 4 << 20
    assert torch.equal(checkpoint.load(tmp_path)[0]["values"], state["values"])
    path = tmp_path / "clients.csv"
    growing = Growing(path, b"round,client\n")
    growing.add(b"1,1\n" * (1 << 22))
    length, digest = growing.length, growing.digest
    growing.close()
    assert length == 13 + (1 << 24)
    assert traced(lambda: Growing.going_on(path, length, digest)) < 4 << 20


def test_rows_of_clients_say_what_is_new(config, runs):
    """Sampled, evaluated every other round: a row for who took part, and for everyone when judged."""
    with open(runs.whole / "clients.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    trainer = build(composed()).trainer
    for number in range(4):
        result = trainer.round()
        of_round = [r for r in rows if r["round"] == str(number + 1)]
        joined = {int(r["client"]) for r in of_round if r["participated"] == "1"}
        assert joined == set(result.clients.tolist())
        assert len(of_round) == (4 if result.evaluation else len(joined))
        for row in of_round:
            k = int(row["client"])
            assert row["epsilon_spent"] == f"{result.epsilon[k]:.6g}" and row["epsilon_budget"] == "8"
            assert row["samples"] == str(trainer.setting.sizes[k])
            assert row["train_loss"] == (f"{result.train_loss[k]:.6g}" if k in joined else "")
            judged = result.evaluation and f"{result.evaluation.loss_of_clients[k]:.6g}"
            assert row["loss_local"] == (judged or "")


def test_prv_sizes_its_grid_from_one_curve_a_client(monkeypatch):
    """And says what Opacus says, which computes the curve anew for every count."""
    calls = []
    original = events.compute_rdp
    events._gaussian.cache_clear()
    monkeypatch.setattr(events, "compute_rdp", lambda **k: (calls.append(k), original(**k))[1])
    ours = accountants.create("prv")
    event = events.SampledGaussian(0.11, 1.3, 7)
    for count in (1, 2, 5):
        theirs = PRVAccountant()
        theirs.history = [(1.3, 0.11, 7 * count)]
        assert ours.epsilon((event,), count, 1e-3) == theirs.get_epsilon(delta=1e-3)
    assert len(calls) == 1
