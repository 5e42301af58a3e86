"""One side of the data, training or test, on the device of a run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedpriv.datasets.base import Data

_READY = 512 << 20  # bytes up to which inputs are kept as numbers, so that no step converts pixels again

Side = Literal["train", "test", "validation"]


@dataclass(frozen=True)
class ClientData:
    """One side of the data on the device, and who owns which sample."""

    x: Tensor  # [N, ...] as stored (uint8 images), or already as a model sees them
    y: Tensor  # [N]
    owned: Tensor  # [K, widest] sample numbers of each client, padded with 0
    size: Tensor  # [K] on the CPU, samples of each client
    prepare: Callable[[Tensor], Tensor]  # stored samples -> what a model sees
    shared: tuple[Tensor, Tensor] | None = None  # inputs [M, ...] and labels [M] numbered behind all others

    @property
    def ready(self) -> bool:
        """Whether inputs are kept as a model sees them."""
        return self.prepare is _as_it_is

    @property
    def all_owned(self) -> Tensor:
        """The numbers of the samples somebody owns, client after client."""
        return torch.cat([own[:n] for own, n in zip(self.owned, self.size.tolist(), strict=True)])

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs as a model sees them and labels of samples `index`, of any shape."""
        flat = index.reshape(-1)  # index_select copies whole rows; x[index] would go element by element
        if self.shared is not None:
            return self._take_both(flat, index.shape, *self.shared)
        x = self.x.index_select(0, flat).view(*index.shape, *self.x.shape[1:])
        return self.prepare(x), self.y.index_select(0, flat).view(index.shape)

    def _take_both(
        self, flat: Tensor, shape: torch.Size, shared_x: Tensor, shared_y: Tensor
    ) -> tuple[Tensor, Tensor]:
        count = len(self.y)
        own, place, other = flat < count, flat.clamp(max=count - 1), (flat - count).clamp(min=0)
        x = self.prepare(self.x.index_select(0, place))
        shared = shared_x.index_select(0, other).to(x.dtype)
        x = torch.where(own.view(-1, *[1] * (x.dim() - 1)), x, shared)
        y = torch.where(own, self.y.index_select(0, place), shared_y.index_select(0, other))
        return x.view(*shape, *x.shape[1:]), y.view(shape)

    @classmethod
    def of(
        cls,
        data: Data,
        side: Side,
        parts: Sequence[np.ndarray],
        device: torch.device | str,
        dtype: torch.dtype,
    ) -> "ClientData":
        """One side; `validation` is made of the training samples in `parts` and no others."""
        x, y = (data.x_test, data.y_test) if side == "test" else (data.x_train, data.y_train)
        if side == "validation":
            held = np.sort(np.concatenate(parts))
            x, y = x[torch.as_tensor(held)], y[torch.as_tensor(held)]
            parts = [np.searchsorted(held, part) for part in parts]
        size = torch.tensor([len(p) for p in parts], dtype=torch.int64)
        owned = torch.zeros(len(parts), max(1, int(size.max())), dtype=torch.int64)
        for row, part in zip(owned, parts, strict=True):
            row[: len(part)] = torch.as_tensor(part)
        if x.numel() * dtype.itemsize <= _READY:
            x, prepare = data.prepare(x, dtype), _as_it_is
        else:
            prepare = partial(data.prepare, dtype=dtype)
        return cls(x.to(device), y.to(device), owned.to(device), size, prepare)


def _as_it_is(x: Tensor) -> Tensor:
    return x
