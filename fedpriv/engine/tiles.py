"""Products and sums of matrices in compiled code, a tile of some rows and columns at a time.

A tile's sums stay in registers for the whole of it. A library's product of matrices of these sizes costs as
much again in calls and copies, its speed jumps with their shapes, and it may not know the processor.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from fedpriv.compiling import kept
from fedpriv.randomness import compiled as noise

# Sums may be taken in another order, so that they fill vectors; what is infinite or no number stays so.
_LOOSE = {"reassoc", "contract", "nsz", "arcp"}
_FILES = [Path(__file__).parent / name for name in ("tiles.py", "images.py", "compiled.py")]
# Helpers are compiled with what calls them; wrappers to call them from Python would double the time it takes.
_options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
compiled: Callable[[Callable[..., Any]], Callable[..., Any]] = njit(
    nogil=True, error_model="numpy", fastmath=_LOOSE, **_options
)
entry = kept(*_FILES, *noise.FILES, error_model="numpy", fastmath=_LOOSE)

WIDE = bool(llvmlite.binding.get_host_cpu_features().get("avx512f"))
LANES = 16 if WIDE else 8  # numbers of a vector
ROWS = 4  # of a tile of two vectors, and half of those of one: as many sums as hide the time that one takes
SIDE = 4 if WIDE else 2  # columns of a tile of inner products

# numba's own types do not know that the first argument is numba's.
intrinsic_of: Callable[[Callable[..., Any]], Callable[..., Any]] = intrinsic


class _Writer:
    """Writes instructions on vectors of numbers."""

    def __init__(self, context: Any, builder: Any, signature: Any):
        self.context, self.b, self.signature = context, builder, signature
        self.number, self.word = ir.FloatType(), ir.IntType(64)
        self.vector = ir.VectorType(self.number, LANES)
        self.nothing = ir.Constant(self.vector, [self.number(0.0)] * LANES)

    def place(self, position: int, value: Any, begin: Any) -> Any:
        """Where an argument's numbers begin."""
        data = self.context.make_array(self.signature.args[position])(self.context, self.b, value).data
        return self.b.gep(data, [begin])

    def at(self, pointer: Any, offset: Any) -> Any:
        return self.b.bitcast(self.b.gep(pointer, [offset]), self.vector.as_pointer())

    def same(self, value: Any, kind: Any) -> Any:
        """A vector of the same number."""
        empty = ir.Constant(kind, ir.Undefined)
        first = self.b.insert_element(empty, value, ir.IntType(32)(0))
        return self.b.shuffle_vector(
            first, empty, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        )

    def first(self, count: Any) -> Any:
        """Which numbers of a vector are among the first `count`."""
        words = ir.VectorType(self.word, LANES)
        return self.b.icmp_signed("<", ir.Constant(words, list(range(LANES))), self.same(count, words))

    def load(self, pointer: Any, mask: Any = None) -> Any:
        """A vector, or zeros outside of a mask."""
        if mask is None:
            return self.b.load(pointer, align=4)
        kind = ir.FunctionType(self.vector, [pointer.type, ir.IntType(32), mask.type, self.vector])
        load = cgutils.get_or_insert_function(self.b.module, kind, f"llvm.masked.load.v{LANES}f32.p0")
        return self.b.call(load, [pointer, ir.IntType(32)(4), mask, self.nothing])

    def store(self, value: Any, pointer: Any, mask: Any = None) -> None:
        if mask is None:
            self.b.store(value, pointer, align=4)
            return
        kind = ir.FunctionType(ir.VoidType(), [self.vector, pointer.type, ir.IntType(32), mask.type])
        store = cgutils.get_or_insert_function(self.b.module, kind, f"llvm.masked.store.v{LANES}f32.p0")
        self.b.call(store, [value, pointer, ir.IntType(32)(4), mask])

    def plus(self, total: Any, one: Any, other: Any) -> Any:
        product = self.b.fmul(one, other, flags=("contract",))
        return self.b.fadd(total, product, flags=("contract",))

    def sum(self, vector: Any) -> Any:
        """Of the numbers of a vector."""
        width = LANES
        while width > 1:
            width //= 2
            halves = [
                ir.Constant(ir.VectorType(ir.IntType(32), width), list(range(n, n + width)))
                for n in (0, width)
            ]
            vector = self.b.fadd(*(self.b.shuffle_vector(vector, vector, half) for half in halves))
        return self.b.extract_element(vector, ir.IntType(32)(0))

    def loop(
        self, count: Any, step: int, sums: list[Any], body: Callable[[Any, list[Any]], list[Any]]
    ) -> list[Any]:
        """What becomes of sums as k goes from 0 to below a count above 0 in steps."""
        entry = self.b.block
        block, done = self.b.append_basic_block("products"), self.b.append_basic_block("done")
        self.b.branch(block)
        self.b.position_at_end(block)
        k = self.b.phi(self.word)
        k.add_incoming(self.word(0), entry)
        carried = [self.b.phi(total.type) for total in sums]
        after = body(k, carried)
        for phi, before, total in zip(carried, sums, after, strict=True):
            phi.add_incoming(before, entry)
            phi.add_incoming(total, self.b.block)
        following = self.b.add(k, self.word(step))
        k.add_incoming(following, self.b.block)
        self.b.cbranch(self.b.icmp_signed("<", following, count), block, done)
        self.b.position_at_end(done)
        return after


