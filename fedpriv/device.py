"""Where tensors live. Which kind of device `auto` is, is a part of a run's name, so it is told without torch
where that is certain."""

import ctypes
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.errors import UserError

if TYPE_CHECKING:
    import torch

_DRIVERS = {"cuda": "libcuda.so.1", "hip": "libamdhip64.so"}  # without its driver a build finds no device


def _present() -> dict[str, bool]:
    import torch

    return {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}


def kind_of_device(name: str) -> str:
    """cuda, mps or cpu as named, present or not; for auto the fastest kind there is."""
    if name != "auto":
        return name
    if "torch" not in sys.modules and only_cpu():
        return "cpu"
    return next(kind for kind, there in _present().items() if there)


def only_cpu() -> bool:
    """Whether torch can have no other device here; False where it has to be asked."""
    spec = find_spec("torch")
    if not sys.platform.startswith("linux") or spec is None or not spec.submodule_search_locations:
        return False
    version = Path(spec.submodule_search_locations[0]) / "version.py"
    built = dict(re.findall(r"^(\w+)\b[^=\n]*= (.*)$", version.read_text(), re.MULTILINE))
    return all(built.get(kind) == "None" or _lacks(driver) for kind, driver in _DRIVERS.items())


def _lacks(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return True
    return False


def choose_device(name: str) -> "torch.device":
    """The named device, or for auto the fastest kind there is, made to give the same numbers every time."""
    import torch

    kind = kind_of_device(name)
    if not _present()[kind]:
        raise UserError(f"device={name}: there is none on this machine; use device=auto or device=cpu")
    if kind == "cuda":
        from fedpriv.accelerator import exact_products

        exact_products()
    return torch.device(kind)
