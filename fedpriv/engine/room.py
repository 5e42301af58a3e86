"""What fits on a device that is not the CPU, asked for where it is used: its memory is shared with others.

A CPU's chunks follow its caches; a device is fastest with as much at once as there is room for.
"""

import torch
from torch import Tensor

from fedpriv.accelerator import free_bytes
from fedpriv.randomness.source import Source

# Bytes a weight of a client takes beside itself while its noise is drawn: words, and what becomes of them.
_DRAWING = 32
_COPIES = 4  # of a client's weights: as trained, gradient, velocity, and what an algorithm adds
_SAMPLES = 1 << 16  # predicted at once, at most


def for_clients(device: torch.device, weights: int, floats: int, size: int) -> int:
    """How many clients of so many weights and activations, of `size` bytes each, train side by side in half
    of what is free: a power of two, so that it stays the same when a little more or less is free."""
    fitting = free_bytes(device) // 2 // (weights * (_COPIES * size + _DRAWING) + floats * size)
    return 1 << max(1, fitting).bit_length() - 1


def for_samples(device: torch.device, floats: int, size: int) -> int:
    """How many samples are predicted at once in a quarter of what is free, of all clients together."""
    return max(16, min(_SAMPLES, free_bytes(device) // 4 // max(1, floats * size)))


class Drawn:
    """The noise of all clients of a chunk, of as many steps in one draw as a quarter of what is free holds:
    a draw is hundreds of kernels, however much it draws."""

    def __init__(self, source: Source, who: Tensor, rows: Tensor, steps: int):
        self.source, self.who, self.rows, self.steps = source, who, rows, steps
        fitting = free_bytes(rows.device) // 4 // max(1, rows.numel() * _DRAWING)
        self.at_once, self.first = max(1, min(steps, fitting)), 0
        self.drawn: Tensor | None = None  # [steps, C, P], from step `first` on

    def add(self, target: Tensor, scale: Tensor, step: int) -> None:
        """target[i] += scale[i] * the noise of client i, of the first len(target) ones."""
        if self.drawn is None or step >= self.first + len(self.drawn):
            self.drawn = None  # not both at once
            some = range(step, min(step + self.at_once, self.steps))
            self.first, self.drawn = step, self.source.normals_there(self.who, self.rows.shape[1], some)
        z = self.drawn[step - self.first, : len(target)]
        target.addcmul_(z.to(target.dtype), scale[:, None].to(target.dtype))
