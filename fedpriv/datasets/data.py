"""A loaded dataset: plain tensors, and how they become what a model sees."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a data set that is only named needs no torch
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Data:
    """Training and test samples as stored; `prepare` scales them, so storage stays small."""

    name: str
    x_train: "Tensor"  # uint8 images [N, C, H, W], float32 vectors [N, d] or int64 token ids [N, T]
    y_train: "Tensor"  # int64 [N]
    x_test: "Tensor"
    y_test: "Tensor"
    classes: int
    mean: tuple[float, ...] = (0.0,)  # per channel, after uint8 / 255; one value serves all channels
    std: tuple[float, ...] = (1.0,)
    vocabulary: int = 0  # token data only: number of ids, padding and unknown included
    owners: tuple["Tensor", ...] = ()  # whose each training, and perhaps each test, sample is: int64 [N]
    not_covered: tuple[str, ...] = ()  # what went into these samples from everybody's
    standard: "tuple[Tensor, Tensor] | None" = None  # mean and deviation [d] of what a transform gives

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x_train.shape[1:])

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen characters that change with any sample, label or scale."""
        found = hashlib.sha256(repr((self.classes, self.mean, self.std, self.vocabulary)).encode())
        for part in (self.x_train, self.y_train, self.x_test, self.y_test, *self.owners):
            found.update(f"{part.dtype} {tuple(part.shape)}".encode())
            found.update(part.contiguous().numpy().data)
        for statistic in self.standard or ():
            found.update(statistic.contiguous().numpy().data)
        return found.hexdigest()[:16]

    def prepare(self, x: "Tensor", dtype: "torch.dtype | None" = None) -> "Tensor":
        """Scale samples of any leading shape, into float32 unless told; token ids pass unchanged."""
        import torch

        from fedpriv.accelerator import there

        dtype = dtype or torch.float32
        if x.dtype == torch.int64:
            return x
        pixels = x.dtype == torch.uint8
        scale = 1 / 255 if pixels else 1.0
        if len(set(self.mean)) == 1 and len(set(self.std)) == 1:
            factor, offset = scale / self.std[0], -self.mean[0] / self.std[0]
            if pixels:  # the conversion made a copy, which may be overwritten
                return x.to(dtype).mul_(factor).add_(offset)
            return x.to(dtype) if (factor, offset) == (1.0, 0.0) else x.to(dtype) * factor + offset
        trailing = [1] * (len(self.shape) - 1)  # channels come first in a sample
        std, mean = (
            there(torch.tensor(values, dtype=dtype), x.device).view(-1, *trailing)  # [C, 1, 1]
            for values in (self.std, self.mean)
        )
        return x.to(dtype) * (scale / std) - mean / std
