"""One run from config to results: build, continue if there is something to continue, train, record."""

import csv
import json
import secrets
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from fedpriv import checkpoint, pictures
from fedpriv.build import Run, build, make
from fedpriv.config import config_hash
from fedpriv.errors import Interrupted, UserError
from fedpriv.files import alone, json_text, write_atomically
from fedpriv.partitions import picture
from fedpriv.recorder import Recorder, reached
from fedpriv.samples import SAMPLES, KeptSamples
from fedpriv.screen import Watch, console, errors, preparing, result_table
from fedpriv.trainer import Trainer

LOSSES = ("train_loss_mean", "loss_local", "loss_global", "emd_mean")
IDENTITY, KEY = "identity.txt", "noise.key"


def execute(cfg: DictConfig, folder: Path, title: str) -> dict[str, Any]:
    """Run, continue or just show the run that `folder` holds; returns the summary."""
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder):
        finished = _claim(folder, cfg)
        if finished:
            finished = _with_target(finished, cfg.target, folder)
            console.print(f"already done; resume=false runs it again ({title})")
            result_table(finished, json.loads((folder / "privacy.json").read_text()), folder)
            return finished
        with preparing():
            run = build(cfg, secret=lambda: _secret(folder))
            samples = KeptSamples(cfg.samples_at, run)
        for warning in run.warnings:
            errors.print(f"warning: {warning}", soft_wrap=True)
        write_atomically(folder / IDENTITY, config_hash(cfg).encode())
        _continue(folder, run, samples)
        return _train(cfg, run, samples, folder, title)


def _train(cfg: DictConfig, run: Run, samples: KeptSamples, folder: Path, title: str) -> dict[str, Any]:
    trainer = run.trainer
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(cfg, resolve=True))
    picture.save(run.split, run.data.y_train.numpy(), run.data.y_test.numpy(), run.data.classes, folder)
    pictures.budgets(trainer, folder)
    recorder = Recorder(folder, trainer.next_round, trainer.diagnostics())
    logger = make(cfg, "logger")
    logger.start(name=folder.name, config=_plain(cfg), folder=folder)

    def save() -> None:
        recorder.sync()
        state = {**trainer.state(), "samples": samples.state(), "device": trainer.setting.device.type}
        checkpoint.save(folder, state)

    samples.keep(trainer)
    with _stop_request() as wanted, Watch(cfg.rounds, trainer.next_round) as watch:
        while trainer.next_round < cfg.rounds and not trainer.exhausted:
            row = recorder.add(trainer.round(), trainer)
            samples.keep(trainer)
            watch.show(row)
            logger.log(row)
            every, done = cfg.checkpoint.every, trainer.next_round
            if wanted.is_set() and done < cfg.rounds:
                save()
                how = "the same command" if cfg.resume else "the same command without resume=false"
                raise Interrupted(f"stopped after round {done} of {cfg.rounds}; {how} continues")
            if every and done % every == 0 and done < cfg.rounds:
                save()
    save()

    for remark in _remarks(trainer, cfg, recorder):
        errors.print(f"warning: {remark}", soft_wrap=True)
        run.warnings.append(remark)
    privacy = trainer.ledger.report(noise_seeded=trainer.seeded)
    privacy["not_covered"] += samples.not_covered
    summary = recorder.summary(
        trainer,
        cfg.target,
        config_hash=config_hash(cfg),
        parameters=trainer.setting.layout.shared,
        warnings=run.warnings,
        **trainer.stage.summary(),
    )
    recorder.json("privacy.json", privacy)
    pictures.curves(recorder, title, folder)
    samples.write(folder)
    logger.finish(summary, {"clients": folder / "clients.csv", "partition": folder / "partition.csv"})
    recorder.json("summary.json", summary)  # last: its presence says the run is complete
    result_table(summary, privacy, folder)
    return summary


def _with_target(summary: dict[str, Any], target: float | None, folder: Path) -> dict[str, Any]:
    """A finished run asked for another target: read from its rounds instead of running it again."""
    if target is None or summary.get("target") == target:
        return summary
    with open(folder / "metrics.csv", newline="") as file:
        summary |= reached(csv.DictReader(file), target)
    write_atomically(folder / "summary.json", json_text(summary).encode())
    return summary


def _remarks(trainer: Trainer, cfg: DictConfig, recorder: Recorder) -> list[str]:
    """What a finished run should not keep to itself."""
    found = []
    if trainer.next_round < cfg.rounds:
        eligible = int(trainer.ledger.eligible().sum())
        why = f"min_clients={cfg.min_clients}"
        if eligible >= cfg.min_clients:
            why = "none of them one the aggregator cannot do without"
        found.append(
            f"training ended after {trainer.next_round} of {cfg.rounds} rounds: {eligible} clients can "
            f"afford another, {why}"
        )
    if not bool(trainer.theta.isfinite().all()):
        found.append("the model diverged to values that are not numbers; lower lr")
    elif diverged := [c for c in LOSSES if not np.isfinite(recorder.column(c)).all()]:
        found.append(f"{diverged[0]} diverged to infinity (metrics.csv); lower lr")
    return found


def _plain(cfg: DictConfig) -> dict[str, Any]:
    content = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(content, dict)
    return {str(k): v for k, v in content.items()}


def _claim(folder: Path, cfg: DictConfig) -> dict[str, Any] | None:
    """Make sure the folder is for this run; the summary if it is finished already."""
    marker, summary = folder / IDENTITY, folder / "summary.json"
    if not cfg.resume:
        for name in (IDENTITY, KEY, "summary.json", "metrics.csv", "clients.csv", *SAMPLES):
            (folder / name).unlink(missing_ok=True)
        checkpoint.remove(folder)
    elif marker.exists() and marker.read_text().strip() != config_hash(cfg):
        raise UserError(
            f"hydra.run.dir={folder} holds a run with another config; choose another folder, or resume=false "
            "to replace it"
        )
    return json.loads(summary.read_text()) if summary.exists() else None


def _secret(folder: Path) -> bytes:
    """The run's key from the operating system, made once.

    A continued run repeats the rounds after its checkpoint; with the same key it releases the same numbers
    again, with another it would release the same data twice for one charge.
    """
    path = folder / KEY
    if not path.exists():
        path.touch(mode=0o600)
        write_atomically(path, secrets.token_bytes(32))
        path.chmod(0o600)
    return path.read_bytes()


def _continue(folder: Path, run: Run, samples: KeptSamples) -> None:
    state, problems = checkpoint.load(folder)
    for problem in problems:
        errors.print(f"warning: {problem}", soft_wrap=True)
    if state is None:
        return
    here = run.trainer.setting.device.type
    if state["device"] != here and not run.trainer.seeded:
        raise UserError(
            f"device={here}: this run began on {state['device']}, and other noise there would release its "
            f"repeated rounds twice; use device={state['device']} or resume=false"
        )
    run.trainer.load(state)
    samples.load(state.get("samples", {}))
    console.print(f"continuing after round {run.trainer.next_round}")


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
