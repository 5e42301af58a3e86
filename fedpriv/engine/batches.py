"""Which samples each client uses at each local step: Poisson sampling (DP-SGD) or shuffled epochs.

The whole round is planned at once on the CPU, so both engines and every device see the same batches.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_BLOCK = 1 << 24  # uniforms drawn at once while planning, 64 MB


@dataclass(frozen=True)
class Plan:
    """Local batches of C clients over T steps; `index` counts within the client's own samples."""

    index: Tensor  # [C, T, B] int64, padded with 0
    size: Tensor  # [C, T] int64, how many of the B entries are real (0: an empty Poisson batch)
    active: Tensor  # [C, T] bool, whether the client takes this step at all
    shared: Tensor | None = None  # [C, T] entries behind the real ones that are no private samples but shared

    def rows(self, which: slice | Tensor) -> "Plan":
        shared = None if self.shared is None else self.shared[which]
        return Plan(self.index[which], self.size[which], self.active[which], shared)

    @property
    def taken(self) -> Tensor:
        """How many entries a step uses, own and shared, [C, T]."""
        return self.size if self.shared is None else self.size + self.shared


def steps_per_epoch(samples: Tensor, batch_size: int) -> Tensor:
    """Batches in one pass over each client's data, [C]."""
    return torch.div(samples + batch_size - 1, batch_size, rounding_mode="floor")


def local_steps(samples: Tensor, batch_size: int, epochs: int, steps: int | None) -> Tensor:
    """How many local steps each client takes a round, [C]: `steps` if given, else `epochs` passes."""
    return torch.full_like(samples, steps) if steps else steps_per_epoch(samples, batch_size) * epochs


def poisson(samples: Tensor, rates: Tensor, steps: Tensor, generator: torch.Generator) -> Plan:
    """Every sample joins every step's batch independently with the client's rate."""
    clients, horizon, widest = len(samples), int(steps.max()), int(samples.max())
    active = torch.arange(horizon)[None, :] < steps[:, None]  # [C, T]
    exists = torch.arange(widest)[None, :] < samples[:, None]  # [C, N]
    found = []
    per_block = max(1, _BLOCK // (clients * widest))
    for first in range(0, horizon, per_block):
        width = min(per_block, horizon - first)
        drawn = torch.rand(width, clients, widest, generator=generator) < rates[None, :, None].float()
        drawn &= exists
        drawn &= active.T[first : first + width, :, None]
        hits = drawn.nonzero()  # [hits, 3]: step, client, sample, sorted
        hits[:, 0] += first
        found.append(hits)
    step, client, sample = torch.cat(found).T
    cell = step * clients + client
    size = torch.bincount(cell, minlength=horizon * clients)
    place = torch.arange(len(cell)) - (size.cumsum(0) - size)[cell]
    index = torch.zeros(horizon, clients, max(1, int(size.max())), dtype=torch.int64)
    index[step, client, place] = sample
    return Plan(index.transpose(0, 1).contiguous(), size.view(horizon, clients).T.contiguous(), active)


def joined(own: Plan, shared: Plan, offsets: Tensor) -> Plan:
    """Both batches in one step: a client's own samples and behind them shared ones, from `offsets` on."""
    taken = own.size + shared.size
    width = max(own.index.shape[2], int(taken.max()))
    index = own.index.new_zeros(*taken.shape, width)
    index[:, :, : own.index.shape[2]] = own.index
    place = own.size[:, :, None] + torch.arange(shared.index.shape[2])  # [C, T, B']
    client, step, entry = (torch.arange(shared.index.shape[2]) < shared.size[:, :, None]).nonzero().T
    index[client, step, place[client, step, entry]] = shared.index[client, step, entry] + offsets[client]
    return Plan(index, own.size, own.active, shared.size)


def _order(keys: Tensor) -> Tensor:
    """Positions in each row by rising key, ties by position, of float32 keys that are not negative.

    Such floats sort as their bits do, so key and position fit into one integer, and sorting integers is
    seven times as fast as torch's argsort.
    """
    bits = keys.numpy().view(np.int32).astype(np.int64) << 32
    bits |= np.arange(keys.shape[1])
    bits.sort(axis=1)
    return torch.from_numpy(bits & 0xFFFFFFFF)


def shuffled(samples: Tensor, batch_size: int, steps: Tensor, generator: torch.Generator) -> Plan:
    """Passes over a fresh permutation, cut into batches; the last batch of a pass may be short."""
    clients, horizon = len(samples), int(steps.max())
    width = min(batch_size, int(samples.max()))
    per_epoch = steps_per_epoch(samples, batch_size)  # [C]
    active = torch.arange(horizon)[None, :] < steps[:, None]
    index = torch.zeros(clients, horizon, width, dtype=torch.int64)
    size = torch.zeros(clients, horizon, dtype=torch.int64)
    widest = int(per_epoch.max()) * batch_size
    batch = torch.arange(int(per_epoch.max()))
    count = (samples[:, None] - batch * batch_size).clamp(0, batch_size)  # [C, batches]
    done = torch.zeros(clients, dtype=torch.int64)  # steps filled so far
    while bool((done < steps).any()):
        keys = torch.rand(clients, widest, generator=generator, dtype=torch.float32)
        keys.masked_fill_(torch.arange(widest)[None, :] >= samples[:, None], 2.0)
        order = _order(keys).view(clients, -1, batch_size)  # [C, batches, B]
        order.masked_fill_(torch.arange(batch_size) >= count[:, :, None], 0)
        new = (batch < per_epoch[:, None]) & (done[:, None] + batch < steps[:, None])  # [C, batches]
        who, which = new.nonzero().T
        index[who, done[who] + which] = order[who, which, :width]
        size[who, done[who] + which] = count[who, which]
        done += new.sum(1)
    return Plan(index, size, active)
