"""What runs need to know of a device that is not the CPU: what it lacks, its room, and how to reach it."""

import os
from typing import Any

import torch
from torch import Tensor

from fedpriv.errors import UserError

LACKING = {"mps": ("float64", "eigh")}  # by kind of device
_UNKNOWN = 1 << 30  # bytes taken for free where nobody can say


def exact_products() -> None:
    """Products of whole floats: TF32 keeps ten bits, and clipping would hold to 5e-4 only. And kernels that
    add up in the same order every time, where there are such; torch warns where there are not."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False  # it would choose kernels by a stop-watch
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS promises no order
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def described(device: torch.device) -> str:
    """A few words for the screen."""
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    return device.type


def refuse_lacking(kind: str, what: str, needs: tuple[str, ...]) -> None:
    """Refuse in one line what needs something a kind of device has not."""
    if lacking := [n for n in needs if n in LACKING.get(kind, ())]:
        raise UserError(f"device={kind}: has no {lacking[0]}, which {what} needs; use device=cpu")


def widest(device: torch.device) -> torch.dtype:
    """The floats to add up in."""
    return torch.float32 if "float64" in LACKING.get(device.type, ()) else torch.float64


def free_bytes(device: torch.device) -> int:
    """What could be allocated now on a device that is not the CPU."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by torch, unused
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory()) - int(torch.mps.current_allocated_memory())
    return _UNKNOWN


def there(values: Any, device: torch.device) -> Tensor:
    """A tensor, an array or a list on a device, without waiting for what the device is at."""
    return torch.as_tensor(values).to(device, non_blocking=device.type != "mps")
