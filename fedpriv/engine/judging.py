"""Chains of layers on a CPU judge samples: when, and what the compiled code (judged.py) is told of them."""

import numpy as np
import torch
from torch import Tensor

from fedpriv.engine.chain import LINEAR, NORM, NOTHING, Chain
from fedpriv.engine.data import ClientData

# How many times as much there must be to do as in training; networks with convolutions are asked with some
# thousand samples a call.
_DENSE, _PICTURES = 20, 5


def judges(chain: Chain, rows: Tensor, count: int, data: ClientData) -> bool:
    """Whether prediction on `count` samples each is work for it: no norms among layers, and enough."""
    return (
        not bool((chain.layers[:, 0] == NORM).any())
        and chain.worth(len(rows) * count, _PICTURES if chain.room[0] else _DENSE)
        and data.ready
        and data.shared is None
        and rows.dtype == data.x.dtype == torch.float32
    )


def judge(chain: Chain, rows: Tensor, index: Tensor, data: ClientData, alike: bool) -> tuple[Tensor, Tensor]:
    """Losses and right answers [C, N] of networks on samples [C, N], or [1, N] that all have.

    `alike`: what clients share is the same for all. Where only a scale and a shift of their own stand
    before the first layer, W (alpha x + beta) = alpha (W x) + W beta, and W x is computed once.
    """
    from fedpriv.engine import judged  # which takes time to import

    x, count = data.x.flatten(1), index.shape[1]
    first, scale, shift = x.new_zeros(0, 0), x.new_zeros(len(rows)), x.new_zeros(0, 0)
    if alike and scaled_alike(chain):
        first, scale, shift = _first(chain, rows, x[index[0]])
    loss = torch.empty(len(rows), count)
    right = torch.empty(len(rows), count, dtype=torch.bool)
    images = bool((chain.layers[:, 0] != LINEAR).any())
    block = judged.PICTURES if images else judged.BLOCK
    room, layers = block * int(chain.widths.sum()), chain.layers.copy()
    layers[:, 4] *= block
    judged.judge(
        *(t.contiguous().numpy() for t in (rows, index, x, data.y, first, scale, shift)),
        chain.widths, layers, chain.shapes, chain.homes, chain.by.copy(), chain.front, block,
        *(np.empty(n, np.float32) for n in (room, room, block * int(chain.widths[0]))),
        *((np.empty(block * chain.room[0], np.float32), np.empty(chain.room[2], np.float32),
           np.empty(room, np.int32)) if images else [None] * 3),
        loss.numpy(), right.numpy(),
    )  # fmt: skip
    return loss, right


def scaled_alike(chain: Chain) -> bool:
    """Whether a client's transform is one scale for all inputs and a shift, the first layer shared."""
    weights = chain.widths[0] * chain.widths[1]
    return bool(
        chain.layers[0, 0] == LINEAR
        and chain.homes[0, 1] <= 1
        and chain.front[2] == NOTHING
        and chain.layers[0, 2] + weights <= chain.sent
        and chain.layers[0, 3] < chain.sent
    )


def _first(chain: Chain, rows: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What the first layer makes of samples [N, O]; each client's scale [C] and shift [C, O] of it."""
    inputs, outputs = (int(n) for n in chain.widths[:2])
    _, _, weight, bias = (int(n) for n in chain.layers[0, :4])
    matrix = rows[0, weight : weight + inputs * outputs].view(outputs, inputs)
    (scale, alphas), (place, betas) = chain.homes.tolist()
    fixed = torch.from_numpy(chain.by)
    ones = x.new_ones(len(rows))
    if not chain.front[0]:
        return x @ matrix.T, ones, _bias(rows, bias, outputs)
    alpha = rows[:, scale] if alphas else ones * fixed[0, 0]
    beta = rows[:, place : place + betas] if betas else fixed[1, :1].expand(len(rows), 1)
    beta = beta.repeat_interleave(inputs // beta.shape[1], 1) * fixed[2] + fixed[3]
    x = (x * x if chain.front[1] else x) * fixed[2]
    return x @ matrix.T, alpha, beta @ matrix.T + _bias(rows, bias, outputs)


def _bias(rows: Tensor, place: int, outputs: int) -> Tensor:
    return rows[:, place : place + outputs] if place >= 0 else rows.new_zeros(len(rows), outputs)
