"""Runs that are heavy enough to be divided into groups, and what they leave behind."""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedpriv import compose
from fedpriv.session import checkpoint, pictures, recorder, training
from fedpriv.session.execution import execute

OWN = ("model.sizes=[400]", "clients=12", "rounds=2", "threads=1", "partition=iid", "evaluate_every=2")
LARGE = "model.sizes=[1600]"  # so large that messages are added up in blocks
CASES = {
    "ldp": ("dp=ldp", "noise_seed=os", LARGE),
    "cdp": ("dp=cdp", "dp.bound=adaptive", "agg=size", "partition=dirichlet", "algorithm=ppsgd", LARGE),
    "ddp": ("dp=ddp", "dp.bits=20"),
    "pfa_plus": ("agg=pfa_plus", "upload=projected", "budget=mixgauss1", "agg.fraction=0.3"),
    "transform": ("transform=linear", "model.norm=group", "algorithm=fedbn", "algorithm.norm=group"),
    "scaffold": ("dp=none", "algorithm=scaffold", "algorithm.option=I", "model.norm=batch"),
    "fedpd": (
        "dp=none", "stage=fedpd", "stage.rounds=2", "stage.latent=4", "stage.cache=false",
        "stage.data_fraction=0.1",
    ),
}  # fmt: skip
KEY = bytes(range(32))


def run(folder: Path, *more: str) -> Path:
    """A run with a given secret, for noise_seed=os."""
    folder.mkdir(parents=True, exist_ok=True)
    if "noise_seed=os" in more:
        (folder / "noise.key").write_bytes(KEY)
    execute(compose(*OWN, *more), folder, "")
    return folder


def left(folder: Path) -> tuple:
    """All that a run leaves, without what depends on the clock; tensors as bytes, for they must be equal."""
    with open(folder / "metrics.csv", newline="") as file:
        rows = [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]
    state, _ = checkpoint.load(folder)
    assert state is not None
    tensors = {"theta": state["theta"], "losses": state["losses"], **state["store"]}
    bits = {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}
    return rows, bits, *((folder / name).read_bytes() for name in ("clients.csv", "privacy.json"))


@contextmanager
def without_pictures() -> Iterator[None]:
    """They take longest and say nothing here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "_draw", lambda *_: True)
        patch.setattr(pictures, "curves", lambda *_: None)
        patch.setattr(recorder, "git_revision", lambda: None)
        yield
