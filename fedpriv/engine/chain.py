"""Chains of layers on a CPU: which they are, and what the compiled step (compiled.py) is told about them."""

import ctypes
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedpriv.engine.chunk import Chunk
from fedpriv.engine.data import ClientData
from fedpriv.engine.layout import Layout
from fedpriv.engine.work import Rows, Work, blocks
from fedpriv.models.parts import Network
from fedpriv.transforms.elementwise import Affine, Elementwise

LINEAR, CONVOLUTION, POOL = 0, 1, 2  # as compiled.py has them, which takes time to import
NOTHING, TANH, RELU = 0, 1, 2
_WORTH = 1 << 27  # multiplications a round from which on it pays to compile, once, for some seconds
_CACHE = 1 << 20  # bytes of weights that clients trained together may have
_LARGE = 1 << 15  # weights of a kernel that is left to torch
_DEALT = 2  # groups at least, so that workers end together


@cache
def _blas() -> int:
    """Where torch's own matrix product is, or, where it hides it, scipy's."""
    try:
        return int(ctypes.cast(ctypes.CDLL(torch._C.__file__).sgemm_, ctypes.c_void_p).value or 0)
    except AttributeError:
        from numba.extending import get_cython_function_address

        return int(get_cython_function_address("scipy.linalg.cython_blas", "sgemm"))


