"""Products and sums of matrices in compiled code, a tile of some rows and columns at a time.

A tile's sums stay in registers for the whole of it. A library's product of matrices of these sizes costs as
much again in calls and copies, its speed jumps with their shapes, and it may not know the processor.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from fedpriv.engine.vectors import LANES, WIDE, Writer, compiled, intrinsic_of, move

# Rows of a tile of two vectors: as many sums as there are registers for.
ROWS = 8 if WIDE else 4
NARROW = 8  # and of one of one vector: each row needs a place of its own, and a processor has few for places
HIGH, SIDE = 4, 4 if WIDE else 2  # rows and columns of a tile of inner products
PANEL = 2 * LANES  # columns that are copied together
MET = 32  # rows from which on it pays to copy a panel that they meet
MANY = 256  # and columns from which on inner products are better taken by panels
DEEP = 256  # numbers of a column that are copied together: a panel stays in the nearest cache


def _tile(rows: int, vectors: int, masked: bool = False) -> Callable[..., None]:
    """C[i, j] = (C[i, j] if `more`) + the sum over k of A[i, k] B[k, j], for some rows and `width` columns.

    A[i, k] is at `at` + i `down` + k `along` of its array; rows of B and C begin `next_b` and `next_c` apart.
    """

    @intrinsic_of
    def tile(
        typing: Any, a: Any, at: Any, down: Any, along: Any, b: Any, bt: Any, next_b: Any, c: Any, ct: Any,
        next_c: Any, count: Any, width: Any, more: Any,
    ) -> Any:  # fmt: skip
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            a, at, down, along, b, bt, next_b, c, ct, next_c, count, width, more = args
            w = Writer(context, builder, signature)
            mask = w.first(width) if masked else None
            left = [w.place(0, a, builder.add(at, builder.mul(down, w.word(i)))) for i in range(rows)]
            right, out = w.place(4, b, bt), w.place(7, c, ct)
            targets = [
                w.at(out, builder.add(builder.mul(next_c, w.word(i)), w.word(n * LANES)))
                for i in range(rows)
                for n in range(vectors)
            ]

            def body(k: Any, sums: list[Any]) -> list[Any]:
                here, place = builder.mul(k, next_b), builder.mul(k, along)
                shared = [
                    w.load(w.at(right, builder.add(here, w.word(n * LANES))), mask) for n in range(vectors)
                ]
                factors = [w.same(builder.load(builder.gep(pointer, [place])), w.vector) for pointer in left]
                pairs = [(factor, one) for factor in factors for one in shared]
                return [w.plus(total, *pair) for total, pair in zip(sums, pairs, strict=True)]

            sums = w.loop(count, 1, [w.nothing] * len(targets), body)
            with builder.if_else(builder.trunc(more, ir.IntType(1))) as (added, alone):
                with added:
                    for total, target in zip(sums, targets, strict=True):
                        w.store(builder.fadd(total, w.load(target, mask)), target, mask)
                with alone:
                    for total, target in zip(sums, targets, strict=True):
                        w.store(total, target, mask)
            return context.get_dummy_value()

        return types.void(a, at, down, along, b, bt, next_b, c, ct, next_c, count, width, more), generate

    return tile


_block, _line = _tile(ROWS, 2), _tile(1, 2)
_narrow, _narrow_line = _tile(NARROW, 1), _tile(1, 1)
_rest, _rest_line = _tile(NARROW, 1, masked=True), _tile(1, 1, masked=True)


@compiled
def _part(
    a: Any, at: Any, down: Any, along: Any, b: Any, bt: Any, next_b: Any, c: Any, ct: Any, next_c: Any,
    rows: Any, columns: Any, count: Any, more: Any, room: Any, begin: Any,
) -> None:  # fmt: skip
    """As below, over few enough k for a panel to stay in the nearest cache. It is copied to room[begin:]."""
    j = 0
    while j < columns:
        left = columns - j
        high = ROWS if left >= PANEL else NARROW
        panel, first, apart = b, bt + j, next_b
        if len(room) and left >= PANEL:
            for k in range(count):
                move(b, bt + j + k * next_b, room, begin + k * PANEL, PANEL)
            panel, first, apart = room, begin, PANEL
        i = 0
        while i < rows:
            whole = rows - i >= high
            m, n = at + i * down, ct + i * next_c + j
            if left >= PANEL:
                if whole:
                    _block(a, m, down, along, panel, first, apart, c, n, next_c, count, left, more)
                else:
                    _line(a, m, down, along, panel, first, apart, c, n, next_c, count, left, more)
            elif left >= LANES:
                if whole:
                    _narrow(a, m, down, along, b, bt + j, next_b, c, n, next_c, count, left, more)
                else:
                    _narrow_line(a, m, down, along, b, bt + j, next_b, c, n, next_c, count, left, more)
            elif whole:
                _rest(a, m, down, along, b, bt + j, next_b, c, n, next_c, count, left, more)
            else:
                _rest_line(a, m, down, along, b, bt + j, next_b, c, n, next_c, count, left, more)
            i += high if whole else 1
        j += PANEL if left >= PANEL else LANES


@compiled
def product(
    a: Any, at: Any, down: Any, along: Any, b: Any, bt: Any, next_b: Any, c: Any, ct: Any, next_c: Any,
    rows: Any, columns: Any, count: Any, more: Any,
) -> None:  # fmt: skip
    """C[i, j] = (C[i, j] if `more` is 1) + the sum over `count` k of A[i, k] B[k, j], as a tile has it.

    A panel of B that many rows meet is copied before: its rows lie pages apart, and a processor remembers
    where only some pages are.
    """
    copied = rows >= MET and next_b > PANEL and columns >= PANEL
    room = np.empty(min(count, DEEP) * PANEL + LANES if copied else 0, np.float32)
    begin = -(room.ctypes.data // 4) % LANES  # whole lines of the cache
    # Parts of a fixed size: how a sum is rounded depends neither on the rows nor on how much comes behind it.
    for k in range(0, count, DEEP):
        _part(
            a, at + k * along, down, along, b, bt + k * next_b, next_b, c, ct, next_c, rows, columns,
            min(DEEP, count - k), 1 if k else more, room, begin,
        )  # fmt: skip


def _inner(rows: int, columns: int) -> Callable[..., None]:
    """C[i, j] = the sum over k of A[i, k] B[j, k] for some rows i and j; rows lie one below the other."""

    @intrinsic_of
    def tile(typing: Any, a: Any, at: Any, b: Any, bt: Any, wide: Any, c: Any, ct: Any, next_c: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            a, at, b, bt, wide, c, ct, next_c = args
            w = Writer(context, builder, signature)
            left = [w.place(0, a, builder.add(at, builder.mul(wide, w.word(i)))) for i in range(rows)]
            right = [w.place(2, b, builder.add(bt, builder.mul(wide, w.word(j)))) for j in range(columns)]
            out = w.place(5, c, ct)

            def body(mask: Any) -> Callable[[Any, list[Any]], list[Any]]:
                def step(k: Any, sums: list[Any]) -> list[Any]:
                    ours, theirs = ([w.load(w.at(p, k), mask) for p in side] for side in (left, right))
                    pairs = [(one, other) for one in ours for other in theirs]
                    return [w.plus(total, *pair) for total, pair in zip(sums, pairs, strict=True)]

                return step

            sums = [w.nothing] * (rows * columns)
            whole = builder.and_(wide, w.word(-LANES))
            rest = builder.sub(wide, whole)
            # The rest first, of which there may be nothing: masked numbers are zeros and add nothing.
            sums = body(w.first(rest))(whole, sums)
            entry, many = builder.block, builder.append_basic_block("many")
            end = builder.append_basic_block("end")
            builder.cbranch(builder.icmp_signed(">", whole, w.word(0)), many, end)
            builder.position_at_end(many)
            after = w.loop(whole, LANES, sums, body(None))
            last = builder.block
            builder.branch(end)
            builder.position_at_end(end)
            for place, (few, all_) in enumerate(zip(sums, after, strict=True)):
                total = builder.phi(w.vector)
                total.add_incoming(few, entry)
                total.add_incoming(all_, last)
                sums[place] = total
            for place, total in enumerate(sums):
                i, j = divmod(place, columns)
                target = builder.gep(out, [builder.add(builder.mul(next_c, w.word(i)), w.word(j))])
                builder.store(w.sum(total), target)
            return context.get_dummy_value()

        return types.void(a, at, b, bt, wide, c, ct, next_c), generate

    return tile


_square, _row, _column, _single = _inner(HIGH, SIDE), _inner(1, SIDE), _inner(HIGH, 1), _inner(1, 1)


@compiled
def inner_by_panels(
    a: Any, at: Any, b: Any, bt: Any, wide: Any, c: Any, ct: Any, next_c: Any, rows: Any, columns: Any
) -> None:
    """Inner products as below, as B times A turned, some rows and numbers of A at a time: A is read once, not
    once for every few rows of B. What a row gives does not depend on how many there are."""
    deep = -(-wide // -(-wide // DEEP))
    room, turned = np.zeros(deep * PANEL, np.float32), np.empty(columns * PANEL, np.float32)
    for i in range(0, rows, PANEL):
        there = min(PANEL, rows - i)
        width = PANEL if there > LANES else LANES
        for k in range(0, wide, deep):
            count = min(deep, wide - k)
            for m in range(there):  # what stands behind them is computed with, and left out below
                one = a[at + (i + m) * wide + k : at + (i + m) * wide + k + count]
                for n in range(count):
                    room[n * width + m] = one[n]
            product(b, bt + k, wide, 1, room, 0, width, turned, 0, width, columns, width, count, k > 0)
        for m in range(there):
            one = c[ct + (i + m) * next_c : ct + (i + m) * next_c + columns]
            for n in range(columns):
                one[n] = turned[n * width + m]


@compiled
def inner(
    a: Any, at: Any, b: Any, bt: Any, wide: Any, c: Any, ct: Any, next_c: Any, rows: Any, columns: Any
) -> None:
    """C[i, j] = the inner product of row i of A and row j of B, both of `wide` numbers without gaps."""
    j = 0
    while j < columns:
        many = columns - j >= SIDE
        i = 0
        while i < rows:
            m, n, to = at + i * wide, bt + j * wide, ct + i * next_c + j
            if rows - i >= HIGH:
                if many:
                    _square(a, m, b, n, wide, c, to, next_c)
                else:
                    _column(a, m, b, n, wide, c, to, next_c)
                i += HIGH
            else:
                if many:
                    _row(a, m, b, n, wide, c, to, next_c)
                else:
                    _single(a, m, b, n, wide, c, to, next_c)
                i += 1
        j += SIDE if many else 1


@compiled
def add(
    out: Any, at: Any, rows: Any, begin: Any, n: Any, count: Any, by: Any, first: Any, apart: Any
) -> None:
    """out[at:][:n] += the sum of `count` rows, of which one is weighted with by[first], the next `apart`."""
    target, nothing = out[at : at + n], np.float32(0)
    for b in range(0, count, 4):
        place, weight, left = begin + b * n, first + b * apart, min(count - b, 4) - 1
        p, one = by[weight], rows[place : place + n]
        # Behind the last a row again that counts for nothing: sums are rounded as if there were more.
        j, k, m = min(1, left), min(2, left), min(3, left)
        q = by[weight + j * apart] if j == 1 else nothing
        r = by[weight + k * apart] if k == 2 else nothing
        s = by[weight + m * apart] if m == 3 else nothing
        two, three = rows[place + j * n : place + (j + 1) * n], rows[place + k * n : place + (k + 1) * n]
        four = rows[place + m * n : place + (m + 1) * n]
        for i in range(n):
            target[i] += p * one[i] + q * two[i] + r * three[i] + s * four[i]


@compiled
def dot(a: Any, at: Any, b: Any, bt: Any, n: Any) -> Any:
    u, v, total = a[at : at + n], b[bt : bt + n], np.float32(0)
    for i in range(n):
        total += u[i] * v[i]
    return total
