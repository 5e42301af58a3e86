"""Gaussian noise in bulk: tiles of a [rows, P] block, each from its own seed, equal for every engine.

Tile (round, step, row group, column block) gets the seed E(counter), E a keyed permutation of 32-bit numbers
(a Feistel network), so no two tiles of a run ever share a stream and any engine can redraw any tile. The
generator is torch's (Mersenne Twister on CPU): fast, not cryptographically secure; the ledger says so.
"""

import os
from dataclasses import dataclass

import torch
from torch import Tensor

_TILE = 1 << 15  # numbers a tile: small enough to be in cache still when it is added


@dataclass(frozen=True)
class NoiseShape:
    """The radices of the tile counter: how many steps a round, rows a round and numbers a row there can be."""

    rounds: int
    steps: int
    rows: int
    width: int

    @property
    def rows_per_tile(self) -> int:
        return max(1, _TILE // self.width)

    @property
    def row_groups(self) -> int:
        return -(-self.rows // self.rows_per_tile)

    @property
    def columns(self) -> int:
        return -(-self.width // _TILE)


class NoiseSource:
    """Standard normals for every (round, step, row) of a run; `seed=None` takes the key from the system."""

    def __init__(self, shape: NoiseShape, seed: int | None):
        tiles = shape.rounds * shape.steps * shape.row_groups * shape.columns
        if tiles > 1 << 32:
            raise ValueError(f"{tiles} noise tiles in one run: over the 2^32 distinct streams there are")
        self.shape = shape
        self.seeded = seed is not None
        self.key = int.from_bytes(os.urandom(8), "little") if seed is None else seed

    def _seed(self, counter: int) -> int:
        """A keyed permutation of 32-bit counters: four Feistel rounds on 16-bit halves."""
        left, right = counter >> 16, counter & 0xFFFF
        for turn in range(4):
            mixed = (right ^ (self.key >> (16 * turn))) & 0xFFFFFFFF
            mixed = (mixed * 0x9E3779B1 + (self.key >> 8) + turn) & 0xFFFFFFFF
            mixed = ((mixed ^ (mixed >> 15)) * 0x85EBCA77) & 0xFFFFFFFF
            left, right = right, left ^ ((mixed ^ (mixed >> 13)) & 0xFFFF)
        return left << 16 | right

    def add_(self, rows: Tensor, scale: Tensor, first_row: int, round_: int, step: int) -> None:
        """rows[i] += scale[i] * z for fresh standard normals z; `first_row` is a multiple of rows_per_tile."""
        shape, group = self.shape, self.shape.rows_per_tile
        assert first_row % group == 0 and rows.shape[1] == shape.width
        generator = torch.Generator(device=rows.device)
        for top in range(0, len(rows), group):
            block = rows[top : top + group]
            weight = scale[top : top + group, None].to(rows.dtype)
            for column in range(shape.columns):
                counter = (round_ * shape.steps + step) * shape.row_groups + (first_row + top) // group
                generator.manual_seed(self._seed(counter * shape.columns + column))
                left, right = column * _TILE, min((column + 1) * _TILE, shape.width)
                z = torch.empty(group, right - left, dtype=rows.dtype, device=rows.device)
                block[:, left:right].addcmul_(z.normal_(generator=generator)[: len(block)], weight)

    def block(self, count: int, first_row: int, round_: int, step: int, like: Tensor) -> Tensor:
        """The normals themselves, [count, width], for an engine that wants to see them."""
        group = self.shape.rows_per_tile
        top = first_row - first_row % group
        z = torch.zeros(first_row - top + count, self.shape.width, dtype=like.dtype, device=like.device)
        self.add_(z, torch.ones(len(z)), top, round_, step)
        return z[first_row - top :]
