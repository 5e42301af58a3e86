"""Where tensors live."""

from typing import Any

import torch
from torch import Tensor

from fedpriv.errors import UserError


def _present() -> dict[str, bool]:
    return {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}


def kind_of_device(name: str) -> str:
    """cuda, mps or cpu as named, present or not; for auto the fastest kind there is."""
    return next(kind for kind, there in _present().items() if there) if name == "auto" else name


def choose_device(name: str) -> torch.device:
    """The named device, or for auto the fastest kind there is."""
    kind = kind_of_device(name)
    if not _present()[kind]:
        raise UserError(f"device={name}: there is none on this machine; use device=auto or device=cpu")
    return torch.device(kind)


def there(values: Any, device: torch.device) -> Tensor:
    """A tensor, an array or a list on a device, without waiting for what the device is at."""
    return torch.as_tensor(values).to(device, non_blocking=device.type != "mps")
