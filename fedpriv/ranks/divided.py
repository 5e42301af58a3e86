"""The clients' store of a run over several processes: each rank keeps the rows of its own clients.

These are neighbours, as the clients of most training groups are, so most rows are where they are needed.
Others come as guests while they are trained or judged, straight from the rank that keeps them, and go back to
it changed.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedpriv.ranks.group import Group
from fedpriv.rounds.store import ClientStore


class DividedStore(ClientStore):
    """A rank's part: tensors with a row for each client it keeps, and behind these rows for guests."""

    def __init__(self, clients: int, ranks: Group, device: torch.device | str = "cpu"):
        self.ranks, own = ranks, ranks.share(range(clients))
        super().__init__(len(own), device)
        self._ends = [ranks.share(range(clients), rank)[-1] + 1 for rank in range(ranks.count)]
        self._places = torch.full(
            (clients,), clients
        )  # no tensor has so many rows: to ask for it is an error
        self._places[own[0] : own[-1] + 1] = torch.arange(len(own))
        self._guests = torch.arange(0)

    def at(self, clients: np.ndarray | Tensor) -> Tensor:
        return self._places[torch.as_tensor(clients, device="cpu")].to(self.device)

    def anywhere(self, found: bool) -> bool:
        return any(self.ranks.all_of(found))

    def fetch(self, parts: Sequence[Tensor]) -> None:
        self._places[self._guests] = len(self._places)
        clients, home, away = self._moves(parts)
        self._guests = clients[away == self.ranks.rank]
        rows = self.clients + len(self._guests)
        self._places[self._guests] = torch.arange(self.clients, rows)
        for owner, tensor in self._tensors.items():
            if len(tensor) < rows:
                room = tensor.new_empty(rows, *tensor.shape[1:])
                room[: self.clients] = tensor[: self.clients]
                self._tensors[owner] = room
        self._move(tuple(self._tensors), clients, home, away)

    def settle(self, parts: Sequence[Tensor], *owners: str) -> None:
        clients, home, away = self._moves(parts)
        self._move(owners, clients, away, home)

    def _moves(self, parts: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """The clients that are in another rank's part than the one that keeps them, [M]; and both ranks."""
        each = [part.cpu().unique() for part in parts]
        clients, away = torch.cat(each), torch.repeat_interleave(torch.tensor([*map(len, each)]))
        home = torch.bucketize(clients, torch.tensor(self._ends), right=True)
        moving = home != away
        return clients[moving], home[moving], away[moving]

    def _move(self, owners: Sequence[str], clients: Tensor, source: Tensor, target: Tensor) -> None:
        """Rows go from one rank to another each, [M]."""
        everybody, me = range(self.ranks.count), self.ranks.rank
        for owner in owners:
            tensor = self._tensors[owner]
            for some in self.ranks.pieces(tensor, len(clients)):
                who, leaves, arrives = clients[some], source[some] == me, target[some] == me
                self.ranks.carry(
                    tensor,
                    [self.at(who[leaves & (target[some] == rank)]) for rank in everybody],
                    [self.at(who[arrives & (source[some] == rank)]) for rank in everybody],
                )

    # -- all of it, where it is written and read

    def whole(self, folder: Path | None = None) -> ClientStore:
        found = ClientStore(len(self._places))
        for owner, tensor in self._tensors.items():
            shape = (len(self._places), *tensor.shape[1:])
            if self.ranks.rank == 0:
                found._tensors[owner] = room = _room(shape, tensor.dtype, folder)
                room[: self.clients] = tensor[: self.clients]
            for rank, (first, last) in enumerate(zip(self._ends, self._ends[1:], strict=False), 1):
                rows = room[first:last] if self.ranks.rank == 0 else tensor[: self.clients]
                self.ranks.hand(rows, rank, 0)
        return found

    def load(self, state: dict[str, Tensor]) -> None:
        """`state` is the first rank's; the others are given their rows."""
        for owner, tensor in self._tensors.items():
            if self.ranks.rank == 0:
                tensor[: self.clients] = state[owner][: self.clients].to(tensor)
            for rank, (first, last) in enumerate(zip(self._ends, self._ends[1:], strict=False), 1):
                rows = state[owner][first:last] if self.ranks.rank == 0 else tensor[: self.clients]
                self.ranks.hand(rows, 0, rank)


def _room(shape: tuple[int, ...], dtype: torch.dtype, folder: Path | None) -> Tensor:
    """Memory, or a file without a name that is gone with the tensor."""
    if folder is None or 0 in shape:
        return torch.empty(shape, dtype=dtype)
    like = torch.empty(0, dtype=dtype).numpy().dtype
    with tempfile.TemporaryFile(dir=folder) as file:
        return torch.from_numpy(np.memmap(file, like, "w+", shape=shape))
