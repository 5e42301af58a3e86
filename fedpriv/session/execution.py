"""One run from config to results: build, continue if there is something to continue, train, record."""

import os
import secrets
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from fedpriv import __version__
from fedpriv.building import Run, build, make, source
from fedpriv.config import identity
from fedpriv.config.identity import Identity
from fedpriv.errors import Interrupted, UserError
from fedpriv.files import alone, json_text, make_folder, read_json, remove, write_atomically
from fedpriv.partitions import picture
from fedpriv.randomness.source import KEY_BYTES
from fedpriv.rounds.trainer import Trainer
from fedpriv.session import checkpoint, pictures
from fedpriv.session.kept_samples import SAMPLES, KeptSamples
from fedpriv.session.recorder import Recorder, git_revision, reached, read_rounds
from fedpriv.session.screen import Watch, console, errors, preparing, result_table

LOSSES = ("train_loss_mean", "loss_local", "loss_global", "emd_mean")
IDENTITY, KEY = "identity.txt", "noise.key"
# What a run leaves in its folder, in the order of its removal: first what says that there is something to
# show or to continue, last whose folder it is. After a kill on the way it is still known whose it is.
_FORGET = (
    ("summary.json",),
    (checkpoint.NAME, checkpoint.PREVIOUS),
    ("metrics.csv", "clients.csv", "privacy.json", "config.yaml", "status.json", *SAMPLES),
    ("audit.json", "audit.png", "audit_images.png"),
    ("curves.png", "budgets.png", "partition.png", "partition.csv"),
    (KEY,),
    (IDENTITY,),
)


def execute(cfg: DictConfig, folder: Path, title: str) -> dict[str, Any]:
    """Run, continue or just show the run that `folder` holds; returns the summary."""
    make_folder(folder)
    with alone(folder):
        finished = _claim(folder, cfg)
        if finished:
            (folder / KEY).unlink(missing_ok=True)
            finished = _with_target(finished, cfg.target, folder)
            console.print(f"already done; resume=false runs it again ({title})")
            if remark := _other_code(finished):
                errors.print(f"warning: {remark}", soft_wrap=True)
            result_table(finished, read_json(folder / "privacy.json"), folder)
            return finished
        with preparing():
            run = build(cfg, secret=lambda: _secret(folder))
            samples = KeptSamples(cfg.samples_at, run)
        for warning in run.warnings:
            errors.print(f"warning: {warning}", soft_wrap=True)
        own = Identity(identity.of_config(cfg), run.data.fingerprint, identity.of_files(*source(cfg)))
        if (marker := folder / IDENTITY).exists():
            _same_data(Identity.read(marker.read_text()), own, folder)
        before = _continue(folder, run, samples, own)
        recorder = Recorder(folder, run.trainer, before)
        write_atomically(marker, str(own).encode())
        return _train(cfg, run, samples, recorder, folder, title, own)


def _train(
    cfg: DictConfig,
    run: Run,
    samples: KeptSamples,
    recorder: Recorder,
    folder: Path,
    title: str,
    own: Identity,
) -> dict[str, Any]:
    trainer = run.trainer
    write_atomically(folder / "config.yaml", OmegaConf.to_yaml(cfg, resolve=True).encode())
    picture.save(run.split, run.data.y_train.numpy(), run.data.y_test.numpy(), run.data.classes, folder)
    pictures.budgets(trainer, folder)
    logger = make(cfg, "logger")
    logger.start(name=folder.name, config=_plain(cfg), folder=folder)

    def report() -> dict[str, Any]:
        privacy = trainer.ledger.report(noise_seeded=trainer.seeded)
        privacy["not_covered"] += samples.not_covered
        if (folder / KEY).exists():
            privacy["not_covered"].append(f"{KEY} in this folder: whoever has it removes the noise")
        return privacy

    def save() -> None:
        recorded = recorder.state()  # on the disk before a checkpoint says so
        more = {"identity": str(own), "recorded": recorded}
        checkpoint.save(folder, {**trainer.state(), "samples": samples.state(), **more})
        recorder.json("privacy.json", report())

    samples.keep(trainer)
    with _stop_request() as wanted, Watch(cfg.rounds, trainer.next_round) as watch:
        while trainer.next_round < cfg.rounds and not trainer.exhausted:
            row = recorder.add(trainer.round())
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
    recorder.close()

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
        warnings=run.warnings,
        **trainer.stage.summary(),
    )
    pictures.curves(recorder, title, folder)
    samples.write(folder)
    logger.finish(summary, {"clients": folder / "clients.csv", "partition": folder / "partition.csv"})
    recorder.json("summary.json", summary)  # its presence says the run is complete
    (folder / KEY).unlink(missing_ok=True)
    privacy = report()
    recorder.json("privacy.json", privacy)
    result_table(summary, privacy, folder)
    return summary


def _with_target(summary: dict[str, Any], target: float | None, folder: Path) -> dict[str, Any]:
    """A finished run asked for another target: read from its rounds instead of running it again."""
    if target is None or summary.get("target") == target:
        return summary
    summary |= reached(read_rounds(folder / "metrics.csv", summary["rounds"]), target)
    write_atomically(folder / "summary.json", json_text(summary).encode())
    return summary


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


def _plain(cfg: DictConfig) -> dict[str, Any]:
    content = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(content, dict)
    return {str(k): v for k, v in content.items()}


def _claim(folder: Path, cfg: DictConfig) -> dict[str, Any] | None:
    """Make sure the folder is for this run; the summary if it is finished already."""
    marker, summary = folder / IDENTITY, folder / "summary.json"
    if not cfg.resume:
        for names in _FORGET:
            remove(folder, names)
        return None
    before = Identity.read(marker.read_text()) if marker.exists() else None
    if before and before.config != identity.of_config(cfg):
        raise _another(folder)
    if not summary.exists():
        return None
    finished = read_json(summary)
    if finished.get("identity") != identity.of_config(cfg):
        raise _another(folder)
    if before:
        _unchanged(cfg, before, folder)
    return finished


def _another(folder: Path) -> UserError:
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
    _same_data(before, Identity(before.config, dataset.load(data_dir).fingerprint), folder)


def _same_data(before: Identity, now: Identity, folder: Path) -> None:
    if before.data != now.data:
        raise UserError(
            f"{folder}: the data have changed since this run began; put the former ones back, or use "
            "resume=false to run it anew with these"
        )


def _other_code(summary: dict[str, Any]) -> str | None:
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
        raise _another(folder)
    _same_data(made, own, folder)
    run.trainer.load(state)
    samples.load(state.get("samples", {}))
    console.print(f"continuing after round {run.trainer.next_round}")
    recorded: dict[str, Any] = state["recorded"]
    return recorded


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
