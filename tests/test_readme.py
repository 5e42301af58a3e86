"""The README tells the truth: its commands run, its table lists what there is, its example works."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch

from fedpriv import catalogue
from fedpriv.config import GROUPS
from fedpriv.vision import tv_models
from tests.test_datasets import idx

README = (Path(__file__).parent.parent / "README.md").read_text()
BLOCKS = [
    [shlex.split(line, comments=True) for line in block.splitlines() if line.startswith("fedpriv ")]
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
]
COMMANDS = [command for block in BLOCKS for command in block]
# Added to every run, so that the form of the command is tested and not the patience of the reader.
QUICK = ["rounds=1", "clients=4", "partition=classes", "local_steps=1", "batch_size=8", "epsilon=8"]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_run(fedpriv, tmp_path, monkeypatch, command):
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda *_: str(tmp_path / "cache"))
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)
    images = np.random.default_rng(0).integers(0, 256, (80, 28, 28)).astype(np.uint8)
    for side in ("train", "t10k"):
        for kind, array in (("images-idx3", images), ("labels-idx1", np.arange(80, dtype=np.uint8) % 10)):
            (tmp_path / "MNIST" / "raw" / f"{side}-{kind}-ubyte").write_bytes(idx(array))
    (tmp_path / "features").mkdir()
    if command[1] == "features":
        torch.save(tv_models.resnet50().state_dict(), tmp_path / "simclr.pt")
    elif "dataset=features" in command:
        (path,) = [word.split("=")[1] for word in command if word.startswith("dataset.path=")]
        x, y = np.ones((80, 5)), np.arange(80) % 10
        np.savez(tmp_path / "features" / path, x_train=x, y_train=y, x_test=x, y_test=y)
    for name, code in re.findall(r"Write `(\w+\.py)`.*?```python\n(.*?)```", README, re.DOTALL):
        (tmp_path / name).write_text(code)
    (block,) = [b for b in BLOCKS if command in b]
    before = [c for c in block[: block.index(command)] if c[1] == "run"] if command[1] == "figure" else []
    for each in (*before, command):  # a figure needs the runs above it
        more = {"run": quickly(each), "privacy": quickly(each), "features": ["size=32"]}.get(each[1])
        if each[1] == "distilled":
            more = [*quickly(each), "stage.rounds=1", "stage.latent=8", "epochs=0", "steps=2"]
        more = [*more, f"data_dir={tmp_path}"] if more else []
        done = fedpriv(*each[1:], *more)
        assert done.code == 0, done.err


def quickly(command: list[str]) -> list[str]:
    """What to add, leaving alone what the command sweeps."""
    quick = [q for q in QUICK if q.split("=")[0] not in {c.split("=")[0] for c in command if "," in c}]
    if "partition=dirichlet" in command:
        quick.remove("partition=classes")
    if any(c.startswith("participations=") for c in command):  # rounds and clients must fit each other
        quick = quick[2:]
    if "stage=fedpd" in command:
        quick += ["stage.rounds=1", "stage.latent=8"]
    return quick + ["samples_at=[0,1]"] * any(c.startswith("samples_at=") for c in command)


def test_there_are_commands_and_an_example():
    assert len(COMMANDS) >= 8 and "class TrimmedMean" in README


@pytest.mark.parametrize("group", GROUPS)
def test_the_table_lists_every_option(group):
    (row,) = [line for line in README.splitlines() if re.match(rf"\| {group}\b", line)]
    listed = re.sub(r"\(.*?\)", "", row.split("|")[3]).replace(" ", "").split(",")
    assert sorted(listed) == sorted(catalogue.options(group))
