"""The same words and normals as chacha.py and gaussian.py, compiled for this processor.

Eight blocks are made side by side in vector registers. All their normals are then made at once, as vectors of
64: one after another they would wait for their own roots and products, together they keep the processor busy.
They are added to their target while still in the cache.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types, uint32
from numba.extending import intrinsic

from fedpriv.compiling import kept
from fedpriv.randomness.chacha import CONSTANTS, ROUNDS, TURNS, WORDS
from fedpriv.randomness.gaussian import (
    ANGLE,
    ANGLE_LESS,
    ANGLE_SIZE,
    COS,
    GROUP,
    HIGH_BITS,
    LANES,
    LOG,
    LOW_LESS,
    LOW_SHIFT,
    LOW_SIZE,
    MINUS_2_LN2,
    ROOT_HALF,
    SIN,
)

FILES = [Path(__file__).parent / name for name in ("chacha.py", "gaussian.py", "compiled.py")]
# Said, not left open: numba would take it over from whoever calls these first, and then round otherwise.
_compiled = kept(*FILES, error_model="numpy", fastmath=False)
_WORD, _VECTOR = ir.IntType(32), ir.VectorType(ir.IntType(32), LANES)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)

# numba's own types do not know that the first argument is numba's.
_intrinsic: Callable[[Callable[..., Any]], Callable[..., Any]] = intrinsic


class _Eight:
    """Writes instructions on eight numbers at once, or on `lanes`."""

    def __init__(self, builder: Any, lanes: int = LANES):
        self.b, self.lanes = builder, lanes
        self.words = ir.VectorType(_WORD, lanes)
        self.floats = ir.VectorType(ir.FloatType(), lanes)

    def word(self, value: int) -> Any:
        return ir.Constant(self.words, [value] * self.lanes)

    def number(self, value: Any) -> Any:
        return ir.Constant(self.floats, [float(np.float32(value))] * self.lanes)

    def joined(self, vectors: list[Any]) -> Any:
        """Vectors one behind the other as one."""
        while len(vectors) > 1:
            both = 2 * vectors[0].type.count
            order = ir.Constant(ir.VectorType(_WORD, both), list(range(both)))
            vectors = [
                self.b.shuffle_vector(x, y, order) for x, y in zip(vectors[::2], vectors[1::2], strict=True)
            ]
        return vectors[0]

    def part(self, vector: Any, number: int) -> Any:
        """Eight of many."""
        places = ir.Constant(_VECTOR, list(range(number * LANES, (number + 1) * LANES)))
        return self.b.shuffle_vector(vector, vector, places)

    def everywhere(self, one: Any, kind: Any) -> Any:
        nothing = ir.Constant(kind, ir.Undefined)
        first = self.b.insert_element(nothing, one, ir.Constant(_WORD, 0))
        return self.b.shuffle_vector(first, nothing, self.word(0))

    def place(self, pointer: Any, number: int, kind: Any) -> Any:
        at = self.b.gep(pointer, [ir.Constant(_WORD, number * LANES)])
        return self.b.bitcast(at, kind.as_pointer())

    def load(self, pointer: Any, number: int, kind: Any) -> Any:
        loaded = self.b.load(self.place(pointer, number, kind))
        loaded.align = 4
        return loaded

    def store(self, value: Any, pointer: Any, number: int) -> None:
        self.b.store(value, self.place(pointer, number, value.type)).align = 4

    def turned(self, x: Any, bits: int) -> Any:
        return self.b.or_(self.b.shl(x, self.word(bits)), self.b.lshr(x, self.word(32 - bits)))

    def polynomial(self, coefficients: tuple[float, ...], x: Any) -> Any:
        terms = [self.number(c) for c in coefficients]
        while len(terms) > 1:
            terms = [
                self.b.fadd(self.b.fmul(high, x), low)
                for low, high in zip(terms[::2], terms[1::2], strict=True)
            ]
            x = self.b.fmul(x, x)
        return terms[0]

    def blocks(self, key: Any, tail: Any) -> list[Any]:
        """The 16 words of eight blocks (chacha.blocks), whose states end in tail[:, lane]."""
        b = self.b
        start = [self.word(c) for c in CONSTANTS]
        start += [self.everywhere(b.load(b.gep(key, [ir.Constant(_WORD, n)])), _VECTOR) for n in range(8)]
        start += [self.load(tail, n, _VECTOR) for n in range(4)]
        x = list(start)
        for turn in range(ROUNDS):
            step = turn % 2  # every second time the quarters lie on the diagonals
            quarters = [[4 * row + (n + row * step) % 4 for row in range(4)] for n in range(4)]
            for i, j, k, m in quarters:  # one after another: 16 registers hold no more
                for first, second in (TURNS[:2], TURNS[2:]):
                    x[i] = b.add(x[i], x[j])
                    x[m] = self.turned(b.xor(x[m], x[i]), first)
                    x[k] = b.add(x[k], x[m])
                    x[j] = self.turned(b.xor(x[j], x[k]), second)
        return [b.add(word, begun) for word, begun in zip(x, start, strict=True)]

    def pair(self, a: Any, c: Any) -> tuple[Any, Any]:
        """Normals of words a and c, as gaussian.pair makes them."""
        b, word, number, floats = self.b, self.word, self.number, self.floats

        def as_float(bits: Any) -> Any:
            return b.bitcast(bits, floats)

        low = b.fsub(as_float(b.or_(b.lshr(c, word(LOW_SHIFT)), word(LOW_SIZE))), number(LOW_LESS))
        u = b.fadd(b.sitofp(b.and_(a, word(0x7FFFFFFF)), floats), low)
        bits = b.sub(b.bitcast(u, self.words), word(ROOT_HALF + (HIGH_BITS << 23)))
        t = b.fsub(as_float(b.add(b.and_(bits, word(0x7FFFFF)), word(ROOT_HALF))), number(1))
        whole = b.fmul(b.sitofp(b.ashr(bits, word(23)), floats), number(MINUS_2_LN2))
        root = ir.FunctionType(floats, [floats])
        root = b.module.declare_intrinsic(f"llvm.sqrt.v{self.lanes}f32", fnty=root)
        radius = b.call(root, [b.fadd(whole, b.fmul(t, self.polynomial(LOG, t)))])
        g = b.fsub(as_float(b.or_(b.and_(c, word(ANGLE)), word(ANGLE_SIZE))), number(ANGLE_LESS))
        square = b.fmul(g, g)
        sine, cosine = b.fmul(g, self.polynomial(SIN, square)), self.polynomial(COS, square)
        swapped = b.icmp_signed("<", b.shl(c, word(31)), word(0))
        x, y = b.select(swapped, sine, cosine), b.select(swapped, cosine, sine)
        sign = b.and_(a, word(0x80000000))
        radius = as_float(b.xor(b.bitcast(radius, self.words), sign))
        return b.fmul(x, radius), b.fmul(y, radius)


def _instructions(write: Callable[[Any, Any], None], *kinds: Any) -> Any:
    """A function for compiled code whose body is written by hand."""
    pointers = {"words": types.CPointer(types.uint32), "floats": types.CPointer(types.float32)}

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        write(_Eight(builder), args)
        return context.get_dummy_value()

    return types.void(*(pointers[k] for k in kinds)), generate


@_intrinsic
def _address(typing: Any, array: Any) -> Any:
    """Where an array's numbers begin."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, args[0]).data

    return types.CPointer(array.dtype)(array), generate


