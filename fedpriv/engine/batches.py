"""Which samples each client uses at each local step: Poisson sampling (DP-SGD) or shuffled epochs.

The whole round is planned at once on the CPU, so both engines and every device see the same batches. Draws
are keyed by client and sample: one's absence changes no other's batches.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedpriv.randomness.source import Source, limit_of

_STEPS = 16  # steps drawn at once: the words of one block
_SAMPLES = 1 << 16  # drawn at once: eight megabytes of words, however many clients there are


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


def poisson(samples: Tensor, rates: Tensor, steps: Tensor, names: Tensor, source: Source) -> Plan:
    """Every sample joins every step's batch independently with the client's rate.

    Client c owns the first samples[c] of its row; `names` [C, widest] are what a sample's draws are keyed by.
    """
    clients, horizon, widest = len(samples), int(steps.max()), int(samples.max())
    at_once = max(1, _SAMPLES // max(1, widest))
    size = torch.empty(clients, horizon, dtype=torch.int64)
    active = torch.arange(horizon) < steps[:, None]  # [C, T]
    found = []
    for first in range(0, clients, at_once):
        some = slice(first, first + at_once)
        limits = limit_of(rates[some])
        size[some], where, place = _joining(samples[some], limits, active[some], names[some], source)
        found.append((some, where, place))
    index = torch.zeros(clients, horizon, max(1, int(size.max())), dtype=torch.int64)
    for some, where, place in found:
        index[some][where] = place
    return Plan(index, size, active)


def _joining(
    samples: Tensor, limits: Tensor, active: Tensor, names: Tensor, source: Source
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor], Tensor]:
    """How many samples join each step of some clients, [C, T]; of each its client, step and place in it,
    and its place among the client's own."""
    clients, horizon = active.shape
    client, place = (torch.arange(names.shape[1]) < samples[:, None]).nonzero().T  # [n]
    joined = []
    for first in range(0, horizon, _STEPS):
        drawn = source.words(names[client, place], _STEPS, first // _STEPS) < limits[client][:, None]
        drawn = drawn[:, : horizon - first] & active[client, first : first + _STEPS]  # [n, _STEPS]
        step, row = drawn.T.nonzero().T  # sorted
        joined.append(torch.stack([step + first, row]))
    step, row = torch.cat(joined, 1)
    cell = step * clients + client[row]
    size = torch.bincount(cell, minlength=horizon * clients)
    at = torch.arange(len(cell)) - (size.cumsum(0) - size)[cell]
    return size.view(horizon, clients).T, (client[row], step, at), place[row]


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
    """Positions in each row by rising key, ties by position, of keys below 2^31 - 1.

    Key and position fit into one integer, and sorting integers is seven times as fast as torch's argsort.
    """
    whole = keys.numpy() << 32
    whole |= np.arange(keys.shape[1])
    whole.sort(axis=1)
    return torch.from_numpy(whole & 0xFFFFFFFF)


def shuffled(samples: Tensor, batch_size: int, steps: Tensor, clients: Tensor, source: Source) -> Plan:
    """Passes over a fresh permutation, cut into batches; the last batch of a pass may be short.

    A client's order follows from its own number [C] only, whoever else takes part.
    """
    count, horizon = len(samples), int(steps.max())
    width = min(batch_size, int(samples.max()))
    per_epoch = steps_per_epoch(samples, batch_size)  # [C]
    active = torch.arange(horizon)[None, :] < steps[:, None]
    index = torch.zeros(count, horizon, width, dtype=torch.int64)
    size = torch.zeros(count, horizon, dtype=torch.int64)
    widest = int(per_epoch.max()) * batch_size
    batch = torch.arange(int(per_epoch.max()))
    sizes = (samples[:, None] - batch * batch_size).clamp(0, batch_size)  # [C, batches]
    done = torch.zeros(count, dtype=torch.int64)  # steps filled so far
    passes = 0
    while bool((done < steps).any()):
        keys = source.words(clients, widest, passes) >> 2
        keys.masked_fill_(torch.arange(widest)[None, :] >= samples[:, None], 1 << 30)
        order = _order(keys).view(count, -1, batch_size)  # [C, batches, B]
        order.masked_fill_(torch.arange(batch_size) >= sizes[:, :, None], 0)
        new = (batch < per_epoch[:, None]) & (done[:, None] + batch < steps[:, None])  # [C, batches]
        who, which = new.nonzero().T
        index[who, done[who] + which] = order[who, which, :width]
        size[who, done[who] + which] = sizes[who, which]
        done += new.sum(1)
        passes += 1
    return Plan(index, size, active)
