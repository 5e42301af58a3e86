"""What a run was sent to: logger=wandb on a finished run sends it there, once."""

import csv
import json
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fedpriv.files import json_text, write_atomically
from fedpriv.loggers.base import Logger
from fedpriv.parts.making import make

LOGGED = "logged.json"
TABLES = ("clients", "partition")


def tables(folder: Path) -> dict[str, Path]:
    return {name: folder / f"{name}.csv" for name in TABLES}


def plain(cfg: DictConfig) -> dict[str, Any]:
    content = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(content, dict)
    return {str(k): v for k, v in content.items()}


def note(logger: Logger, cfg: DictConfig, folder: Path) -> None:
    """That this logger has all of the run."""
    if logger.complete:
        told = [*_told(folder), plain(cfg)["logger"]]
        write_atomically(folder / LOGGED, json_text(told).encode())


def send(cfg: DictConfig, folder: Path, summary: dict[str, Any]) -> bool:
    """Tell the config's logger all of a finished run, unless it was told before; whether it was now."""
    if cfg.logger.get("_target_") == f"{Logger.__module__}.{Logger.__name__}":
        return False
    if plain(cfg)["logger"] in _told(folder):
        return False
    logger = make(cfg, "logger")
    logger.start(name=folder.name, config=plain(cfg), folder=folder)
    with open(folder / "metrics.csv", newline="") as file:
        for row in csv.DictReader(file):
            logger.log({name: float(text) if text else None for name, text in row.items()})
    logger.finish(summary, tables(folder))
    note(logger, cfg, folder)
    return True


def _told(folder: Path) -> list[Any]:
    try:
        content = json.loads((folder / LOGGED).read_text())
    except (OSError, ValueError):
        return []
    return content if isinstance(content, list) else []
