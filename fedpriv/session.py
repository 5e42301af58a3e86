"""One run from config to results: build, continue if there is something to continue, train, record."""

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fedpriv import checkpoint, pictures
from fedpriv.build import Run, build, make
from fedpriv.config import config_hash
from fedpriv.errors import Interrupted, UserError
from fedpriv.partitions import picture
from fedpriv.recorder import Recorder
from fedpriv.screen import Watch, console, errors, result_table


def execute(cfg: DictConfig, folder: Path, title: str) -> dict[str, Any]:
    """Run, continue or just show the run that `folder` holds; returns the summary."""
    folder.mkdir(parents=True, exist_ok=True)
    identity = config_hash(cfg)
    finished = _claim(folder, cfg, identity)
    if finished:
        console.print(f"already done; resume=false runs it again ({title})")
        result_table(finished, json.loads((folder / "privacy.json").read_text()), folder)
        return finished
    with console.status("preparing") if console.is_terminal else _nothing():
        run = build(cfg)
    trainer = run.trainer
    for warning in run.warnings:
        errors.print(f"warning: {warning}", soft_wrap=True)
    _continue(folder, run)
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(cfg, resolve=True))
    picture.save(run.split, run.data.y_train.numpy(), run.data.y_test.numpy(), run.data.classes, folder)
    recorder = Recorder(folder, trainer.next_round)
    logger = make(cfg, "logger")
    logger.start(name=folder.name, config=_plain(cfg), folder=folder)

    stopped_early = False
    with _stop_request() as wanted, Watch(cfg.rounds, trainer.next_round) as watch:
        while trainer.next_round < cfg.rounds:
            if trainer.exhausted:
                stopped_early = True
                break
            row = recorder.add(trainer.round(), trainer)
            watch.show(row)
            logger.log(row)
            every, done = cfg.checkpoint.every, trainer.next_round
            if wanted.is_set():
                _save(folder, trainer, identity)
                raise Interrupted(f"stopped after round {done} of {cfg.rounds}; the same command continues")
            if every and done % every == 0 and done < cfg.rounds:
                _save(folder, trainer, identity)
    _save(folder, trainer, identity)

    if stopped_early:
        eligible = int(trainer.ledger.eligible().sum())
        run.warnings.append(
            f"training ended after {trainer.next_round} of {cfg.rounds} rounds: {eligible} clients can "
            f"afford another, min_clients={cfg.min_clients}"
        )
        errors.print(f"warning: {run.warnings[-1]}", soft_wrap=True)
    privacy = trainer.ledger.report(noise_seeded=trainer.noise.seeded)
    summary = recorder.summary(
        trainer, config_hash=identity, parameters=trainer.setting.layout.shared, warnings=run.warnings
    )
    recorder.json("privacy.json", privacy)
    pictures.curves(recorder, title, folder)
    logger.finish(summary, {"clients": folder / "clients.csv", "partition": folder / "partition.csv"})
    recorder.json("summary.json", summary)  # last: its presence says the run is complete
    result_table(summary, privacy, folder)
    return summary


def _plain(cfg: DictConfig) -> dict[str, Any]:
    content = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(content, dict)
    return {str(k): v for k, v in content.items()}


def _claim(folder: Path, cfg: DictConfig, identity: str) -> dict[str, Any] | None:
    """Make sure the folder is for this run; the summary if it is finished already."""
    marker, summary = folder / "identity.txt", folder / "summary.json"
    if not cfg.resume:
        for name in ("summary.json", "metrics.csv", "clients.csv", checkpoint.NAME, checkpoint.PREVIOUS):
            (folder / name).unlink(missing_ok=True)
    elif marker.exists() and marker.read_text().strip() != identity:
        raise UserError(
            f"hydra.run.dir={folder} holds a run with another config; choose another folder, or resume=false "
            "to replace it"
        )
    marker.write_text(identity + "\n")
    return json.loads(summary.read_text()) if summary.exists() else None


def _continue(folder: Path, run: Run) -> None:
    state, problems = checkpoint.load(folder)
    for problem in problems:
        errors.print(f"warning: {problem}", soft_wrap=True)
    if state is not None:
        run.trainer.load(state)
        console.print(f"continuing after round {run.trainer.next_round}")


def _save(folder: Path, trainer: Any, identity: str) -> None:
    checkpoint.save(folder, {**trainer.state(), "config_hash": identity})


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _stop_request() -> Iterator[threading.Event]:
    """The first Ctrl-C asks to stop after the round; a second one stops at once."""
    wanted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield wanted  # a worker of a parallel launcher: signals go to its parent
        return

    def ask(number: int, frame: Any) -> None:
        if wanted.is_set():
            raise KeyboardInterrupt
        wanted.set()
        errors.print("stopping after this round (Ctrl-C again: at once)")

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield wanted
    finally:
        signal.signal(signal.SIGINT, before)
