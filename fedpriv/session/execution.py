"""One run from config to results: what is finished is shown, all else is trained."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from fedpriv.config.checks import check
from fedpriv.errors import UserError
from fedpriv.files import LOCK, alone, make_folder, read_json
from fedpriv.loggers import sent
from fedpriv.session.claim import KEY, claim, other_code, with_target
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