@_intrinsic
def _eight_blocks(typing: Any, out: Any, key: Any, tail: Any) -> Any:
    """out[w, lane]: word w of each of eight blocks."""

    def write(eight: _Eight, args: Any) -> None:
        for n, word in enumerate(eight.blocks(args[1], args[2])):
            eight.store(word, args[0], n)

    return _instructions(write, "words", "words", "words")


@_intrinsic
def _add_group(typing: Any, out: Any, scale: Any, key: Any, tail: Any) -> Any:
    """out += scale * the normals of eight blocks, 128 in a row."""

    def write(eight: _Eight, args: Any) -> None:
        out, scale, key, tail = args
        words = eight.blocks(key, tail)
        factor = eight.everywhere(eight.b.load(scale), _FLOATS)
        many = _Eight(eight.b, GROUP // 2)
        both = many.pair(eight.joined(words[::2]), eight.joined(words[1::2]))
        for place in range(WORDS):
            z = eight.part(both[place % 2], place // 2)
            sum_ = eight.b.fadd(eight.load(out, place, _FLOATS), eight.b.fmul(factor, z))
            eight.store(sum_, out, place)

    return _instructions(write, "floats", "floats", "words", "words")


@_compiled
def words(out: Any, key: Any, names: Any) -> None:
    """out [N, width] uint32: the words of rows named [N, 3], eight rows at a time."""
    count, width = out.shape
    made, tail = np.empty((WORDS, LANES), np.uint32), np.zeros((4, LANES), np.uint32)
    for first in range(0, count, LANES):
        rows = min(LANES, count - first)
        for lane in range(rows):
            for n in range(3):
                tail[n + 1, lane] = names[first + lane, n]
        for left in range(0, width, WORDS):
            tail[0, :] = uint32(left // WORDS)
            _eight_blocks(_address(made), _address(key), _address(tail))
            for lane in range(rows):
                for n in range(min(WORDS, width - left)):
                    out[first + lane, left + n] = made[n, lane]


@_compiled
def add_normals(out: Any, scale: Any, key: Any, names: Any) -> None:
    """out[i] += scale[i] * z for rows named [N, 3], z standard normal; all float32, a row without gaps."""
    tail, rest = np.zeros((4, LANES), np.uint32), np.empty(GROUP, np.float32)
    width = out.shape[1]
    for row in range(len(out)):
        for n in range(3):
            tail[n + 1, :] = names[row, n]
        for left in range(0, width, GROUP):
            for lane in range(LANES):
                tail[0, lane] = uint32(left // WORDS + lane)
            target = out[row, left : left + GROUP]
            whole = len(target) == GROUP
            if not whole:
                rest[: len(target)] = target
            place = target if whole else rest
            _add_group(_address(place), _address(scale[row:]), _address(key), _address(tail))
            if not whole:
                target[:] = rest[: len(target)]
