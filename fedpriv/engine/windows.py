"""The largest numbers of windows of images, in compiled code: some channels at a time, a vector of them."""

from collections.abc import Callable
from itertools import product
from typing import Any

from llvmlite import ir
from numba import types

from fedpriv.engine.vectors import LANES, Writer, intrinsic_of

Sums = list[Any]
# What becomes of sums over a window's places, by what becomes of them at one: a pointer, and where that is.
Over = Callable[[Sums, Callable[[Any, Any, Sums], Sums]], Sums]
_SHORT = ir.IntType(32)


def _window(body: Callable[[Writer, Any, Any, Any, Over, Any], None]) -> Callable[..., None]:
    """Code for `width` channels of a window of `a`, at most a vector of them, from `at` on. The next column
    is `channels` further, the next row a `line`.

    `body` writes it: it is given pointers to a[to] and which[to], the places of the first numbers, what goes
    over all, and a mask where there are fewer channels than a vector holds.
    """

    @intrinsic_of
    def window(
        typing: Any, a: Any, at: Any, line: Any, channels: Any, kh: Any, kw: Any, to: Any, which: Any,
        width: Any,
    ) -> Any:  # fmt: skip
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            a, at, line, channels, kh, kw, to, which, width = args
            w = Writer(context, builder, signature)
            source, out = w.place(0, a, at), w.at(w.place(0, a, to), w.word(0))
            where = builder.bitcast(w.place(7, which, to), w.vector.as_pointer())
            first = builder.add(w.same(builder.trunc(at, _SHORT), w.places), w.counted)

            def at_place(i: Any, j: Any, sums: Sums, one: Callable[[Any, Any, Sums], Sums]) -> Sums:
                far = builder.add(builder.mul(i, line), builder.mul(j, channels))
                here = builder.add(first, w.same(builder.trunc(far, _SHORT), w.places))
                return one(w.at(source, far), here, sums)

            def over_any(sums: Sums, one: Callable[[Any, Any, Sums], Sums]) -> Sums:
                return w.loop(
                    kh, 1, sums, lambda i, row: w.loop(kw, 1, row, lambda j, s: at_place(i, j, s, one))
                )

            def over_four(sums: Sums, one: Callable[[Any, Any, Sums], Sums]) -> Sums:
                for i, j in product((0, 1), (0, 1)):
                    sums = at_place(w.word(i), w.word(j), sums, one)
                return sums

            full = builder.icmp_signed(">=", width, w.word(LANES))
            two = builder.and_(*(builder.icmp_signed("==", k, w.word(2)) for k in (kh, kw)))
            with builder.if_else(two) as (usual, other):
                for case, over in ((usual, over_four), (other, over_any)):
                    with case, builder.if_else(full) as (all_, few):
                        with all_:
                            body(w, out, where, first, over, None)
                        with few:
                            body(w, out, where, first, over, w.first(width))
            return context.get_dummy_value()

        return types.void(a, at, line, channels, kh, kw, to, which, width), generate

    return window


def _most(w: Writer, out: Any, where: Any, first: Any, over: Over, mask: Any) -> None:
    """The largest, into a[to:], and where it was, the first of equals. What is no number is larger than all
    before it. Written down, because a compiler makes branches of it."""
    b = w.b

    def one(pointer: Any, here: Any, kept: Sums) -> Sums:
        new, (most, place) = w.load(pointer, mask), kept
        better = b.or_(b.fcmp_ordered(">", new, most), b.fcmp_unordered("uno", new, new))
        return [b.select(better, new, most), b.select(better, here, place)]

    least = ir.Constant(w.vector, [w.number(float("-inf"))] * LANES)
    most, place = over([least, first], one)
    w.store(most, out, mask)
    w.store(b.bitcast(place, w.vector), where, mask)


def _back(w: Writer, out: Any, where: Any, first: Any, over: Over, mask: Any) -> None:
    """a[which[to + i]] += a[to + i]."""
    b = w.b
    gradient, place = w.load(out, mask), b.bitcast(w.load(where, mask), w.places)

    def one(pointer: Any, here: Any, _: Sums) -> Sums:
        more = b.select(b.icmp_signed("==", place, here), gradient, w.nothing)
        w.store(b.fadd(w.load(pointer, mask), more), pointer, mask)
        return []

    over([], one)


largest, to_largest = _window(_most), _window(_back)
