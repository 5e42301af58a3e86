"""The command line from end to end: results, repeatability, survival, sweeps, refusals."""

import csv
import json
import os
import secrets
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import torch

from fedpriv.building import build
from fedpriv.engine.fast import FastEngine
from fedpriv.session import checkpoint
from fedpriv.session.recorder import CLIENTS, METRICS
from tests.conftest import SMALL

FILES = {
    "config.yaml", "metrics.csv", "clients.csv", "summary.json", "privacy.json", "checkpoint.pt",
    "curves.png", "partition.png", "partition.csv",
}  # fmt: skip


def rows(folder, name="metrics.csv", drop=("seconds",)):
    with open(folder / name, newline="") as file:
        return [{k: v for k, v in r.items() if k not in drop} for r in csv.DictReader(file)]


def test_a_run_leaves_everything_it_promises(fedpriv, one_run):
    done = fedpriv("run", *SMALL, "epsilon=4")
    assert done.code == 0 and "(4, 0.001)-DP for each client, one sample" in done.out
    folder = one_run()
    assert {f.name for f in folder.iterdir()} >= FILES and str(folder) in done.out.replace("\n", "")
    metrics = pd.read_csv(folder / "metrics.csv")
    assert tuple(metrics.columns) == METRICS and metrics["round"].tolist() == [1, 2, 3]
    assert metrics["epsilon_max"].iloc[-1] == pytest.approx(4, rel=0.01)
    weights = 64 * 8 + 8 * 10
    assert (metrics["uplink_bytes"] == 4 * 4 * weights).all()
    clients = pd.read_csv(folder / "clients.csv")
    assert tuple(clients.columns) == CLIENTS and len(clients) == 3 * 4
    summary = json.loads((folder / "summary.json").read_text())
    expected = {f"accuracy_{v}_{k}" for v in ("local", "global") for k in ("best", "last", "mean_last10")}
    expected |= {
        "rounds",
        "epsilon_spent",
        "epsilon_provable",
        "emd",
        "uplink_bytes",
        "seconds",
        "identity",
        "data",
        "code",
    }
    assert expected | {"git_revision", "versions"} <= set(summary)
    assert summary["accuracy_local_best"] == metrics["accuracy_local"].max()
    privacy = json.loads((folder / "privacy.json").read_text())
    assert privacy["unit"] == "sample" and privacy["noise_seeded"] is True and not privacy["no_guarantee"]
    assert privacy["clients"]["participations"] == [3, 3, 3, 3]
    assert all(e <= 4 for e in privacy["clients"]["epsilon_provable"]) and privacy["not_covered"]


def test_one_seed_gives_equal_bytes_and_another_does_not(fedpriv, tmp_path):
    for name, more in (("a", ()), ("b", ("threads=3",)), ("c", ("seed=1",))):
        assert fedpriv("run", *SMALL[:-1], *more, f"hydra.run.dir={name}").code == 0
    a, b, c = (rows(tmp_path / n) for n in "abc")
    assert a == b and a != c
    assert (tmp_path / "a/clients.csv").read_bytes() == (tmp_path / "b/clients.csv").read_bytes()


def test_the_loop_engine_tells_the_same_story(fedpriv, tmp_path):
    for engine in ("fast", "loop"):
        assert (
            fedpriv("run", *SMALL, f"engine={engine}", "dtype=float64", f"hydra.run.dir={engine}").code == 0
        )
    fast, loop = (pd.read_csv(tmp_path / e / "metrics.csv").drop(columns="seconds") for e in ("fast", "loop"))
    pd.testing.assert_frame_equal(fast, loop, rtol=1e-4)


@pytest.mark.parametrize(
    "method",
    [
        ("dp=none",),
        ("dp=none", "model.norm=batch"),
        ("dp=cdp", "sample_rate=0.5"),
        ("dp=cdp", "dp.bound=adaptive"),
        ("dp=cdp", "dp.bound=paper", "agg=mean"),
        ("dp=cdp", "dp.clip=step", "agg=size"),
        ("agg=size", "partition=dirichlet", "partition.alpha=1"),
        ("local_steps=3",),
        ("algorithm.server_momentum=0.9", "momentum=0.5", "weight_decay=0.01"),
        ("accountant=prv", "rounds=2"),
        ("noise_seed=os",),
        ("model.norm=group", "model.sizes=[16]"),
    ],
)
def test_parts_compose(fedpriv, one_run, method):
    done = fedpriv("run", *SMALL, *method)
    assert done.code == 0, done.err
    assert len(rows(one_run())) >= 2


