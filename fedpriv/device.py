"""Where tensors live."""

import torch

from fedpriv.errors import UserError


def choose_device(name: str) -> torch.device:
    """The named device, or for auto the fastest kind there is."""
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(n for n, there in present.items() if there)
    if not present[name]:
        raise UserError(f"device={name}: there is none on this machine; use device=auto or device=cpu")
    return torch.device(name)
