"""Where each parameter lives in a client's flat vector: sent parameters first, those kept at home after."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Entry:
    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


class Layout:
    """The flat order of a network's parameters; `sent` is D, `total` is P = D + what stays at home."""

    def __init__(self, named: dict[str, Tensor], home: Iterable[str] = ()):
        home = set(home)
        if unknown := home - named.keys():
            raise ValueError(f"not parameters of the network: {sorted(unknown)}")
        order = [n for n in named if n not in home] + [n for n in named if n in home]
        self.entries: list[Entry] = []
        position = 0
        for name in order:
            shape = tuple(named[name].shape)
            self.entries.append(Entry(name, shape, position, position + prod(shape)))
            position += prod(shape)
        self.total = position
        self.sent = sum(e.stop - e.start for e in self.entries if e.name not in home)

    @classmethod
    def of_parameters(cls, network: nn.Module, home: Iterable[str] = ()) -> "Layout":
        return cls(dict(network.named_parameters()), home)

    @classmethod
    def of_statistics(cls, network: nn.Module) -> "Layout":
        """The running statistics of norm layers: never trained by a gradient, never sent."""
        return cls({n: b for n, b in network.named_buffers() if b.is_floating_point()})

    @property
    def sent_entries(self) -> list[Entry]:
        """The tensors that leave a client, in order (per-tensor methods cut the upload here)."""
        return [e for e in self.entries if e.stop <= self.sent]

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """Named [C, *shape] views into rows [C, P]; writing to a view writes to the rows."""
        return {e.name: rows[:, e.start : e.stop].unflatten(1, e.shape or (1,)) for e in self.entries}

    def flatten(self, network: nn.Module) -> Tensor:
        """The network's current values as one vector [P]."""
        named = dict(network.named_parameters()) | dict(network.named_buffers())
        parts = [named[e.name].detach().reshape(-1) for e in self.entries]
        return torch.cat(parts) if parts else torch.zeros(0)

    def write(self, row: Tensor, network: nn.Module) -> None:
        """Copy one vector [P] into the network."""
        named = dict(network.named_parameters()) | dict(network.named_buffers())
        with torch.no_grad():
            for e in self.entries:
                named[e.name].copy_(row[e.start : e.stop].view(e.shape))
