"""One run from config to results: what is finished is shown, all else is trained."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fedpriv.config.checks import check
from fedpriv.config.mistakes import explain
from fedpriv.errors import Interrupted, UserError
from fedpriv.files import LOCK, alone, json_text, make_folder, read_json, write_atomically
from fedpriv.loggers import sent
from fedpriv.session.claim import CONFIG, IDENTITY, KEY, STATUS, claim, other_code, with_target
from fedpriv.session.screen import console, errors, result_table

_HYDRA = ".hydra"  # what Hydra puts into the folder of a sweep's cell before we are called


def execute(cfg: DictConfig, folder: Path, title: str) -> dict[str, Any]:
    """Run, continue or just show the run that `folder` holds; returns the summary. What is refused leaves no
    folder behind."""
    with _undone(folder, {_HYDRA}):
        check(cfg)
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    make_folder(folder)
    with alone(folder), _undone(folder, {_HYDRA, LOCK, KEY}, made):
        finished = claim(folder, cfg)
        if not finished:
            from fedpriv.session.training import train  # loads torch: not to show what is done

            with _failure_noted(folder, cfg):
                return train(cfg, folder, title)
        (folder / KEY).unlink(missing_ok=True)
        finished = with_target(finished, cfg.target, folder)
        console.print(f"already done; resume=false runs it again ({title})")
        if remark := other_code(finished):
            errors.print(f"warning: {remark}", soft_wrap=True)
        result_table(finished, read_json(folder / "privacy.json"), folder)
        sent.send(cfg, folder, finished)
        return finished


@contextmanager
def _undone(folder: Path, nothing: set[str], made: Sequence[Path] = ()) -> Iterator[None]:
    """After a refusal remove the folder, if no run ever began in it and it was made for this one, by us or by
    Hydra; and those `made` above it."""
    try:
        yield
    except UserError:
        there = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
        if there and there <= nothing and (folder in made or _HYDRA in there):
            shutil.rmtree(folder)
            with suppress(OSError):  # somebody else has begun something there
                for place in made[1:]:
                    place.rmdir()
        raise


@contextmanager
def _failure_noted(folder: Path, cfg: DictConfig) -> Iterator[None]:
    """Leave the reason of a failure in the folder, where `fedpriv runs` finds it, until the next attempt. A
    refusal before anything began leaves nothing."""
    (folder / STATUS).unlink(missing_ok=True)
    try:
        yield
    except Interrupted:
        raise
    except Exception as error:
        if isinstance(error, UserError) and not (folder / IDENTITY).exists():
            raise
        told = explain(error) or f"{type(error).__name__}: {error}"
        with suppress(OSError):  # a full disk, perhaps: what went wrong is raised either way
            if not (folder / CONFIG).exists():
                write_atomically(folder / CONFIG, OmegaConf.to_yaml(cfg, resolve=True).encode())
            write_atomically(folder / STATUS, json_text({"error": told}).encode())
        raise
