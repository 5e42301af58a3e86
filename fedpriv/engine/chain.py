"""Chains of layers on a CPU: which they are, and what the compiled steps (compiled.py) are told of them."""

from dataclasses import dataclass
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
from fedpriv.transforms.elementwise import Affine, Elementwise, Square

LINEAR, CONVOLUTION, POOL, TURN, NORM = 0, 1, 2, 3, 4  # as compiled.py has them, which takes time to import
NOTHING, TANH, RELU, SIGMOID = 0, 1, 2, 3
_APPLIED: dict[type[nn.Module], int] = {nn.Tanh: TANH, nn.ReLU: RELU, nn.Sigmoid: SIGMOID}
_WORTH = 100_000_000  # multiplications a round from which on it pays to compile, once, for some seconds
_CACHE = 1 << 20  # bytes of weights that clients trained together may have
_DEARER = 20  # times as much with convolutions, which take longer to compile
_ROOM = 1 << 28  # bytes that a worker's numbers may take
_LARGE = 1 << 16  # weights of a kernel that is left to torch
_EIGHT = 8  # as in images.py
_DEALT = 2  # groups at least, so that workers end together


@dataclass(frozen=True)
class Chain:
    """Linear layers, norms behind them, convolutions, pools, activations one behind the other; in front an
    elementwise transform or none."""

    widths: np.ndarray  # [L + 1] numbers of a sample
    layers: np.ndarray  # [L, 7] as compiled.steps has them, and `shapes`; rooms are of one sample
    shapes: np.ndarray  # [L, 13]
    tuned: np.ndarray  # [L, 2] eps and momentum of norms
    room: tuple[int, int, int]  # patches and gradients of kernels of one sample; kernels
    homes: np.ndarray  # [2, 2] where scales and shifts of inputs begin, and how many there are
    by: np.ndarray  # [4, D] scale and shift where they are fixed, and factor and summand behind them
    front: np.ndarray  # [3] whether there is a transform, whether of squares, and what is applied to it
    sent: int  # weights of a row that are shared

    @classmethod
    def of(
        cls, network: nn.Module, layout: Layout, buffers: Layout, shape: tuple[int, ...]
    ) -> "Chain | None":
        """What the network is for samples of a shape, or None where it is something else."""
        if type(network) is not Network or type(network.model) is not nn.Sequential:
            return None
        begin, kept = (
            {e.name: (e.start, e.stop - e.start) for e in entries.entries} for entries in (layout, buffers)
        )
        found = _layers(network.model, begin | kept, layout.sent, shape)
        before = _front(network.transform)
        if found is None or before is None:
            return None
        (affine, front), standard, width = before, network.standard, prod(shape)
        if standard is not None and (front[0] == 0 or front[2] != NOTHING):
            return None
        homes, by = np.zeros((2, 2), np.int64), np.zeros((4, width), np.float32)
        for n, name in enumerate(("alpha", "beta")):
            value = getattr(affine, name, 1 - n)
            if isinstance(value, Tensor):
                homes[n] = begin[f"transform.{front[1]}.{name}"]  # a square stands before it
            else:
                by[n] = value
        mean, deviation = (s.double().flatten().numpy() for s in standard or (torch.zeros(1), torch.ones(1)))
        by[2], by[3] = 1 / deviation, -mean / deviation
        layers, shapes, widths = (np.array(t, np.int64) for t in found[:3])
        tuned = np.array(found[3], np.float32)
        return cls(np.append(width, widths), layers, shapes, tuned, found[4], homes, by, front, layout.sent)

    @property
    def products(self) -> int:
        """Multiplications of one sample forward."""
        dense, convolved = (self.layers[:, 0] == kind for kind in (LINEAR, CONVOLUTION))
        inputs = dense * self.widths[:-1] + convolved * self.shapes[:, [0, 3, 4]].prod(1)  # of an output
        return int((self.widths[1:] * inputs).sum())

    @property
    def floats(self) -> int:
        """Numbers kept of one sample: outputs and their gradients, inputs as they were, patches, kernels."""
        return int(2 * self.widths.sum() + self.widths[0] + sum(self.room[:2]))

    @property
    def mixes(self) -> bool:
        """Whether samples of a batch meet in a norm, so that no gradient is that of one sample."""
        return bool(((self.layers[:, 0] == NORM) & (self.shapes[:, 0] == 0)).any())

    def worth(self, samples: int, times: int) -> bool:
        """Whether it pays to compile for that many samples, where it must bring so many times as much."""
        return samples * self.products >= _WORTH * times

    def takes(self, work: Work, data: ClientData) -> bool:
        """Whether this is work for it: training, and enough of it."""
        numbers = [work.rows, work.buffers, data.x, *(data.shared or ())[:1]]
        return (
            self.worth(int(work.plan.taken.sum()), _DEARER if self.room[0] else 1)
            and work.plan.index.shape[2] * self.floats * 4 <= _ROOM
            and work.measured is None
            and not (work.private and self.mixes)
            and data.ready
            and all(n.dtype == torch.float32 for n in numbers)
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
        from fedpriv.engine.compiled import steps as compiled

        everyone = chunk = Chunk.of(work, data, chosen)
        private, own = work.private, chunk.sizes
        staying = work.plan.active[chosen].sum(0).numpy()  # who is done comes last
        count, total = int((staying > 0).sum()), np.zeros(len(own))
        # Plain steps are made in place, others along a gradient of their own.
        in_place = work.plain or not (private or work.momentum or work.weight_decay or work.correction)
        gradient = chunk.rows if in_place else torch.empty_like(chunk.rows)
        rates = np.negative(work.lr if in_place else np.full(len(work.lr), -1.0))
        homes = rates if work.home_lr is None or not in_place else np.full_like(rates, -work.home_lr)
        key, names, deviations = np.zeros(0, np.uint32), np.zeros((0, 3), np.uint32), torch.zeros(0, 0)
        if private and private.noise:
            key, names = private.noise.named(chunk.who)
            deviations = (
                torch.from_numpy(rates).float()[:, None] / private.lot * private.noise_std[chunk.here]
            )
            deviations = deviations * chunk.active.T
        given = (
            np.stack([rates, homes]), key, names, deviations.numpy(), staying, total,
            *self._given(work, data, chunk),
        )  # fmt: skip
        rows, target = chunk.rows.numpy(), gradient.numpy()
        if in_place and not work.after_step:
            compiled(rows, target, 0, count, *given)
        else:
            for number in range(count):
                if not in_place:
                    gradient.zero_()
                compiled(rows, target, number, number + 1, *given)
                if isinstance(chosen, Tensor) and staying[number] < len(chunk.rows):
                    chunk = chunk.first(int(staying[number]))
                if not in_place:
                    chunk.move(work, gradient[: len(chunk.rows)], number, self.sent)
                if work.after_step:
                    work.after_step(chunk.rows[:, : self.sent], chunk.here)
        everyone.write(work)
        every = own.sum(1)
        mean = (torch.from_numpy(total) / every.clamp(min=1)).nan_to_num(nan=torch.inf)
        loss[everyone.here] = torch.where(every > 0, mean, torch.nan).to(loss.dtype)

    def _given(self, work: Work, data: ClientData, chunk: Chunk) -> tuple[Any, ...]:
        """What compiled.steps is told of samples and layers at every step, and room for its numbers."""
        shared = torch.zeros_like(chunk.sizes) if chunk.shared is None else chunk.shared
        counts, most = torch.stack([chunk.sizes, shared]).numpy(), chunk.samples.shape[2]
        x, y = data.x.flatten(1), data.y
        more, labels = (x[:0], y[:0]) if data.shared is None else data.shared
        room = int(self.widths.sum()) * most
        raw = most * self.widths[0] if self.front[0] else 0
        patches, kernels, fixed = np.multiply(self.room, (most, most, 1))
        layers, kinds = self.layers.copy(), self.layers[:, 0]
        # What there is none of is None, and code for it is not even compiled.
        images, normed = ~np.isin(kinds, (LINEAR, NORM)).all(), (kinds == NORM).any()
        layers[:, 4:6] *= most
        clip, lot = (work.private.clip_norm, work.private.lot) if work.private else (0.0, 1.0)
        return (
            chunk.samples.numpy(), counts, *(t.numpy() for t in (x, y, more.flatten(1), labels)),
            self.widths, layers, self.shapes, self.tuned, chunk.statistics.numpy() if normed else None,
            self.homes, self.by.copy(), self.front, clip, lot,
            *(np.empty(int(n), np.float32) for n in (room, room, raw)),
            np.ones(max(raw, self.widths.max()), np.float32),
            *([np.empty(int(n), np.float32) for n in (patches, kernels, fixed)] if images else [None] * 3),
            np.empty(room, np.int32) if images else None,
        )  # fmt: skip


def _front(transform: nn.Module) -> tuple[nn.Module, np.ndarray] | None:
    """The affine part of a transform and `front`; None: another transform."""
    layers = list(transform) if isinstance(transform, Elementwise) else [transform]
    if type(layers[0]) is nn.Identity:
        return layers[0], np.zeros(3, np.int64)
    square = type(layers[0]) is Square
    affine, *behind = layers[square:]
    if type(affine) is not Affine or len(behind) > 1 or any(type(b) not in _APPLIED for b in behind):
        return None
    return affine, np.array([1, square, *[_APPLIED[type(b)] for b in behind], NOTHING][:3])


def _layers(
    model: nn.Sequential, begin: dict[str, tuple[int, int]], sent: int, shape: tuple[int, ...]
) -> Any:
    """Rows of `layers` and `shapes`, numbers behind each layer, rows of `tuned`, and the room they need;
    None: others."""
    layers: list[list[int]] = []
    shapes: list[list[int]] = []
    widths: list[int] = []
    tuned: list[tuple[float, float]] = []
    patches = kernels = 0
    image = False  # whether the numbers are those of images.py, channels last

    def add(
        kind: int, places: list[int], sizes: list[int], width: int, more: tuple[float, float] = (0, 0)
    ) -> None:
        layers.append([kind, NOTHING, *(places + [0] * 5)[:5]])
        shapes.append((sizes + [0] * 13)[:13])
        widths.append(width)
        tuned.append(more)

    for name, layer in model._modules.items():  # not named_children, which skips a second name
        assert layer is not None
        kind, weight = type(layer), begin.get(f"model.{name}.weight", (-1,))[0]
        bias = begin.get(f"model.{name}.bias", (-1,))[0]
        if kind in _APPLIED:
            if not layers or layers[-1][1] != NOTHING:
                return None
            layers[-1][1] = _APPLIED[kind]
        elif _flattens(layer):
            if image and 1 not in (shape[0], prod(shape[1:])):
                add(TURN, [], [prod(shape[1:]), shape[0]], prod(shape))
            shape, image = (prod(shape),), False
        elif isinstance(layer, nn.Linear) and kind is nn.Linear and shape == (layer.in_features,):
            shape = (layer.out_features,)
            add(LINEAR, [weight, bias], [], prod(shape))
        elif isinstance(layer, nn.GroupNorm | nn.BatchNorm1d) and _normal(layer, shape):
            if not layers or layers[-1][:2] != [LINEAR, NOTHING]:
                return None  # its inputs are overwritten, which nothing but a dense layer allows
            groups = layer.num_groups if isinstance(layer, nn.GroupNorm) else 0
            running = [begin.get(f"model.{name}.running_{n}", (0,))[0] for n in ("mean", "var")]
            momentum = getattr(layer, "momentum", 0.0)
            sizes_of = [groups, int(weight >= sent), int(bias >= sent), *running]
            add(NORM, [weight, bias], sizes_of, prod(shape), (layer.eps, momentum))
        elif isinstance(layer, nn.Conv2d | nn.MaxPool2d) and len(shape) == 3 and _simple(layer):
            if not image and shape[0] > 1:
                add(TURN, [], [shape[0], prod(shape[1:])], prod(shape))
            image = True
            sizes = [_pair(v) for v in (layer.kernel_size, layer.stride, layer.padding)]
            (kh, kw), (sh, sw), (ph, pw) = sizes
            height, width = (shape[1] + 2 * ph - kh) // sh + 1, (shape[2] + 2 * pw - kw) // sw + 1
            if min(height, width) < 1:
                return None  # which torch refuses in its own words
            channels, patch = shape[0], -(-(shape[0] * kh * kw + 1) // _EIGHT) * _EIGHT
            sizes_of = [*shape, kh, kw, sh, sw, ph, pw, height, width]
            if isinstance(layer, nn.Conv2d):
                channels = layer.out_channels
                add(
                    CONVOLUTION,
                    [weight, bias, patches, kernels, 2 * kernels],
                    [*sizes_of, channels, patch],
                    channels * height * width,
                )
                patches, kernels = patches + height * width * patch, kernels + channels * patch
            else:
                add(POOL, [], sizes_of, channels * height * width)
            shape = (channels, height, width)
        elif kind is nn.Identity:
            continue
        else:
            return None
        if len(list(layer.parameters())) != (weight >= 0) + (bias >= 0):
            return None  # one layer under two names, or one parameter in two layers
    if not layers or layers[-1][:2] != [LINEAR, NOTHING]:
        return None
    return layers, shapes, widths, tuned, (patches, kernels, 2 * kernels)


def _normal(layer: nn.GroupNorm | nn.BatchNorm1d, shape: tuple[int, ...]) -> bool:
    """Whether it is one of ours: weights, and running averages where samples meet."""
    if isinstance(layer, nn.GroupNorm):
        return type(layer) is nn.GroupNorm and layer.affine and shape == (layer.num_channels,)
    averages = layer.track_running_stats and layer.momentum is not None
    return type(layer) is nn.BatchNorm1d and layer.affine and averages and shape == (layer.num_features,)


def _flattens(layer: nn.Module) -> bool:
    """Whether it makes one row of each sample, and does nothing else."""
    return type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)


def _simple(layer: nn.Conv2d | nn.MaxPool2d) -> bool:
    """Whether it is one of ours: small kernels, nothing unusual about them."""
    if isinstance(layer, nn.MaxPool2d):
        usual = _pair(layer.padding) == (0, 0) and not layer.ceil_mode and not layer.return_indices
        return type(layer) is nn.MaxPool2d and usual and _pair(layer.dilation) == (1, 1)
    usual = layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    small = layer.weight.numel() < _LARGE
    return type(layer) is nn.Conv2d and usual and small and _pair(layer.dilation) == (1, 1)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])  # torch takes (2,) for (2, 2)
