"""Encode a dataset chunk by chunk, each kept as soon as it is done, so that a killed extraction goes on."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from fedpriv.datasets.data import Data
from fedpriv.datasets.feature_norm import moments
from fedpriv.encoders.base import Encoder
from fedpriv.errors import Interrupted, UserError
from fedpriv.files import alone, atomically, write_atomically
from fedpriv.session.screen import console

CHUNK = 512  # images
IDENTITY = "identity.json"
_QUIET = 5.0  # seconds between plain lines


def extract(
    encoder: Encoder,
    data: Data,
    target: Path,
    identity: dict[str, Any],
    *,
    dtype: str,
    batch_size: int,
    device: torch.device,
    overwrite: bool,
) -> None:
    """Write the features of both sides, the moments of the training side, and where they come from."""
    sides = {"train": (data.x_train, data.y_train), "test": (data.x_test, data.y_test)}
    parts = target.with_name(f".{target.stem}.parts")  # where chunks wait
    parts.mkdir(parents=True, exist_ok=True)
    with alone(parts):
        if overwrite:
            for path in (target, parts / IDENTITY, *parts.glob("*.npy")):
                path.unlink(missing_ok=True)
        _claim(parts, identity)
        todo = {
            parts / f"{side}-{start:09d}.npy": x[start : start + CHUNK]
            for side, (x, _) in sides.items()
            for start in range(0, len(x), CHUNK)
        }
        encoder.network.to(device)
        how = "the same command" + " without overwrite=true" * overwrite
        with _progress(todo, how) as advance:
            for path, images in todo.items():
                if not path.exists():
                    rows = [encoder(batch.to(device)).cpu() for batch in images.split(batch_size)]
                    _keep(torch.cat(rows), path, dtype)
                    advance(len(images))
        content: dict[str, Any] = {f"y_{side}": y.numpy() for side, (_, y) in sides.items()}
        for side in sides:
            content[f"x_{side}"] = np.concatenate([np.load(p) for p in todo if p.name.startswith(side)])
        mean, variance = moments(content["x_train"])
        own = {"size": encoder.size, "mean": encoder.mean, "std": encoder.std}
        source = np.array(json.dumps({**identity, "input": {**own, "interpolation": encoder.interpolation}}))
        with atomically(target) as file:
            np.savez(file, **content, mean=mean, variance=variance, source=source)
        shutil.rmtree(parts)


def _claim(parts: Path, identity: dict[str, Any]) -> None:
    """Chunks of another setting must not mix with these."""
    marker = parts / IDENTITY
    text = json.dumps(identity, indent=1)
    if not marker.exists():
        write_atomically(marker, text.encode())
    elif marker.read_text() != text:
        before = json.loads(marker.read_text())
        changed = ", ".join(f"{k}={before.get(k)}" for k in identity if before.get(k) != identity[k])
        raise UserError(
            f"{parts} holds an unfinished extraction with {changed}; finish that one, set output= to another "
            "file, or overwrite=true"
        )


def _keep(features: Tensor, path: Path, dtype: str) -> None:
    with np.errstate(over="ignore"):
        array = features.numpy().astype(dtype)
    if not np.isfinite(array).all():
        raise UserError(f"the features exceed {dtype} or are no numbers; try dtype=float32 or other weights")
    with atomically(path) as file:
        np.save(file, array)


@contextmanager
def _progress(todo: dict[Path, Tensor], how: str) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, plain lines elsewhere; Ctrl-C says how to go on."""
    total = sum(map(len, todo.values()))
    done = before = sum(len(images) for path, images in todo.items() if path.exists())
    began = last = time.perf_counter()
    columns = TextColumn("images"), MofNCompleteColumn(), BarColumn(), TimeRemainingColumn()
    if done:
        console.print(f"continuing after {done:,} of {total:,} images")
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total, completed=done)

        def advance(images: int) -> None:
            nonlocal done, last
            done += images
            bar.update(task, completed=done)
            now = time.perf_counter()
            if not console.is_terminal and now - last >= _QUIET:
                left = (now - began) / (done - before) * (total - done)
                console.print(f"image {done:,}/{total:,}  about {left:.0f} s left")
                last = now

        try:
            yield advance
        except KeyboardInterrupt:
            raise Interrupted(f"stopped after {done:,} of {total:,} images; {how} continues") from None
