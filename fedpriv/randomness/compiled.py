"""The same words and normals as chacha.py and gaussian.py, compiled for this processor.

Eight blocks are made side by side in vector registers, and normals are added to their target while still in
the cache. Compiled code is kept on the disk by numba; it lets other threads run.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types, uint32
from numba.extending import intrinsic

from fedpriv.randomness.chacha import CONSTANTS, ROUNDS, TURNS, WORDS
from fedpriv.randomness.gaussian import ANGLE_BITS, COS, GROUP, LANES, LN2, LOG, RADIUS_BITS, ROOT_HALF, SIN

_WORD, _VECTOR = ir.IntType(32), ir.VectorType(ir.IntType(32), LANES)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)

# numba's own types do not know that the first argument is numba's.
_intrinsic: Callable[[Callable[..., Any]], Callable[..., Any]] = intrinsic


class _Eight:
    """Writes instructions on eight numbers at once."""

    def __init__(self, builder: Any):
        self.b = builder

    def word(self, value: int) -> Any:
        return ir.Constant(_VECTOR, [value] * LANES)

    def number(self, value: Any) -> Any:
        return ir.Constant(_FLOATS, [float(np.float32(value))] * LANES)

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
        total = self.number(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            total = self.b.fadd(self.b.fmul(total, x), self.number(coefficient))
        return total

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
            for first, second in (TURNS[:2], TURNS[2:]):
                for i, j, k, m in quarters:
                    x[i] = b.add(x[i], x[j])
                    x[m] = self.turned(b.xor(x[m], x[i]), first)
                    x[k] = b.add(x[k], x[m])
                    x[j] = self.turned(b.xor(x[j], x[k]), second)
        return [b.add(word, begun) for word, begun in zip(x, start, strict=True)]

    def pair(self, a: Any, c: Any) -> tuple[Any, Any]:
        """Normals of words a and c, as gaussian.pair makes them."""
        b, word, number = self.b, self.word, self.number
        half = number(0.5)
        high = b.sitofp(b.lshr(a, word(8)), _FLOATS)
        low = b.or_(b.shl(b.and_(a, word(0xFF)), word(14)), b.lshr(c, word(ANGLE_BITS)))
        u = b.fadd(b.fmul(high, number(1 << 22)), b.fadd(b.sitofp(low, _FLOATS), half))
        bits = b.bitcast(u, _VECTOR)
        exponent = b.ashr(b.sub(bits, word(ROOT_HALF)), word(23))
        t = b.fsub(b.bitcast(b.sub(bits, b.shl(exponent, word(23))), _FLOATS), number(1))
        square = b.fmul(t, t)
        rest = b.fmul(b.fmul(square, t), self.polynomial(LOG, t))
        rest = b.fadd(b.fsub(t, b.fmul(square, half)), rest)
        whole = b.fmul(b.sitofp(b.sub(exponent, word(RADIUS_BITS)), _FLOATS), number(LN2))
        logarithm = b.fadd(whole, rest)
        logarithm = b.select(b.fcmp_ordered("<", logarithm, number(0)), logarithm, number(0))
        root = ir.FunctionType(_FLOATS, [_FLOATS])
        root = b.module.declare_intrinsic(f"llvm.sqrt.v{LANES}f32", fnty=root)
        radius = b.call(root, [b.fmul(logarithm, number(-2))])
        g = b.fadd(b.sitofp(b.and_(c, word(0xFFFF)), _FLOATS), half)
        g = b.fsub(b.fmul(g, number(1 / 65536)), half)
        square = b.fmul(g, g)
        sine, cosine = b.fmul(g, self.polynomial(SIN, square)), self.polynomial(COS, square)
        odd = b.icmp_unsigned("!=", b.and_(c, word(1 << 16)), word(0))
        x = b.select(odd, b.fneg(sine), cosine)
        y = b.select(odd, cosine, sine)
        turn = b.shl(b.and_(c, word(1 << 17)), word(14))  # into the place of the sign
        radius = b.bitcast(b.xor(b.bitcast(radius, _VECTOR), turn), _FLOATS)
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
        for n in range(0, WORDS, 2):
            for place, z in enumerate(eight.pair(words[n], words[n + 1]), start=n):
                sum_ = eight.b.fadd(eight.load(out, place, _FLOATS), eight.b.fmul(factor, z))
                eight.store(sum_, out, place)

    return _instructions(write, "floats", "floats", "words", "words")


@njit(nogil=True, cache=True, error_model="numpy")
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


@njit(nogil=True, cache=True, error_model="numpy")
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
            if len(target) == GROUP:
                _add_group(_address(target), _address(scale[row:]), _address(key), _address(tail))
            else:
                rest[: len(target)] = target
                _add_group(_address(rest), _address(scale[row:]), _address(key), _address(tail))
                target[:] = rest[: len(target)]