def test_changing_the_aggregator_changes_neither_batches_nor_partition(config, same_draws):
    one, other = (
        build(config(*SMALL, "partition=dirichlet", "partition.alpha=1", a)) for a in ("agg=mean", "agg=size")
    )
    assert all(np.array_equal(a, b) for a, b in zip(one.split.train, other.split.train, strict=True))
    first, second = one.trainer.round(), other.trainer.round()
    assert np.array_equal(first.train_loss, second.train_loss)
    assert not torch.equal(one.trainer.theta, other.trainer.theta)


# -- budgets


def test_clients_out_of_budget_opt_out_and_training_ends(fedpriv, one_run):
    done = fedpriv("run", *SMALL, "sample_rate=0.5", "rounds=8", "min_clients=2", "seed=4")
    assert done.code == 0
    metrics = pd.read_csv(one_run() / "metrics.csv")
    clients = pd.read_csv(one_run() / "clients.csv")
    joined = clients.groupby("client")["participated"].sum()
    assert joined.max() <= 4  # calibrated to half of eight rounds
    assert (clients["epsilon_spent"] <= clients["epsilon_budget"] * (1 + 1e-6)).all()
    privacy = json.loads((one_run() / "privacy.json").read_text())
    assert privacy["clients"]["participations"] == joined.tolist()
    if len(metrics) < 8:
        assert "training ended after" in done.err and "min_clients=2" in done.err
    assert len(metrics) < 8, "with this seed a client is drawn often enough to run out early"


def test_a_large_delta_is_warned_about(fedpriv):
    done = fedpriv("run", *SMALL, "delta=0.1")
    assert done.code == 0 and "warning: delta=0.1 is not below 1/" in done.err


# -- survival


