"""ChaCha with 8 rounds (Bernstein 2008) in torch operations: random words on any device, and the oracle.

A block is 16 words of 32 bits, a function of a 256-bit key and of 128 bits that name the block: its number
within a row, and the row's name of three words. Nobody without the key can tell the words from random ones.
`compiled.py` makes the same words on a CPU, many times faster.
"""

import torch
from torch import Tensor

ROUNDS = 8  # the best attack known reaches 7, and needs more than 2^200 steps; more in README.md
CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)  # "expand 32-byte k"
TURNS = (16, 12, 8, 7)  # by how many bits a quarter round turns a word
WORDS = 16  # of a block


def blocks(key: Tensor, numbers: Tensor, names: Tensor) -> Tensor:
    """The words of blocks `numbers` [..., N] of rows `names` [..., 3]: int32 [..., N, 16]; key: int32 [8]."""
    shape = torch.broadcast_shapes(numbers.shape, (*names.shape[:-1], 1))
    tail = [numbers.expand(shape), *(names[..., n, None].expand(shape) for n in range(3))]
    constants = torch.tensor(CONSTANTS, dtype=torch.int32, device=key.device)
    start = torch.stack([
        torch.stack([constants[n].expand(shape) for n in range(4)]),
        torch.stack([key[n].expand(shape) for n in range(4)]),
        torch.stack([key[n + 4].expand(shape) for n in range(4)]),
        torch.stack([t.to(torch.int32) for t in tail]),
    ])  # fmt: skip  # [4, 4, ..., N]
    a, b, c, d = start
    for turn in range(ROUNDS):
        a, b, c, d = _quarters(a, b, c, d)
        # Every second time the quarters lie on the diagonals.
        step = 1 if turn % 2 == 0 else -1
        b, c, d = b.roll(-step, 0), c.roll(-2 * step, 0), d.roll(-3 * step, 0)
    return (torch.stack([a, b, c, d]) + start).flatten(0, 1).movedim(0, -1)


def _quarters(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four quarter rounds side by side, [4, ...] each."""
    for first, second in (TURNS[:2], TURNS[2:]):
        a = a + b
        d = _turned(d ^ a, first)
        c = c + d
        b = _turned(b ^ c, second)
    return a, b, c, d


def _turned(x: Tensor, bits: int) -> Tensor:
    """A left rotation of 32-bit words; a shift to the right keeps the sign, hence the mask."""
    return (x << bits) | ((x >> (32 - bits)) & ((1 << bits) - 1))
