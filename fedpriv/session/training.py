"""A run's rounds: build it, continue if there is something to continue, train, record."""

import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from fedpriv.accelerator import described
from fedpriv.building import Run
from fedpriv.config import identity
from fedpriv.config.identity import Identity
from fedpriv.errors import Interrupted, UserError
from fedpriv.files import write_atomically
from fedpriv.loggers import sent
from fedpriv.loggers.base import Logger
from fedpriv.parts.making import make, source
from fedpriv.randomness.source import KEY_BYTES
from fedpriv.ranks.following import assembled
from fedpriv.ranks.group import Ranks
from fedpriv.ranks.starting import together
from fedpriv.rounds.trainer import Trainer
from fedpriv.session import checkpoint, model_file
from fedpriv.session.claim import CONFIG, IDENTITY, KEY, another, same_data
from fedpriv.session.kept_samples import KeptSamples
from fedpriv.session.recorder import Recorder
from fedpriv.session.screen import Watch, console, errors, preparing, result_table

LOSSES = ("train_loss_mean", "loss_local", "loss_global", "emd_mean")


def train(cfg: DictConfig, folder: Path, title: str) -> dict[str, Any]:
    """Train the run that `folder` is claimed for, or what is left of it; its summary."""
    with together(cfg) as ranks:
        return _train(cfg, ranks, folder, title)


def _train(cfg: DictConfig, ranks: Ranks, folder: Path, title: str) -> dict[str, Any]:
    logger = make(cfg, "logger")
    with preparing():
        key = _secret(folder) if cfg.noise_seed == "os" else None
        with ranks.everywhere("build", cfg, key):
            run = assembled(cfg, key, ranks)
        with ranks.everywhere("prepare"):
            run.prepare()
        samples = KeptSamples(cfg.samples_at, run)
    if cfg.device == "auto":
        console.print(f"device=auto: {described(run.trainer.setting.device)}")
    for warning in run.warnings:
        errors.print(f"warning: {warning}", soft_wrap=True)
    own = Identity(identity.of_config(cfg), run.data.fingerprint, identity.of_files(*source(cfg)))
    if (marker := folder / IDENTITY).exists():
        same_data(Identity.read(marker.read_text()), own, folder)
    before = _continue(folder, run, samples, own)
    recorder = Recorder(folder, run.trainer, before)
    write_atomically(marker, str(own).encode())
    return _rounds(cfg, run, samples, recorder, logger, folder, title, own)


def _rounds(
    cfg: DictConfig,
    run: Run,
    samples: KeptSamples,
    recorder: Recorder,
    logger: Logger,
    folder: Path,
    title: str,
    own: Identity,
) -> dict[str, Any]:
    trainer = run.trainer
    write_atomically(folder / CONFIG, OmegaConf.to_yaml(cfg, resolve=True).encode())
    logger.start(name=folder.name, config=sent.plain(cfg), folder=folder)

    def report() -> dict[str, Any]:
        privacy = trainer.ledger.report(noise_seeded=trainer.seeded)
        privacy["not_covered"] += samples.not_covered
        if (folder / model_file.PERSONAL).exists():
            privacy["not_covered"].append(f"{model_file.PERSONAL} in this folder: what clients keep at home")
        if (folder / KEY).exists():
            privacy["not_covered"].append(f"{KEY} in this folder: whoever has it removes the noise")
        return privacy

    def save() -> None:
        recorded = recorder.state()  # on the disk before a checkpoint says so
        more = {"identity": str(own), "recorded": recorded}
        with trainer.ranks.everywhere("whole"):
            state = trainer.state(folder)
        checkpoint.save(folder, {**state, "samples": samples.state(), **more})
        recorder.json("privacy.json", report())

    drawn = False
    samples.keep(trainer)
    with _stop_request(trainer.ranks.echo) as wanted, Watch(cfg.rounds, trainer.next_round) as watch:
        while trainer.next_round < cfg.rounds and not trainer.exhausted:
            with trainer.ranks.everywhere("round"):
                result = trainer.round()
            row = recorder.add(result)
            samples.keep(trainer)
            watch.show(row)
            logger.log(row)
            drawn = drawn or _draw(run, folder)  # not before: it takes as long as a first round
            every, done = cfg.checkpoint.every, trainer.next_round
            if wanted.is_set() and done < cfg.rounds:
                save()
                how = "the same command" if cfg.resume else "the same command without resume=false"
                raise Interrupted(f"stopped after round {done} of {cfg.rounds}; {how} continues")
            if every and done % every == 0 and done < cfg.rounds:
                save()
    save()
    recorder.close()
    drawn = drawn or _draw(run, folder)

    for remark in _remarks(trainer, cfg, recorder):
        errors.print(f"warning: {remark}", soft_wrap=True)
        run.warnings.append(remark)
    summary = recorder.summary(
        trainer,
        cfg.target,
        identity=own.config,
        data=own.data,
        code=identity.code(),
        parameters=trainer.setting.layout.sent,
        sample=list(run.data.shape),
        classes=run.data.classes,
        vocabulary=run.data.vocabulary,
        warnings=run.warnings,
        **trainer.stage.summary(),
    )
    from fedpriv.session import pictures

    pictures.curves(recorder, title, folder)
    samples.write(folder)
    with trainer.ranks.everywhere("whole"):
        store = trainer.store.whole(folder)
    model_file.write(run, store, folder, personal=cfg.personal)
    logger.finish(summary, sent.tables(folder))
    sent.note(logger, cfg, folder)
    recorder.json("summary.json", summary)  # its presence says the run is complete
    (folder / KEY).unlink(missing_ok=True)
    privacy = report()
    recorder.json("privacy.json", privacy)
    result_table(summary, privacy, folder)
    return summary


