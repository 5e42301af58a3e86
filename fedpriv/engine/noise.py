"""Gaussian noise in bulk: tiles of a [rows, P] block, each from its own seed, equal for every engine.

Tile (round, step, row group, column block) gets the seed E(counter), E a keyed permutation of 32-bit numbers
(a Feistel network), so no two tiles of a run ever share a stream and any engine can redraw any tile. With a
secret key from the system the whole state of the generator is set instead, for 32 bits can be searched. The
generator is torch's (Mersenne Twister on CPU): fast, not cryptographically secure; the ledger says so.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.errors import UserError
from fedpriv.rng import Key, fill_state, seed_for

_TILE = 1 << 16  # numbers a tile: small enough to be in cache still when it is added


@dataclass(frozen=True)
class NoiseShape:
    """The radices of the tile counter: how many steps and rows a round, numbers a row there can be."""

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
    """Standard normals for every (round, step, row) of a run, from its seed or from a secret key."""

    def __init__(self, shape: NoiseShape, key: Key):
        tiles = shape.rounds * shape.steps * shape.row_groups * shape.columns
        if tiles > 1 << 32:
            raise UserError(
                f"{tiles} blocks of noise in one run: over the 2^32 distinct streams there are; "
                "lower rounds, local steps or clients"
            )
        self.shape, self.key = shape, key
        self._mix = seed_for(key, "tiles")

    def _start(self, generator: torch.Generator, counter: int) -> torch.Generator:
        """Set the generator to the beginning of a tile's stream."""
        if isinstance(self.key, bytes) and generator.device.type == "cpu":
            fill_state(generator, self.key, "tile", counter)
            return generator
        return generator.manual_seed(self._seed(counter))

    def _seed(self, counter: int) -> int:
        """A keyed permutation of 32-bit counters: four Feistel rounds on 16-bit halves."""
        left, right = counter >> 16, counter & 0xFFFF
        for turn in range(4):
            mixed = (right ^ (self._mix >> (16 * turn))) & 0xFFFFFFFF
            mixed = (mixed * 0x9E3779B1 + (self._mix >> 8) + turn) & 0xFFFFFFFF
            mixed = ((mixed ^ (mixed >> 15)) * 0x85EBCA77) & 0xFFFFFFFF
            left, right = right, left ^ ((mixed ^ (mixed >> 13)) & 0xFFFF)
        return left << 16 | right

    def _counters(self, first_row: int, round_: int, step: int, groups: int) -> Iterator[range]:
        """The tiles of every column block, one range per group of rows."""
        shape, group = self.shape, self.shape.rows_per_tile
        assert first_row % group == 0
        base = (round_ * shape.steps + step) * shape.row_groups + first_row // group
        for number in range(base, base + groups):
            yield range(number * shape.columns, (number + 1) * shape.columns)

    def add_(self, rows: Tensor, scale: Tensor, first_row: int, round_: int, step: int) -> None:
        """rows[i] += scale[i] * z, z standard normal; `first_row` is a multiple of rows_per_tile."""
        width, group = self.shape.width, self.shape.rows_per_tile
        generator = torch.Generator(device=rows.device)
        buffer = torch.empty(group * min(_TILE, width), dtype=rows.dtype, device=rows.device)
        tops = range(0, len(rows), group)
        for top, tiles in zip(tops, self._counters(first_row, round_, step, len(tops)), strict=True):
            block = rows[top : top + group]
            weight = scale[top : top + group, None].to(rows.dtype)
            for left, tile in zip(range(0, width, _TILE), tiles, strict=True):
                right = min(left + _TILE, width)
                z = buffer[: group * (right - left)].normal_(generator=self._start(generator, tile))
                block[:, left:right].addcmul_(z.view(group, -1)[: len(block)], weight)

    def draw(self, count: int, first_row: int, round_: int, step: int, like: Tensor) -> Tensor:
        """The normals themselves, [count, width]: the same numbers `add_` would add."""
        group = self.shape.rows_per_tile
        top = first_row - first_row % group
        groups = -(-(first_row - top + count) // group)
        z = torch.empty(groups * group, self.shape.width, dtype=like.dtype, device=like.device)
        generator = torch.Generator(device=like.device)
        for number, tiles in enumerate(self._counters(top, round_, step, groups)):
            flat = z[number * group : (number + 1) * group].view(-1)
            for column, tile in enumerate(tiles):  # more than one column only where a group is one row
                flat[column * _TILE : (column + 1) * _TILE if len(tiles) > 1 else None].normal_(
                    generator=self._start(generator, tile)
                )
        return z[first_row - top : first_row - top + count]
