"""Whose a run's folder is, and what is finished in it: nothing here loads torch."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from fedpriv import __version__
from fedpriv.config import identity
from fedpriv.config.identity import Identity
from fedpriv.errors import UserError
from fedpriv.files import json_text, read_json, remove, write_atomically
from fedpriv.loggers.sent import LOGGED
from fedpriv.parts.making import source
from fedpriv.session import checkpoint
from fedpriv.session.model_file import MODEL, PERSONAL
from fedpriv.session.recorder import git_revision, reached, read_rounds

SAMPLES = ("samples.npz", "samples.png")
IDENTITY, KEY, CONFIG = "identity.txt", "noise.key", "config.yaml"
STATUS = "status.json"  # why a run failed, until it is run again
# What a run leaves in its folder, in the order of its removal: first what says that there is something to
# show or to continue, last whose folder it is. After a kill on the way it is still known whose it is.
FORGET = (
    ("summary.json",),
    (checkpoint.NAME, checkpoint.PREVIOUS),
    ("metrics.csv", "clients.csv", "privacy.json", CONFIG, STATUS, *SAMPLES),
    ("audit.json", "audit.png", "audit_images.png"),
    ("curves.png", "budgets.png", "partition.png", "partition.csv"),
    (MODEL, PERSONAL, LOGGED),
    (KEY,),
    (IDENTITY,),
)


def claim(folder: Path, cfg: DictConfig) -> dict[str, Any] | None:
    """Make sure the folder is for this run; the summary if it is finished already."""
    marker, summary = folder / IDENTITY, folder / "summary.json"
    if not cfg.resume:
        for names in FORGET:
            remove(folder, names)
        return None
    before = Identity.read(marker.read_text()) if marker.exists() else None
    if before and before.config != identity.of_config(cfg):
        raise another(folder)
    if not summary.exists():
        return None
    finished = read_json(summary)
    if finished.get("identity") != identity.of_config(cfg):
        raise another(folder)
    if before:
        _unchanged(cfg, before, folder)
    return finished


def another(folder: Path) -> UserError:
    return UserError(
        f"hydra.run.dir={folder} holds a run with another config, kind of device or code of your "
        "own; choose another folder, or resume=false to replace it"
    )


def _unchanged(cfg: DictConfig, before: Identity, folder: Path) -> None:
    """Read a finished run's data again and compare, unless its files are unchanged or absent."""
    dataset, data_dir = source(cfg)
    files = identity.of_files(dataset, data_dir)
    if (files and files == before.files) or identity.absent(dataset, data_dir):
        return
    same_data(before, Identity(before.config, dataset.load(data_dir).fingerprint), folder)


def same_data(before: Identity, now: Identity, folder: Path) -> None:
    if before.data != now.data:
        raise UserError(
            f"{folder}: the data have changed since this run began; put the former ones back, or use "
            "resume=false to run it anew with these"
        )


def other_code(summary: dict[str, Any]) -> str | None:
    """A remark on a finished run that this state of the package did not make."""
    if summary.get("code") == identity.code():
        return None
    made, here = (
        f"{version}, revision {revision or 'unknown'}"
        for version, revision in (
            (summary["versions"]["fedpriv"], summary["git_revision"]),
            (__version__, git_revision()),
        )
    )
    return f"made by other code (fedpriv {made}; this is {here}): its numbers may not be what this one gives"


def with_target(summary: dict[str, Any], target: float | None, folder: Path) -> dict[str, Any]:
    """A finished run asked for another target: read from its rounds instead of running it again."""
    if target is None or summary.get("target") == target:
        return summary
    summary |= reached(read_rounds(folder / "metrics.csv", summary["rounds"]), target)
    write_atomically(folder / "summary.json", json_text(summary).encode())
    return summary
