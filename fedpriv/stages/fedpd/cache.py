"""Distillations kept in the user's cache folder.

An unprotected one serves every optimiser, seed and noise level it fits; a protected one, whose noise follows
from its run's own key, only this run.
"""

import hashlib
import io
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import platformdirs
import torch
from torch import Tensor, nn

from fedpriv.engine.data import ClientData
from fedpriv.files import atomically
from fedpriv.stages.fedpd.protection import Open
from fedpriv.stages.fedpd.vae import Distiller

VERSION = 4  # to be raised when the same options begin to give other numbers


def fingerprint(protection: Open, distiller: Distiller, classifier: nn.Module, data: ClientData) -> str:
    """Of all a distillation depends on: options, noise, key, both networks at the start, who owns what.

    It is written to the disk, so it contains no key, only a digest that follows from the key.
    """
    state = hashlib.sha256(repr((VERSION, protection.options(), str(classifier))).encode())
    state.update(protection.source.of("fingerprint").key)
    networks = (t for n in (distiller, classifier) for t in n.state_dict().values())
    for tensor in _all(networks, (data.x, data.y, data.owned, data.size)):
        state.update(repr((tensor.dtype, tuple(tensor.shape))).encode())
        state.update(tensor.detach().cpu().contiguous().numpy().data)
    return state.hexdigest()[:24]


def _all(*groups: Iterable[Tensor]) -> Iterable[Tensor]:
    for group in groups:
        yield from group


def _path(key: str) -> Path:
    return Path(platformdirs.user_cache_dir("fedpriv")) / "distilled" / f"{key}.pt"


def load(key: str) -> dict[str, Any] | None:
    path = _path(key)
    if not path.is_file():
        return None
    content = path.read_bytes()
    if hashlib.sha256(content[32:]).digest() != content[:32]:
        warnings.warn(f"{path} is damaged and is made anew", stacklevel=2)
        return None
    kept: dict[str, Any] = torch.load(io.BytesIO(content[32:]), weights_only=True, map_location="cpu")
    return kept


def save(key: str, state: dict[str, Any]) -> None:
    path, buffer = _path(key), io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomically(path, many=True) as file:  # two runs may distil the same at once
            file.write(hashlib.sha256(content).digest() + content)
    except OSError as error:
        warnings.warn(f"the distillation is not kept, the next run distils again ({error})", stacklevel=2)
