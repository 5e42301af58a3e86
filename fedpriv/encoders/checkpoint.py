"""An encoder from a local file, such as SimCLR's (Chen et al., ICML 2020): the network without its head.

Files differ in how deep the state dict lies and what its names begin with; both are looked through. What the
network does not have (classifier, projection head, optimizer) is ignored; what it has must be there.
"""

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.datasets.normalize import SCALINGS, Scaling
from fedpriv.encoders import resnext29
from fedpriv.encoders.base import Encoder
from fedpriv.encoders.imagenet import RESNEXTS, headless
from fedpriv.errors import UserError

ARCHS = ("resnet50", "resnet18", "resnet34", "resnet101", *RESNEXTS, resnext29.ARCH)
NESTS = ("state_dict", "model", "encoder")
PREFIXES = r"^((module|model|backbone|encoder|convnet)\.)+"
CIFAR: Scaling = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2023, 0.1994, 0.2010)}
NORMALIZE = {**SCALINGS, "cifar": CIFAR}


def checkpoint(path: Path, arch: str, size: int | None, normalize: str) -> Encoder:
    small = arch == resnext29.ARCH
    network = resnext29.resnext29() if small else headless(arch)
    _load(network, _tensors(path), path, arch)
    return Encoder(network.eval(), size or (32 if small else 224), **NORMALIZE[normalize])


def _tensors(path: Path) -> dict[str, Tensor]:
    """The innermost state dict of the file."""
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as problem:  # unpickling raises nearly anything
        raise UserError(
            f"weights={path}: not a file of torch.save, or one with more than tensors and plain values; save "
            "its state dict alone with torch.save"
        ) from problem
    content = content if isinstance(content, dict) else {}
    while nest := next((name for name in NESTS if isinstance(content.get(name), dict)), None):
        content = content[nest]
    tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        raise UserError(f"weights={path}: no state dict in it or under {', '.join(NESTS)}; name another file")
    return tensors


def _load(network: nn.Module, tensors: dict[str, Tensor], path: Path, arch: str) -> None:
    # Files older than PyTorch 0.4.1 have no num_batches_tracked, and evaluation does not need it.
    own = {name: value for name, value in network.state_dict().items() if "num_batches" not in name}
    state: dict[str, Tensor] = {}
    for name, value in tensors.items():
        short = re.sub(PREFIXES, "", name)
        short = resnext29.rename(short) if arch == resnext29.ARCH else short
        if short in own and not torch.equal(state.setdefault(short, value), value):
            raise UserError(f"weights={path}: two networks in it have a {short}; save one state dict alone")
    if missing := [name for name in own if name not in state]:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise UserError(
            f"weights={path}: of {arch}'s {len(own)} tensors there is no {', '.join(missing[:3])}{more}; the "
            f"file has {', '.join(list(tensors)[:3])}, ...: set arch to the network it is of"
        )
    for name, value in own.items():
        if state[name].shape != value.shape:
            raise UserError(
                f"weights={path}: {name} has shape {tuple(state[name].shape)}, in {arch} it has "
                f"{tuple(value.shape)}; set arch to the network the file is of"
            )
    network.load_state_dict(state, strict=False)