def start(folder, *more: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "fedpriv", "run", *SMALL, "rounds=150", "checkpoint.every=5"]
    command += [*more, f"hydra.run.dir={folder}"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_rounds(folder, count: int, process: subprocess.Popen) -> None:
    for _ in range(6000):  # five minutes, for a machine that is busy
        if (folder / "metrics.csv").exists() and len(
            (folder / "metrics.csv").read_text().splitlines()
        ) > count:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    raise AssertionError("the run did not get going")


def test_a_killed_run_continues_and_ends_with_the_same_numbers(tmp_path, fedpriv):
    process = start(tmp_path / "killed")
    wait_for_rounds(tmp_path / "killed", 12, process)
    process.kill()
    process.wait()
    # What a kill in the middle of a write leaves behind: half a line.
    with open(tmp_path / "killed" / "metrics.csv", "a") as file:
        file.write("77,0.5,0.")
    many = (*SMALL, "rounds=150", "checkpoint.every=5")
    done = fedpriv("run", *many, f"hydra.run.dir={tmp_path / 'killed'}")
    assert done.code == 0 and "continuing after round" in done.out
    assert fedpriv("run", *many, f"hydra.run.dir={tmp_path / 'whole'}").code == 0
    killed, whole = rows(tmp_path / "killed"), rows(tmp_path / "whole")
    assert [int(r["round"]) for r in killed] == list(range(1, 151))
    assert killed == whole
    for name in ("clients.csv", "partition.csv"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    one, other = (json.loads((tmp_path / f / "summary.json").read_text()) for f in ("killed", "whole"))
    for summary in (one, other):
        del summary["seconds"], summary["peak_memory_mb"]  # of the process, not of the run
    assert one == other


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path):
    process = start(tmp_path / "run", "checkpoint.every=0")
    wait_for_rounds(tmp_path / "run", 3, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "the same command continues" in err and "Traceback" not in err
    state, problems = checkpoint.load(tmp_path / "run")
    assert state["next_round"] == len(rows(tmp_path / "run")) and not problems


def test_a_damaged_checkpoint_is_named_and_the_one_before_used(fedpriv, tmp_path, monkeypatch):
    whole = fedpriv("run", *SMALL, "rounds=6", "hydra.run.dir=whole")
    assert whole.code == 0
    calls = 0
    original = FastEngine.train

    def dies_in_round_5(self, *given):
        nonlocal calls
        calls += 1
        if calls == 5:
            raise OSError("power cut")
        return original(self, *given)

    monkeypatch.setattr(FastEngine, "train", dies_in_round_5)
    broken = fedpriv("run", *SMALL, "rounds=6", "checkpoint.every=2", "hydra.run.dir=broken")
    assert broken.code == 1 and "power cut" in broken.err
    path = tmp_path / "broken" / checkpoint.NAME
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    monkeypatch.setattr(FastEngine, "train", original)
    done = fedpriv("run", *SMALL, "rounds=6", "checkpoint.every=2", "hydra.run.dir=broken")
    assert done.code == 0 and f"{checkpoint.NAME} is damaged" in done.err.replace("\n", "")
    assert "continuing after round 2" in done.out
    assert rows(tmp_path / "broken") == rows(tmp_path / "whole")


def test_a_finished_run_is_shown_and_not_repeated(fedpriv, one_run):
    assert fedpriv("run", *SMALL).code == 0
    before = (one_run() / "metrics.csv").read_bytes()
    again = fedpriv("run", *SMALL)
    assert again.code == 0 and "already done" in again.out
    assert (one_run() / "metrics.csv").read_bytes() == before
    assert "already done" not in fedpriv("run", *SMALL, "resume=false").out


def test_a_folder_of_another_run_is_not_overwritten(fedpriv):
    assert fedpriv("run", *SMALL, "hydra.run.dir=here").code == 0
    refused = fedpriv("run", *SMALL, "seed=1", "hydra.run.dir=here")
    assert refused.code == 2 and "holds a run with another config" in refused.err


def secrets_of(monkeypatch) -> list[bytes]:
    """The keys that runs get from the system from now on."""
    made, draw = [], secrets.token_bytes
    monkeypatch.setattr(
        "fedpriv.session.training.secrets.token_bytes", lambda n: made.append(draw(n)) or made[-1]
    )
    return made


def test_a_secret_key_is_kept_so_that_a_continued_run_releases_nothing_twice(fedpriv, tmp_path, monkeypatch):
    """Noise, batches and sampling follow the key: other runs differ, this one continued does not."""
    secret = (*SMALL, "rounds=6", "sample_rate=0.5", "noise_seed=os", "checkpoint.every=2")
    key = secrets_of(monkeypatch)
    assert fedpriv("run", *secret, "hydra.run.dir=a").code == 0
    assert fedpriv("run", *secret, "hydra.run.dir=b").code == 0
    first, other = (rows(tmp_path / f, "clients.csv") for f in ("a", "b"))
    assert [r["participated"] for r in first] != [r["participated"] for r in other]
    whole = rows(tmp_path / "a")
    (tmp_path / "a/summary.json").unlink()
    (tmp_path / "a/noise.key").write_bytes(key[0])
    (tmp_path / "a" / checkpoint.NAME).unlink()  # as if killed in round 6
    done = fedpriv("run", *secret, "hydra.run.dir=a")
    assert done.code == 0 and "continuing after round 4" in done.out
    assert rows(tmp_path / "a") == whole
    assert "not for a release" not in done.out


def test_two_processes_do_not_share_a_folder(fedpriv, tmp_path):
    process = start(tmp_path / "run")
    wait_for_rounds(tmp_path / "run", 1, process)
    process.send_signal(signal.SIGSTOP)  # it keeps the folder, however long we take to ask for it
    refused = fedpriv("run", *SMALL, "rounds=150", "checkpoint.every=5", f"hydra.run.dir={tmp_path / 'run'}")
    process.kill()
    process.wait()
    assert refused.code == 2 and "is being written by another run" in refused.err


def test_divergence_is_shown(fedpriv, one_run):
    done = fedpriv("run", *SMALL, "dp=none", "lr=1e6", "weight_decay=1e6", "model.activation=relu")
    assert done.code == 0 and "the model diverged" in done.err
    assert rows(one_run())[-1]["loss_global"] == "inf"


# -- sweeps


def test_a_failed_cell_is_reported_and_does_not_stop_the_others(fedpriv, tmp_path):
    done = fedpriv("run", "-m", *SMALL, "partition.classes_per_client=11,2", "epsilon=2,4")
    assert done.code == 1
    assert "2 of 4 cells done" in done.out and done.out.count("failed: ") >= 4 and "Traceback" not in done.err
    finished = list((tmp_path / "outputs" / "runs").glob("*/summary.json"))
    assert len(finished) == 2


@pytest.mark.parametrize(
    "bad", ["epsilon=2,-1", "sample_rate=1,2 agg=mean,size", "rounds=1,x", "device=cpu,tpu"]
)
def test_a_value_that_no_cell_can_have_is_refused_before_the_first(fedpriv, tmp_path, bad):
    done = fedpriv("run", "-m", *SMALL, *bad.split())
    assert done.code == 2 and done.err.count("\n") == 1 and bad.split("=")[0] in done.err
    assert not (tmp_path / "outputs").exists()


def test_a_sweep_takes_short_names_and_finds_finished_cells(fedpriv, tmp_path):
    assert fedpriv("run", *SMALL, "dp=none,ldp", "-m", "agg=mean,size").code == 0
    assert len(list((tmp_path / "outputs" / "runs").glob("*/summary.json"))) == 4
    assert fedpriv("run", *SMALL, "dp=none", "agg=size").out.count("already done") == 1


def test_ctrl_c_ends_a_whole_sweep(tmp_path):
    command = [sys.executable, "-m", "fedpriv", "run", "-m", *SMALL, "rounds=150", "seed=0,1"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for _ in range(6000):  # five minutes, for a machine that is busy
        started = list((tmp_path / "outputs" / "runs").glob("*/metrics.csv"))
        if started and len(started[0].read_text().splitlines()) > 3:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "the same command continues" in err and "Traceback" not in err
    assert len(list((tmp_path / "outputs" / "runs").glob("*/metrics.csv"))) == 1


# -- refusals: one line, exit code 2, no traceback, nothing trained


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "clents=3"], ["clents=3", "clients"]),
        (["run", "clients=many"], ["clients=many", "whole number"]),
        (["run", "agg=median"], ["aggregator=median", "choose one of mean"]),
        (["run", "model.nrom=group"], ["model.nrom=group", "model.norm"]),
        (["run", "-m", "agg=mean,median"], ["aggregator=median", "choose one of mean"]),
        (["run", "model.norm=batch"], ["model.norm=batch", "model.norm=group"]),
        (["run", "partition.classes_per_client=11"], ["partition.classes_per_client", "11", "10"]),
        (["run", "clients=100000"], ["clients"]),
        (["run", "device=cuda"], ["device=cuda", "device=cpu"]),
        (["run", "model=lstm"], ["model=lstm", "dataset=imdb"]),
        (["run", "dataset=features"], ["dataset.path"]),
        (["run", "x=[1"], ["x=[1"]),
        (["run", "threads=100000"], ["threads=100000", "at most 1,024"]),
        (["run", "model.sizes=[0]"], ["model", "sizes=[0]"]),
        (["run", "hydra.run.dir=/proc/nowhere"], ["/proc/nowhere", "hydra.run.dir"]),
        (["privacy", "clients=0"], ["clients=0"]),
        (["list", "models"], ["models", "model"]),
        (["run", "--foo"], ["--foo: no such option"]),
        (["data", "fetch", "nist"], ["nist", "mnist"]),
        (["data"], ["list|fetch|verify"]),
        (["train"], ["train", "run"]),
    ],
)
def test_mistakes(fedpriv, tmp_path, arguments, words):
    if "device=cuda" in arguments and torch.cuda.is_available():
        arguments, words = ["run", "device=mps"], ["device=mps"]
    done = fedpriv(*arguments)
    lines = [line for line in done.err.splitlines() if line]
    assert done.code == 2 and len(lines) == 1 and lines[0].startswith("error: "), done.err
    assert all(word in lines[0] for word in words), lines[0]
    assert not list(tmp_path.rglob("metrics.csv"))


