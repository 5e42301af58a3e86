"""Checkpoints that survive: written atomically, with a checksum, the one before kept."""

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import torch

from fedpriv.files import write_atomically

NAME, PREVIOUS = "checkpoint.pt", "checkpoint.previous.pt"


def remove(folder: Path) -> None:
    for name in (NAME, PREVIOUS):
        (folder / name).unlink(missing_ok=True)


def save(folder: Path, state: dict[str, Any]) -> None:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    if (folder / NAME).exists():
        os.replace(folder / NAME, folder / PREVIOUS)
    write_atomically(folder / NAME, hashlib.sha256(content).digest() + content)


def load(folder: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest sound checkpoint, or None; and a line for every damaged one."""
    problems = []
    for name in (NAME, PREVIOUS):
        path = folder / name
        if not path.exists():
            continue
        content = path.read_bytes()
        if hashlib.sha256(content[32:]).digest() != content[:32]:
            problems.append(f"checkpoint {path} is damaged and not used")
            continue
        return torch.load(io.BytesIO(content[32:]), weights_only=True, map_location="cpu"), problems
    return None, problems