@intrinsic_of
def keep_larger(typing: Any, a: Any, at: Any, most: Any, place: Any, p: Any) -> Any:
    """A vector of numbers from p on: most = the larger of most and a[at:], place = where it is in a.

    What is no number is larger than all before it. Written down, because a compiler makes branches of it.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a, at, most, place, p = args
        numbers, words = (ir.VectorType(t, LANES) for t in (ir.FloatType(), ir.IntType(32)))

        def vector(position: int, value: Any, begin: Any, kind: Any) -> Any:
            data = context.make_array(signature.args[position])(context, builder, value).data
            return builder.bitcast(builder.gep(data, [begin]), kind.as_pointer())

        into, where = vector(2, most, p, numbers), vector(3, place, p, words)
        new, old = builder.load(vector(0, a, at, numbers), align=4), builder.load(into, align=4)
        first = builder.insert_element(
            ir.Constant(words, ir.Undefined), builder.trunc(at, ir.IntType(32)), ir.IntType(32)(0)
        )
        same = builder.shuffle_vector(
            first, ir.Constant(words, ir.Undefined), ir.Constant(words, [0] * LANES)
        )
        here = builder.add(same, ir.Constant(words, list(range(LANES))))
        better = builder.or_(builder.fcmp_ordered(">", new, old), builder.fcmp_unordered("uno", new, new))
        builder.store(builder.select(better, new, old), into, align=4)
        builder.store(builder.select(better, here, builder.load(where, align=4)), where, align=4)
        return context.get_dummy_value()

    return types.void(a, at, most, place, p), generate


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
            w = _Writer(context, builder, signature)
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
_narrow, _narrow_line = _tile(2 * ROWS, 1), _tile(1, 1)
_rest, _rest_line = _tile(2 * ROWS, 1, masked=True), _tile(1, 1, masked=True)


@compiled
def product(
    a: Any, at: Any, down: Any, along: Any, b: Any, bt: Any, next_b: Any, c: Any, ct: Any, next_c: Any,
    rows: Any, columns: Any, count: Any, more: Any,
) -> None:  # fmt: skip
    """C[i, j] = (C[i, j] if `more` is 1) + the sum over `count` k of A[i, k] B[k, j], as a tile has it."""
    j = 0
    while j < columns:
        left = columns - j
        high = ROWS if left >= 2 * LANES else 2 * ROWS
        i = 0
        while i < rows:
            whole = rows - i >= high
            m, n = at + i * down, ct + i * next_c + j
            if left >= 2 * LANES:
                if whole:
                    _block(a, m, down, along, b, bt + j, next_b, c, n, next_c, count, left, more)
                else:
                    _line(a, m, down, along, b, bt + j, next_b, c, n, next_c, count, left, more)
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
        j += 2 * LANES if left >= 2 * LANES else LANES


def _inner(rows: int, columns: int) -> Callable[..., None]:
    """C[i, j] = the sum over k of A[i, k] B[j, k] for some rows i and j; rows lie one below the other."""

    @intrinsic_of
    def tile(typing: Any, a: Any, at: Any, b: Any, bt: Any, wide: Any, c: Any, ct: Any, next_c: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            a, at, b, bt, wide, c, ct, next_c = args
            w = _Writer(context, builder, signature)
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


_square, _row, _column, _single = _inner(ROWS, SIDE), _inner(1, SIDE), _inner(ROWS, 1), _inner(1, 1)


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
            if rows - i >= ROWS:
                if many:
                    _square(a, m, b, n, wide, c, to, next_c)
                else:
                    _column(a, m, b, n, wide, c, to, next_c)
                i += ROWS
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
    target, whole = out[at : at + n], count - count % 4
    for b in range(0, whole, 4):
        place, weight = begin + b * n, first + b * apart
        p, q, r, s = by[weight], by[weight + apart], by[weight + 2 * apart], by[weight + 3 * apart]
        four = rows[place : place + 4 * n]
        for i in range(n):
            target[i] += p * four[i] + q * four[n + i] + r * four[2 * n + i] + s * four[3 * n + i]
    for b in range(whole, count):
        p, one = by[first + b * apart], rows[begin + b * n : begin + (b + 1) * n]
        for i in range(n):
            target[i] += p * one[i]