# -- the other commands, and the rest of Hydra


def test_list_names_every_option_with_its_paper(fedpriv):
    out = fedpriv("list").out
    for word in ("resnet18", "ldp", "cdp", "dirichlet", "PrivateFL", "PFA", "LDP-FL", "PLDP-FL", "FedPD"):
        assert word in out
    assert "fedavg" not in fedpriv("list", "model").out


def test_privacy_forecasts_what_the_run_then_spends(fedpriv, one_run):
    forecast = fedpriv("privacy", *SMALL, "epsilon=3", "dp=ldp")
    assert forecast.code == 0 and "(3, 0.001)-DP" in forecast.out and "noise multiplier" in forecast.out
    assert fedpriv("run", *SMALL, "epsilon=3").code == 0
    privacy = json.loads((one_run() / "privacy.json").read_text())
    sigma = privacy["clients"]["noise_multiplier"]
    assert f"{max(sigma):.4g}" in forecast.out
    median = fedpriv("privacy", *SMALL, "dp=cdp", "dp.bound=paper")
    assert "nothing is provable" in median.out and "flaw" in median.out
    assert "no differential privacy" in fedpriv("privacy", *SMALL, "dp=none").out


def test_hydra_stays_usable(fedpriv):
    shown = fedpriv("run", "--cfg", "job", "dp=cdp", "clients=7")
    assert shown.code == 0 and "clients: 7" in shown.out and "fedpriv.mechanisms.cdp.CDP" in shown.out
    text = fedpriv("run", "--help").out
    assert "checkpoint.every" in text
    assert "dp_variant: cdp, " in text and ", pldp_gaussian, pldp_sign\n" in text
    assert "fedpriv privacy" in fedpriv("--help").out


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fedpriv ", "evaluate reproduce table report figure privacy"),
        ("fedpriv run dataset=mn", "dataset=mnist"),
        ("fedpriv run dp=", "dp=cdp"),
        ("fedpriv run clie", "clients="),
    ],
)
def test_tab_completion(fedpriv, monkeypatch, line, expected):
    monkeypatch.setenv("COMP_LINE", line)
    assert expected in fedpriv("-sc", "query=bash").out


