"""Vectors of the processor's own width in compiled code: instructions that a compiler would not find by
itself, and how all compiled code of the engine is compiled."""

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
_NAMES = ("vectors", "tiles", "windows", "images", "affine", "normed", "compiled", "judged")
_FILES = [Path(__file__).parent / f"{name}.py" for name in _NAMES]
# Helpers are compiled with what calls them; wrappers to call them from Python would double the time it takes.
_options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
compiled: Callable[[Callable[..., Any]], Callable[..., Any]] = njit(
    nogil=True, error_model="numpy", fastmath=_LOOSE, **_options
)
entry = kept(*_FILES, *noise.FILES, error_model="numpy", fastmath=_LOOSE)

WIDE = bool(llvmlite.binding.get_host_cpu_features().get("avx512f"))
LANES = 16 if WIDE else 8  # numbers of a vector

# numba's own types do not know that the first argument is numba's.
intrinsic_of: Callable[[Callable[..., Any]], Callable[..., Any]] = intrinsic


class Writer:
    """Writes instructions on vectors of numbers."""

    def __init__(self, context: Any, builder: Any, signature: Any):
        self.context, self.b, self.signature = context, builder, signature
        self.number, self.word = ir.FloatType(), ir.IntType(64)
        self.vector = ir.VectorType(self.number, LANES)
        self.nothing = ir.Constant(self.vector, [self.number(0.0)] * LANES)
        self.places = ir.VectorType(ir.IntType(32), LANES)
        self.counted = ir.Constant(self.places, list(range(LANES)))  # 0, 1, 2, ...

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
        return self.b.shuffle_vector(first, empty, ir.Constant(self.places, [0] * LANES))

    def first(self, count: Any) -> Any:
        """Which numbers of a vector are among the first `count`."""
        return self.b.icmp_signed(
            "<", self.counted, self.same(self.b.trunc(count, ir.IntType(32)), self.places)
        )

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


def _along(added: bool) -> Callable[..., None]:
    """out[to:][:n] = a[at:][:n], or plus that: whole vectors, then the rest under a mask."""

    @intrinsic_of
    def along(typing: Any, a: Any, at: Any, out: Any, to: Any, n: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            a, at, out, to, n = args
            w = Writer(context, builder, signature)
            left, right = w.place(0, a, at), w.place(2, out, to)

            def one(k: Any, mask: Any = None) -> None:
                value, target = w.load(w.at(left, k), mask), w.at(right, k)
                w.store(builder.fadd(w.load(target, mask), value) if added else value, target, mask)

            def whole_vectors(k: Any, _: list[Any]) -> list[Any]:
                one(k)
                return []

            whole = builder.and_(n, w.word(-LANES))
            rest = builder.sub(n, whole)
            with builder.if_then(builder.icmp_signed(">", whole, w.word(0))):
                w.loop(whole, LANES, [], whole_vectors)
            with builder.if_then(builder.icmp_signed(">", rest, w.word(0))):
                one(whole, w.first(rest))
            return context.get_dummy_value()

        return types.void(a, at, out, to, n), generate

    return along


move, plus = _along(False), _along(True)
