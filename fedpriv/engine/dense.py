"""Dense networks on a CPU: which they are, and what the compiled loop (compiled.py) is told about them."""

import ctypes
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from fedpriv.engine.chunk import Chunk
from fedpriv.engine.data import ClientData
from fedpriv.engine.layout import Layout
from fedpriv.engine.work import Rows, Work, blocks
from fedpriv.models.parts import Network
from fedpriv.transforms.elementwise import Affine, Elementwise

_WORTH = 1 << 27  # multiplications a round from which on it pays to compile, once, for some seconds
_CACHE = 1 << 20  # bytes of weights that clients trained together may have
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
class Dense:
    """Linear layers with one activation between them, and an affine transform in front or none."""

    widths: np.ndarray  # [L + 1]
    begins: np.ndarray  # [2, L] where weights and biases begin in a row; -1: no bias
    tanh: bool  # or relu
    homes: np.ndarray  # [2, 2] where scales and shifts of inputs begin, and how many there are
    by: np.ndarray  # [4, D] scale and shift where they are fixed, and factor and summand behind them

    @classmethod
    def of(cls, network: nn.Module, layout: Layout) -> "Dense | None":
        """What the network is, or None where it is something else."""
        if type(network) is not Network or type(network.model) is not nn.Sequential or not len(network.model):
            return None
        model, transform, standard = network.model, network.transform, network.standard
        first = model[0]
        if type(first) is not nn.Flatten or (first.start_dim, first.end_dim) != (1, -1):
            return None
        layers, between = [m for m in model if type(m) is nn.Linear], list(model)[2::2]
        kinds = {type(layer) for layer in between}
        if list(model)[1::2] != layers or len(layers) != len(between) + 1 or len(kinds) > 1:
            return None
        if not kinds <= {nn.Tanh, nn.ReLU}:
            return None
        affine = transform[0] if isinstance(transform, Elementwise) and len(transform) == 1 else transform
        if type(affine) not in (nn.Identity, Affine) or (standard and not list(affine.parameters())):
            return None
        begin = {e.name: (e.start, e.stop - e.start) for e in layout.entries}
        width = layers[0].in_features
        homes, by = np.zeros((2, 2), np.int64), np.zeros((4, width), np.float32)
        for n, name in enumerate(("alpha", "beta")):
            value = getattr(affine, name, 1 - n)
            if isinstance(value, Tensor):
                homes[n] = begin[f"transform.0.{name}"]
            else:
                by[n] = value
        mean, deviation = (s.double().flatten().numpy() for s in standard or (torch.zeros(1), torch.ones(1)))
        by[2], by[3] = 1 / deviation, -mean / deviation
        names = [f"model.{2 * n + 1}" for n in range(len(layers))]
        if any(f"{n}.weight" not in begin for n in names):  # one layer under two names
            return None
        return cls(
            widths=np.array([width, *(layer.out_features for layer in layers)], np.int64),
            begins=np.array(
                [[begin.get(f"{n}.{kind}", (-1,))[0] for n in names] for kind in ("weight", "bias")], np.int64
            ),
            tanh=nn.Tanh in kinds,
            homes=homes,
            by=by,
        )

    def takes(self, work: Work, data: ClientData) -> bool:
        """Whether this is work for it: plain steps along (clipped) gradients, and enough of them."""
        plan = work.plan
        products = plan.index.numel() * int((self.widths[:-1] * self.widths[1:]).sum())
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
        clip, lot = (private.clip_norm, private.lot) if private else (0.0, 1.0)
        by = self.by.copy()
        who = chunk.who.numpy()
        if private:  # of the noise, [T, C]
            scale = -torch.tensor(work.lr)[:, None] / lot * private.noise_std[chunk.here]
        for number, left in enumerate(filter(None, steps)):  # who is done comes last
            lr = work.lr[number]
            home = lr if work.home_lr is None else work.home_lr
            compiled(
                _blas(), rows, samples, counts, number, x, y, self.widths, self.begins, self.tanh, self.homes,
                by, lr, home, clip, lot, total, a, g, raw, ones,
            )  # fmt: skip
            if private and private.noise:
                private.noise.add_normals_(chunk.rows[:left], scale[number, :left], who[:left], number)
        chunk.write(work)
        every = chunk.sizes.sum(1)
        mean = (torch.from_numpy(total) / every.clamp(min=1)).nan_to_num(nan=torch.inf)
        loss[chunk.here] = torch.where(every > 0, mean, torch.nan).to(loss.dtype)
