"""A sweep that outgrows one machine: two cells on a local Ray, and on submitit's local executor."""

import csv
import os
import subprocess
import sys

import pytest

from tests.conftest import SMALL

LAUNCHERS = {
    "ray": ["+hydra.launcher.ray.init.num_cpus=2", "+hydra.launcher.ray.init.include_dashboard=false"],
    "submitit_local": ["hydra.launcher.timeout_min=5"],
}


def metrics(folder) -> dict[str, list[str]]:
    """metrics.csv of every run below a folder, without the times."""
    found = {}
    for path in folder.glob("*/metrics.csv"):
        with open(path, newline="") as file:
            found[path.parent.name] = [r["accuracy_global"] for r in csv.DictReader(file)]
    return found


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["ray", "submitit_local"])
def test_two_cells_elsewhere_are_the_same_two_cells(launcher, fedpriv, tmp_path):
    assert fedpriv("run", "-m", *SMALL, "seed=0,1", "hydra.sweep.dir=here").code == 0
    sweep = [*SMALL, "seed=0,1", "hydra.sweep.dir=there", f"hydra/launcher={launcher}", *LAUNCHERS[launcher]]
    done = subprocess.run(
        [sys.executable, "-m", "fedpriv", "run", "-m", *sweep],
        cwd=tmp_path,
        env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sweep: 2 of 2 cells done" in done.stdout
    here, there = metrics(tmp_path / "here"), metrics(tmp_path / "there")
    assert len(here) == 2 and here == there


def test_a_worker_elsewhere_finds_its_task_by_name():
    """What a launcher sends is the name of a function, not the function with all that it refers to."""
    import pickle

    from fedpriv.commands import job
    from fedpriv.reproduce import worker

    for function in (job.run, worker.run_cell):
        assert pickle.loads(pickle.dumps(function)) is function