def _draw(run: Run, folder: Path) -> bool:
    """Who has which data, and which budget."""
    from fedpriv.partitions import picture
    from fedpriv.session import pictures

    picture.save(run.split, run.data.y_train.numpy(), run.data.y_test.numpy(), run.data.classes, folder)
    pictures.budgets(run.trainer, folder)
    return True


def _remarks(trainer: Trainer, cfg: DictConfig, recorder: Recorder) -> list[str]:
    """What the user should know of a finished run."""
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


def _secret(folder: Path) -> bytes:
    """The run's key from the operating system, made once.

    A continued run repeats the rounds after its checkpoint; with the same key it releases the same numbers
    again, with another it would release the same data twice for one charge.
    """
    path, key = folder / KEY, secrets.token_bytes(KEY_BYTES)
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        key = path.read_bytes()
        if len(key) != KEY_BYTES:
            raise UserError(
                f"{path} has {len(key)} bytes instead of {KEY_BYTES}, so this run's noise is lost; start it "
                "anew with resume=false"
            ) from None
        return key
    with os.fdopen(file, "wb") as opened:
        opened.write(key)
        opened.flush()
        os.fsync(opened.fileno())
    return key


def _continue(folder: Path, run: Run, samples: KeptSamples, own: Identity) -> dict[str, Any] | None:
    """Take over the last sound checkpoint, if it is this run's; what the recorder had written by then."""
    state, problems = checkpoint.load(folder)
    for problem in problems:
        errors.print(f"warning: {problem}", soft_wrap=True)
    if state is None:
        return None
    made = Identity.read(str(state.get("identity", "")))
    if made.config != own.config:
        raise another(folder)
    same_data(made, own, folder)
    with run.trainer.ranks.everywhere("load", {**state, "store": {}}):  # each is given its own clients' rows
        run.trainer.load(state)
    samples.load(state.get("samples", {}))
    console.print(f"continuing after round {run.trainer.next_round}")
    recorded: dict[str, Any] = state["recorded"]
    return recorded


@contextmanager
def _stop_request(echo: float = 0.0) -> Iterator[threading.Event]:
    """The first Ctrl-C asks to stop after the round; a second one, later than `echo` seconds, at once."""
    wanted, asked = threading.Event(), 0.0
    if threading.current_thread() is not threading.main_thread():
        yield wanted  # a worker of a parallel launcher: signals go to its parent
        return

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        if wanted.is_set():
            if time.monotonic() - asked < echo:
                return
            raise KeyboardInterrupt
        asked = time.monotonic()
        wanted.set()
        errors.print("stopping after this round (Ctrl-C again: at once)")

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield wanted
    finally:
        signal.signal(signal.SIGINT, before)
