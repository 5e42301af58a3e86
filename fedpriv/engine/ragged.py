"""Products of C clients whose batches differ in size, without padding.

Rows of all clients stand one below the other, and `rows` says how many are whose. A client's numbers come
from its own rows alone: who else is in the chunk changes not even their rounding.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def _grouped(matrices: Tensor) -> bool:
    """Whether torch's own product of groups takes them: single precision, rows of whole 16 bytes. It is one
    call instead of one a client, which matters to threads that wait for each other between calls."""
    return matrices.dtype == torch.float32 and not (matrices.shape[1] | matrices.shape[2]) % 4


def _ends(rows: list[int]) -> Tensor:
    return torch.tensor(rows).cumsum(0, dtype=torch.int32)


def products(a: Tensor, matrices: Tensor, rows: list[int], bias: Tensor | None = None) -> Tensor:
    """Each client's rows of a [N, I] times its own matrix of [C, I, O], plus its bias of [C, O]: [N, O]."""
    if _grouped(matrices):
        out = F.grouped_mm(a, matrices, offs=_ends(rows))
    else:
        out = a.new_empty(len(a), matrices.shape[2])
        for own, x, matrix in zip(out.split(rows), a.split(rows), matrices, strict=True):
            torch.mm(x, matrix, out=own)
    if bias is not None:
        for own, shift in zip(out.split(rows), bias, strict=True):
            own += shift
    return out


def add_products(target: Tensor, g: Tensor, a: Tensor, rows: list[int], alpha: float) -> None:
    """target[c] += alpha * g_c^T a_c for g [N, O] and a [N, I], into [C, O, I]."""
    for own, slope, x in zip(target, g.split(rows), a.split(rows), strict=True):
        own.addmm_(slope.T, x, alpha=alpha)


def sums(weights: Tensor, values: Tensor, rows: list[int]) -> Tensor:
    """Each client's weighted sum of its rows of values [N, ...], [C, ...]."""
    flat = values.flatten(1)
    out = flat.new_empty(len(rows), flat.shape[1])
    for own, weight, part in zip(out, weights.split(rows), flat.split(rows), strict=True):
        torch.mv(part.T, weight, out=own)
    return out.view(len(rows), *values.shape[1:])


class _Product(torch.autograd.Function):
    """`products` with a gradient for the rows; the matrices get none here."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, weight: Tensor, bias: Tensor | None, rows: list[int]) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.rows = rows
        return products(a, weight.transpose(1, 2), rows, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (weight,) = ctx.saved_tensors
        return products(grad, weight, ctx.rows), None, None, None


product: Callable[..., Tensor] = _Product.apply
