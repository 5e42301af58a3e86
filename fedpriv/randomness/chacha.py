"""ChaCha with 8 rounds (Bernstein 2008) in torch operations: random words on any device, and the oracle.

A block is 16 words of 32 bits, a function of a 256-bit key and of 128 bits that name the block: its number
within a row, and the row's name of three words. Nobody without the key can tell the words from random ones.
`compiled.py` makes the same words on a CPU, many times faster.
"""

import numpy as np
import torch
from torch import Tensor

ROUNDS = 8  # attacks reach 7, in more than 2^150 steps; more in README.md
CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)  # "expand 32-byte k"
TURNS = (16, 12, 8, 7)  # by how many bits a quarter round turns a word
WORDS = 16  # of a block


def head(key: np.ndarray) -> Tensor:
    """What every block of a key, uint32 [8], begins with: int32 [12]."""
    return torch.from_numpy(np.concatenate([np.array(CONSTANTS, np.uint32), key]).view(np.int32))


def blocks(start: Tensor, numbers: Tensor, names: Tensor) -> Tensor:
    """The words of blocks `numbers` [..., N] of rows `names` [..., 3]: int32 [..., N, 16].

    `start` is a `head` for all, or one a row [..., 12].

    Written for few kernels, of which a device starts one at a time: 13 a round.
    """
    shape = torch.broadcast_shapes(numbers.shape, (*names.shape[:-1], 1))
    key, named = (t.movedim(-1, 0)[..., None] for t in (start, names.to(torch.int32)))
    if start.dim() == 1:
        key = key.view(-1, *[1] * len(shape))
    begun = torch.cat([key.expand(-1, *shape), numbers.expand(1, *shape), named.expand(3, *shape)])
    a, b, c, d = begun.split(4)
    for turn in range(ROUNDS):
        for first, second in (TURNS[:2], TURNS[2:]):  # four quarter rounds side by side
            a = a + b
            d = _turned(d, a, first)
            c = c + d
            b = _turned(b, c, second)
        # Every second time the quarters lie on the diagonals.
        by = 1 if turn % 2 == 0 else 3
        rolled = torch.cat([b[by:], b[:by], c[2:], c[:2], d[4 - by :], d[: 4 - by]])
        b, c, d = rolled.split(4)
    return (torch.cat([a, b, c, d]) + begun).movedim(0, -1)


def _turned(x: Tensor, y: Tensor, bits: int) -> Tensor:
    """x ^ y with its bits turned to the left: the upper half of the word written twice and shifted."""
    twice = x[..., None] ^ y[..., None].expand(*y.shape, 2)
    return (twice.view(torch.int64) << bits).view(torch.int32)[..., 1]
