"""Per-client tensors, one owner each: personal layers, norm statistics, control variates."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


class ClientStore:
    """Named tensors with a row for each client. An owner claims a name once and is the only one to write it.

    `store[name][store.at(clients)]` are the rows of some clients. In one process all are there; of several
    each keeps a part of them (ranks/divided.py) and has others' rows where it trains or judges these.
    """

    def __init__(self, clients: int, device: torch.device | str = "cpu"):
        self.clients, self.device = clients, torch.device(device)
        self._tensors: dict[str, Tensor] = {}

    def claim(self, owner: str, row: Tensor) -> None:
        """With what every client has at first."""
        if owner in self._tensors:
            raise ValueError(f"{owner} has an owner already")
        self._tensors[owner] = row.expand(self.clients, *row.shape).clone()

    def __getitem__(self, owner: str) -> Tensor:
        return self._tensors[owner]

    def at(self, clients: np.ndarray | Tensor) -> Tensor:
        """Where the rows of these clients are."""
        return torch.as_tensor(clients, device=self.device)

    def anywhere(self, found: bool) -> bool:
        """Whether something is found in the rows of any process."""
        return found

    def fetch(self, parts: Sequence[Tensor]) -> None:
        """Each process is going to look at the clients of its part, and perhaps to change their rows."""

    def settle(self, parts: Sequence[Tensor], *owners: str) -> None:
        """It has done so, to these owners' rows."""

    def whole(self, folder: Path | None = None) -> "ClientStore":
        """All clients' rows, for the first process; with a folder they are in a file of it, not in memory."""
        return self

    def state(self) -> dict[str, Tensor]:
        return dict(self._tensors)

    def load(self, state: dict[str, Tensor]) -> None:
        for owner, values in state.items():
            self._tensors[owner].copy_(values)