def test_an_aggregator_in_one_file_of_ones_own(fedpriv, tmp_path, one_run):
    (tmp_path / "trimmed.py").write_text(
        "from fedpriv.aggregators.base import Aggregator\n\n\n"
        "class TrimmedMean(Aggregator):\n"
        "    def __init__(self, *, trim: int = 1):\n        self.trim = trim\n\n"
        "    def __call__(self, uploads, round_):\n"
        "        return uploads.sort(0).values[self.trim : len(uploads) - self.trim].mean(0)\n"
    )
    done = fedpriv("run", *SMALL, "aggregator._target_=trimmed.TrimmedMean", "+aggregator.trim=1")
    assert done.code == 0, done.err
    refused = fedpriv("run", *SMALL, "dp=cdp", "aggregator._target_=trimmed.TrimmedMean")
    assert refused.code == 2 and "does not bound one client's weight" in refused.err


def test_wandb_gets_the_same_values_and_failing_it_loses_nothing(fedpriv, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("fedpriv.loggers.wandb_logger.WandbLogger.start", lambda self, **k: seen.append(k))
    monkeypatch.setattr("fedpriv.loggers.wandb_logger.WandbLogger.log", lambda self, row: seen.append(row))
    monkeypatch.setattr(
        "fedpriv.loggers.wandb_logger.WandbLogger.finish", lambda self, s, t: seen.append((s, t))
    )
    assert fedpriv("run", *SMALL, "logger=wandb", "hydra.run.dir=a").code == 0
    begun, *logged, (summary, tables) = seen
    assert begun["config"]["clients"] == 4 and [r["round"] for r in logged] == [1, 2, 3]
    assert logged[-1]["accuracy_local"] == summary["accuracy_local_last"] and "clients" in tables
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert fedpriv("run", *SMALL, "logger=wandb", "hydra.run.dir=b").code == 0
    assert rows(tmp_path / "a") == rows(tmp_path / "b")


@pytest.mark.skipif(not os.environ.get("FEDPRIV_DATA"), reason="needs the real MNIST below FEDPRIV_DATA")
def test_real_mnist_learns_a_little_in_three_rounds(fedpriv, one_run):
    done = fedpriv("run", "dataset=mnist", "clients=50", "rounds=3", "model=logreg", "dp=none")
    assert done.code == 0, done.err
    assert float(rows(one_run())[-1]["accuracy_global"]) > 0.6


@pytest.mark.long
def test_the_default_reaches_85_percent(fedpriv, one_run):
    assert fedpriv("run").code == 0
    assert json.loads((one_run() / "summary.json").read_text())["accuracy_local_last"] >= 0.85