@dataclass(frozen=True)
class Chain:
    """Linear layers, convolutions, pools, activations one behind the other; in front an affine transform or
    none."""

    widths: np.ndarray  # [L + 1] numbers of a sample
    layers: np.ndarray  # [L, 6] as compiled.step has them, and `shapes`; rooms are of one sample
    shapes: np.ndarray  # [L, 12]
    room: tuple[int, int]  # patches, and each sample's kernels, of one sample
    homes: np.ndarray  # [2, 2] where scales and shifts of inputs begin, and how many there are
    by: np.ndarray  # [4, D] scale and shift where they are fixed, and factor and summand behind them

    @classmethod
    def of(cls, network: nn.Module, layout: Layout, shape: tuple[int, ...]) -> "Chain | None":
        """What the network is for samples of a shape, or None where it is something else."""
        if type(network) is not Network or type(network.model) is not nn.Sequential:
            return None
        begin = {e.name: (e.start, e.stop - e.start) for e in layout.entries}
        found = _layers(network.model, begin, shape)
        transform, standard, width = network.transform, network.standard, prod(shape)
        affine = transform[0] if isinstance(transform, Elementwise) and len(transform) == 1 else transform
        if found is None or type(affine) not in (nn.Identity, Affine):
            return None
        if standard is not None and not list(affine.parameters()):
            return None
        homes, by = np.zeros((2, 2), np.int64), np.zeros((4, width), np.float32)
        for n, name in enumerate(("alpha", "beta")):
            value = getattr(affine, name, 1 - n)
            if isinstance(value, Tensor):
                homes[n] = begin[f"transform.0.{name}"]
            else:
                by[n] = value
        mean, deviation = (s.double().flatten().numpy() for s in standard or (torch.zeros(1), torch.ones(1)))
        by[2], by[3] = 1 / deviation, -mean / deviation
        layers, shapes, widths = (np.array(t, np.int64) for t in found[:3])
        return cls(np.append(width, widths), layers, shapes, found[3], homes, by)

    @property
    def products(self) -> int:
        """Multiplications of one sample forward."""
        linear = self.layers[:, 0] == LINEAR
        dense = (self.widths[:-1] * self.widths[1:])[linear].sum()
        return int(
            dense
            + (self.widths[1:] * self.shapes[:, [0, 3, 4]].prod(1))[self.layers[:, 0] == CONVOLUTION].sum()
        )

    def takes(self, work: Work, data: ClientData) -> bool:
        """Whether this is work for it: plain steps along (clipped) gradients, and enough of them."""
        plan = work.plan
        products = plan.index.numel() * self.products
        return (
            products >= _WORTH
            and not (work.momentum or work.weight_decay or work.correction or work.after_step)
            and not (work.private and work.home_lr is not None)
            and (work.measured, plan.shared, data.shared) == (None, None, None)
            and data.ready
            and (work.rows.dtype, data.x.dtype) == (torch.float32, torch.float32)
        )

    def together(self, work: Work) -> int:
        """How many clients are trained together: as many as fit into a cache, and some for every worker."""
        size = work.rows.shape[1] * work.rows.element_size()
        return max(1, min(_CACHE // size, -(-len(work.clients) // _DEALT)))

    def train(self, work: Work, data: ClientData, group: Rows, loss: Tensor) -> None:
        """All local steps of a group, in place, as many clients at a time as fit into a cache."""
        for some in blocks(group, self.together(work)):
            self._train(work, data, some, loss)

    def _train(self, work: Work, data: ClientData, chosen: Rows, loss: Tensor) -> None:
        from fedpriv.engine.compiled import step as compiled

        chunk, private, steps = (
            Chunk.of(work, data, chosen),
            work.private,
            work.plan.active[chosen].sum(0).tolist(),
        )
        counts, x, y = chunk.sizes.numpy(), data.x.flatten(1).numpy(), data.y.numpy()
        rows, samples, total = chunk.rows.view(-1).numpy(), chunk.samples.numpy(), np.zeros(len(chunk.rows))
        room = int(self.widths.sum()) * samples.shape[2]
        a, g = np.empty(room, np.float32), np.empty(room, np.float32)
        raw = np.empty(samples.shape[2] * self.widths[0] if self.homes.any() else 0, np.float32)
        ones = np.ones(max(len(raw), self.widths.max()), np.float32)
        more = [np.empty(samples.shape[2] * size, np.float32) for size in self.room]
        more.append(np.empty(room if POOL in self.layers[:, 0] else 0, np.int64))
        layers = self.layers.copy()
        layers[:, 4:] *= samples.shape[2]
        clip, lot = (private.clip_norm, private.lot) if private else (0.0, 1.0)
        by = self.by.copy()
        who = chunk.who.numpy()
        if private:  # of the noise, [T, C]
            scale = -torch.tensor(work.lr)[:, None] / lot * private.noise_std[chunk.here]
        for number, left in enumerate(filter(None, steps)):  # who is done comes last
            lr = work.lr[number]
            home = lr if work.home_lr is None else work.home_lr
            compiled(
                _blas(), rows, samples, counts, number, x, y, self.widths, layers, self.shapes, self.homes,
                by, lr, home, clip, lot, total, a, g, raw, ones, *more,
            )  # fmt: skip
            if private and private.noise:
                private.noise.add_normals_(chunk.rows[:left], scale[number, :left], who[:left], number)
        chunk.write(work)
        every = chunk.sizes.sum(1)
        mean = (torch.from_numpy(total) / every.clamp(min=1)).nan_to_num(nan=torch.inf)
        loss[chunk.here] = torch.where(every > 0, mean, torch.nan).to(loss.dtype)


def _layers(
    model: nn.Sequential, begin: dict[str, tuple[int, int]], shape: tuple[int, ...]
) -> tuple[list[list[int]], list[list[int]], list[int], tuple[int, int]] | None:
    """Rows of `layers` and `shapes`, numbers behind each layer, and the room a sample needs; None: others."""
    layers: list[list[int]] = []
    shapes: list[list[int]] = []
    widths: list[int] = []
    patches = kernels = 0
    for name, layer in model._modules.items():  # not named_children, which skips a second name
        assert layer is not None
        kind, weight = type(layer), begin.get(f"model.{name}.weight", (-1,))[0]
        bias = begin.get(f"model.{name}.bias", (-1,))[0]
        if kind in (nn.Tanh, nn.ReLU):
            if not layers or layers[-1][1] != NOTHING:
                return None
            layers[-1][1] = TANH if kind is nn.Tanh else RELU
        elif isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1):
            shape = (prod(shape),)
        elif isinstance(layer, nn.Linear) and kind is nn.Linear and shape == (layer.in_features,):
            shape = (layer.out_features,)
            layers.append([LINEAR, NOTHING, weight, bias, 0, 0])
            shapes.append([0] * 12)
        elif isinstance(layer, nn.Conv2d | nn.MaxPool2d) and len(shape) == 3 and _simple(layer):
            sizes = [_pair(v) for v in (layer.kernel_size, layer.stride, layer.padding)]
            (kh, kw), (sh, sw), (ph, pw) = sizes
            height, width = (shape[1] + 2 * ph - kh) // sh + 1, (shape[2] + 2 * pw - kw) // sw + 1
            convolution = isinstance(layer, nn.Conv2d)
            channels = layer.out_channels if isinstance(layer, nn.Conv2d) else shape[0]
            layers.append([CONVOLUTION if convolution else POOL, NOTHING, weight, bias, patches, kernels])
            shapes.append([*shape, kh, kw, sh, sw, ph, pw, height, width, channels])
            if convolution:
                patches += height * width * shape[0] * kh * kw
                kernels += channels * (shape[0] * kh * kw + 1)
            shape = (channels, height, width)
        elif kind is nn.Identity:
            continue
        else:
            return None
        if weight < 0 and any(True for _ in layer.parameters()):
            return None  # one layer under two names
        if len(widths) < len(layers):
            widths.append(prod(shape))
    if not layers or layers[-1][:2] != [LINEAR, NOTHING]:
        return None
    return layers, shapes, widths, (patches, kernels)


def _simple(layer: nn.Conv2d | nn.MaxPool2d) -> bool:
    """Whether it is one of ours: small kernels, nothing unusual about them."""
    if isinstance(layer, nn.MaxPool2d):
        usual = _pair(layer.padding) == (0, 0) and not layer.ceil_mode and not layer.return_indices
        return type(layer) is nn.MaxPool2d and usual and _pair(layer.dilation) == (1, 1)
    usual = layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    small = layer.weight.numel() < _LARGE
    return type(layer) is nn.Conv2d and usual and small and _pair(layer.dilation) == (1, 1)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
