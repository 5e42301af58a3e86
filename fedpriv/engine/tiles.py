"""Products and sums of small matrices in compiled code, a tile of some rows and columns at a time.

A library's product of matrices that fit into a cache costs as much again in calls and copies, and its speed
jumps with their shapes. A tile's sums stay in registers for the whole of it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from llvmlite import ir
from numba import njit, types
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
LANES = 8  # numbers of a vector
ROWS = 4  # of a tile: with two vectors each, as many sums as hide the time that one takes

# numba's own types do not know that the first argument is numba's.
intrinsic_of: Callable[[Callable[..., Any]], Callable[..., Any]] = intrinsic


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


def _tile(rows: int, vectors: int) -> Callable[..., None]:
    """C[i, j] = the sum over k of A[i, k] B[k, j], for some rows i and vectors of neighbours j.

    A[i, k] is at `at` + i `down` + k `along` of its array; rows of B and C begin `next_b` and `next_c` apart.
    """

    @intrinsic_of
    def tile(
        typing: Any, a: Any, at: Any, down: Any, along: Any, b: Any, bt: Any, next_b: Any, c: Any, ct: Any,
        next_c: Any, count: Any,
    ) -> Any:  # fmt: skip
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            a, at, down, along, b, bt, next_b, c, ct, next_c, count = args
            number, word = ir.FloatType(), count.type
            vector = ir.VectorType(number, LANES)

            def begin(position: int, value: Any, place: Any) -> Any:
                data = context.make_array(signature.args[position])(context, builder, value).data
                return builder.gep(data, [place])

            def beside(pointer: Any, n: int) -> Any:
                return builder.bitcast(builder.gep(pointer, [word(n * LANES)]), vector.as_pointer())

            def everywhere(value: Any) -> Any:
                one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.IntType(32)(0))
                zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
                return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)

            left = [begin(0, a, builder.add(at, builder.mul(down, word(i)))) for i in range(rows)]
            right, out = begin(4, b, bt), begin(7, c, ct)
            entry = builder.block
            loop, done = builder.append_basic_block("products"), builder.append_basic_block("done")
            builder.branch(loop)
            builder.position_at_end(loop)
            k = builder.phi(word)
            k.add_incoming(word(0), entry)
            nothing = ir.Constant(vector, [number(0.0)] * LANES)
            sums = [[builder.phi(vector) for _ in range(vectors)] for _ in range(rows)]
            here = builder.gep(right, [builder.mul(k, next_b)])
            shared = [builder.load(beside(here, n), align=4) for n in range(vectors)]
            place = builder.mul(k, along)
            for pointer, of_row in zip(left, sums, strict=True):
                factor = everywhere(builder.load(builder.gep(pointer, [place])))
                for n, total in enumerate(of_row):
                    product = builder.fmul(factor, shared[n], flags=("contract",))
                    total.add_incoming(nothing, entry)
                    total.add_incoming(builder.fadd(total, product, flags=("contract",)), loop)
            following = builder.add(k, word(1))
            k.add_incoming(following, loop)
            builder.cbranch(builder.icmp_signed("<", following, count), loop, done)
            builder.position_at_end(done)
            for i, of_row in enumerate(sums):
                target = builder.gep(out, [builder.mul(next_c, word(i))])
                for n, total in enumerate(of_row):
                    builder.store(total.incomings[1][0], beside(target, n), align=4)
            return context.get_dummy_value()

        return types.void(a, at, down, along, b, bt, next_b, c, ct, next_c, count), generate

    return tile


_four_wide, _four, _one_wide, _one = _tile(ROWS, 2), _tile(ROWS, 1), _tile(1, 2), _tile(1, 1)


@compiled
def product(
    a: Any, at: Any, down: Any, along: Any, b: Any, bt: Any, next_b: Any, c: Any, ct: Any, next_c: Any,
    rows: Any, columns: Any, count: Any,
) -> None:  # fmt: skip
    """C[i, j] = the sum over `count` k > 0 of A[i, k] B[k, j], as a tile has it.

    The last tile of a row or column of tiles begins earlier where it would reach over the end.
    """
    if columns < LANES:
        for i in range(rows):
            for j in range(columns):
                total = a[at] * 0
                for k in range(count):
                    total += a[at + i * down + k * along] * b[bt + k * next_b + j]
                c[ct + i * next_c + j] = total
        return
    j = 0
    while j < columns:
        wide = columns - j >= 2 * LANES
        j = j if wide else min(j, columns - LANES)
        i = 0
        while i < rows:
            if rows < ROWS:
                if wide:
                    _one_wide(
                        a,
                        at + i * down,
                        down,
                        along,
                        b,
                        bt + j,
                        next_b,
                        c,
                        ct + i * next_c + j,
                        next_c,
                        count,
                    )
                else:
                    _one(
                        a,
                        at + i * down,
                        down,
                        along,
                        b,
                        bt + j,
                        next_b,
                        c,
                        ct + i * next_c + j,
                        next_c,
                        count,
                    )
                i += 1
                continue
            i = min(i, rows - ROWS)
            if wide:
                _four_wide(
                    a, at + i * down, down, along, b, bt + j, next_b, c, ct + i * next_c + j, next_c, count
                )
            else:
                _four(a, at + i * down, down, along, b, bt + j, next_b, c, ct + i * next_c + j, next_c, count)
            i += ROWS
        j += 2 * LANES if wide else LANES


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
