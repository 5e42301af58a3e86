"""Shared by all tests: a composed config, and the command line called in this process."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra.core.global_hydra import GlobalHydra

from fedpriv import compose
from fedpriv.commands import job, sweeping
from fedpriv.commands import main as cli
from fedpriv.errors import UserError

ROOT = Path(__file__).parents[1]
# A run of about a second: small model, few clients, few rounds.
SMALL = ("model.sizes=[8]", "clients=4", "rounds=3", "batch_size=64", "threads=1")


@pytest.fixture
def config() -> Callable:
    """Compose a config from overrides, short names included."""

    return compose


@pytest.fixture
def same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of one seed draw alike whatever their options, so that what else differs shows."""
    monkeypatch.setattr("fedpriv.building._noise_identity", lambda cfg, data: "same")


@pytest.fixture
def fedpriv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> Iterator[Callable]:
    """Call the command line in an empty folder; gives exit code, output and error output. As with a process
    of its own, nothing that was imported from the folder is left for the next test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def call(*arguments: str) -> SimpleNamespace:
        GlobalHydra.instance().clear()
        sweeping.failures, job.failure = 0, None
        monkeypatch.setattr(sys, "argv", ["fedpriv"])
        with pytest.raises(SystemExit) as stop:
            cli.main(arguments)
        out, err = capfd.readouterr()
        return SimpleNamespace(code=stop.value.code, out=out, err=err)

    yield call
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(f"{tmp_path}/"):
            del sys.modules[name]


@pytest.fixture
def one_run(tmp_path: Path) -> Callable:
    """The single run folder below the working folder."""

    def find() -> Path:
        (folder,) = [f for f in (tmp_path / "outputs" / "runs").iterdir() if f.is_dir()]
        return folder

    return find


def refused(make: Callable[[], object]) -> None:
    """A user's mistake: one line says what is wrong."""
    with pytest.raises(UserError) as problem:
        make()
    assert "\n" not in str(problem.value)


def only_committed_results(root: Path = ROOT) -> None:
    """For a test of the rows that are committed: skip it where a user has made results of his own."""
    command = ["git", "status", "--porcelain", "--", "outputs/reproduced"]
    state = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if state.returncode or state.stdout:
        pytest.skip("outputs/reproduced holds results that are not committed")
