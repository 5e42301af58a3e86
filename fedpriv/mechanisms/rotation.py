"""The randomised Hadamard rotation: x -> H J x / sqrt(j), J random signs; spreads a vector evenly."""

import torch
from torch import Tensor

from fedpriv.randomness.source import Source

_LARGEST = 6  # a factor of H is a dense matrix of at most 2^6: small enough to stay in cache


def padded(width: int) -> int:
    """The next power of two."""
    return 1 << max(0, width - 1).bit_length()


def random_signs(width: int, source: Source, like: Tensor) -> Tensor:
    drawn = source.words([0], width)[0] & 1
    return (2 * drawn - 1).to(like)


def _matrix(power: int, like: Tensor) -> Tensor:
    """The orthonormal Hadamard matrix of 2^power."""
    matrix = like.new_ones(1, 1)
    for _ in range(power):
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)], 0)
    return matrix * 2 ** (-power / 2)


def hadamard(x: Tensor) -> Tensor:
    """H x / sqrt(j) for every row of [C, j], j a power of two; its own inverse.

    H of 2^p is the Kronecker product of smaller ones, each applied along its own axis.
    """
    remaining, inner, y = x.shape[1].bit_length() - 1, 1, x
    while remaining:
        power = min(_LARGEST, remaining)
        size = 1 << power
        matrix = _matrix(power, x)
        y = y.reshape(-1, size, inner)
        y = y.flatten(1) @ matrix if inner == 1 else torch.matmul(matrix, y)
        inner, remaining = inner * size, remaining - power
    return y.reshape(x.shape)
