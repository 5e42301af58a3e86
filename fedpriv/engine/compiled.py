"""A local step of a chain of layers for some clients, one after the other, in one compiled call.

A client's numbers stay in the cache for the whole step, and nothing of Python is between two products. Large
products are those of BLAS, called by its address. Matrices are flat: rows of samples one below the other,
[n, width], and weights [O, I] as torch has them. Helpers get an array, where to begin and how far to go.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

LINEAR, CONVOLUTION, POOL = 0, 1, 2  # kinds of layers; what is applied to their outputs:
NOTHING, TANH, RELU = 0, 1, 2
FEW = 16  # outputs up to which plain sums are faster than a product of matrices
# Sums may be taken in another order, so that they fill vectors; what is infinite or no number stays so.
_LOOSE = {"reassoc", "contract", "nsz", "arcp"}
_compiled = njit(nogil=True, cache=True, error_model="numpy", fastmath=_LOOSE)


# numba's own types do not know that the first argument is numba's.
_intrinsic: Callable[[Callable[..., Any]], Callable[..., Any]] = intrinsic


@_intrinsic
def _sgemm(
    typing: Any, blas: Any, turned: Any, sizes: Any, alpha: Any, a: Any, at: Any, b: Any, bt: Any, beta: Any,
    c: Any, ct: Any,
) -> Any:  # fmt: skip
    """C = alpha A B + beta C by the rules of Fortran; A, B, C begin at `at`, `bt`, `ct` of their arrays.

    `turned` are two letters in one number, `sizes` are m, n, k and the leading ones of A, B, C.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        blas, turned, sizes, alpha, a, at, b, bt, beta, c, ct = args
        word, number = ir.IntType(32), ir.FloatType()

        def kept(value: Any, kind: Any) -> Any:
            place = builder.alloca(kind)
            builder.store(value, place)
            return place

        def matrix(position: int, value: Any, begin: Any) -> Any:
            data = context.make_array(signature.args[position])(context, builder, value).data
            return builder.gep(data, [begin])

        letters = [ir.IntType(8)(ord(x)) for x in "NT"]
        first, second = (
            builder.select(builder.trunc(builder.lshr(turned, turned.type(n)), ir.IntType(1)), *letters[::-1])
            for n in (0, 1)
        )
        m, n, k, lda, ldb, ldc = (
            kept(builder.trunc(builder.extract_value(sizes, i), word), word) for i in range(6)
        )
        given = [
            kept(first, ir.IntType(8)), kept(second, ir.IntType(8)), m, n, k, kept(alpha, number),
            matrix(4, a, at), lda, matrix(6, b, bt), ldb, kept(beta, number), matrix(9, c, ct), ldc,
        ]  # fmt: skip
        kind = ir.FunctionType(ir.VoidType(), [value.type for value in given])
        builder.call(builder.inttoptr(blas, kind.as_pointer()), given)
        return context.get_dummy_value()

    return types.void(blas, turned, sizes, alpha, a, at, b, bt, beta, c, ct), generate


@_compiled
def _dot(a: Any, at: Any, b: Any, bt: Any, n: Any) -> Any:
    u, v, total = a[at : at + n], b[bt : bt + n], np.float32(0)
    for i in range(n):
        total += u[i] * v[i]
    return total


@_compiled
def _add(
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


@_compiled
def _activate(z: Any, at: Any, n: Any, how: Any) -> None:
    """tanh by Lambert's continued fraction of a quarter, doubled twice; or what is above zero."""
    z = z[at : at + n]
    if how == TANH:
        for i in range(n):
            x = np.float32(0.25) * min(max(z[i], np.float32(-9)), np.float32(9))
            s = x * x
            over = x * (np.float32(135135) + s * (np.float32(17325) + s * (np.float32(378) + s)))
            under = np.float32(62370) + s * (np.float32(3150) + s * np.float32(28))
            t = over / (np.float32(135135) + s * under)
            t = np.float32(2) * t / (np.float32(1) + t * t)
            t = np.float32(2) * t / (np.float32(1) + t * t)
            z[i] = t if z[i] == z[i] else z[i]
    elif how == RELU:
        for i in range(n):
            z[i] = np.float32(0) if z[i] < 0 else z[i]


@_compiled
def _slope(g: Any, seen: Any, at: Any, n: Any, how: Any) -> None:
    """g times the derivative of the activation that gave `seen`."""
    g, seen = g[at : at + n], seen[at : at + n]
    if how == TANH:
        for i in range(n):
            g[i] *= np.float32(1) - seen[i] * seen[i]
    elif how == RELU:
        for i in range(n):
            g[i] = g[i] if seen[i] > 0 else np.float32(0)


@_compiled
def _cross_entropy(z: Any, g: Any, at: Any, classes: Any, label: Any) -> Any:
    """A sample's loss; its gradient by the outputs goes to g."""
    z, g = z[at : at + classes], g[at : at + classes]
    most, total = z[0], np.float32(0)
    for i in range(1, classes):
        most = max(most, z[i])
    for i in range(classes):
        g[i] = np.exp(z[i] - most)
        total += g[i]
    for i in range(classes):
        g[i] /= total
    g[label] -= np.float32(1)
    return np.log(total) + most - z[label]


@_compiled
def _affine(a: Any, at: Any, x: Any, sample: Any, raw: Any, b: Any, n: Any, by: Any) -> None:
    """a[at:][:n] = a sample's numbers; scaled and shifted by by[0], by[1], then by by[2], by[3]."""
    out, kept = a[at : at + n], raw[b * n : (b + 1) * n]
    for i in range(n):
        kept[i] = x[sample, i]
        out[i] = (kept[i] * by[0, i] + by[1, i]) * by[2, i] + by[3, i]


@_compiled
def _times(g: Any, at: Any, n: Any, by: Any) -> None:
    """The gradient by what the transform gives."""
    g = g[at : at + n]
    for i in range(n):
        g[i] *= by[2, i]


@_compiled
def _squares(each: Any, times: Any, at: Any, n: Any, count: Any) -> Any:
    """The sum of squares of `count` numbers, each the sum of neighbours among the n of each * times."""
    u, v, total = each[at : at + n], times[at : at + n], 0.0
    some = n // max(1, count)
    if some == 1:
        for i in range(n):
            one = u[i] * v[i]
            total += one * one
        return total
    for k in range(count):
        one = np.float32(0)
        for i in range(k * some, (k + 1) * some):
            one += u[i] * v[i]
        total += np.float64(one) * np.float64(one)
    return total


@_compiled
def _clear(a: Any, at: Any, n: Any) -> None:
    for i in range(at, at + n):
        a[i] = 0


@_compiled
def _copy(a: Any, at: Any, x: Any, sample: Any, n: Any) -> None:
    out = a[at : at + n]
    for i in range(n):
        out[i] = x[sample, i]


@_compiled
def _scaled(g: Any, at: Any, n: Any, width: Any, factor: Any) -> None:
    for b in range(n):
        one = g[at + b * width : at + (b + 1) * width]
        for i in range(width):
            one[i] *= factor[b]


@_compiled
def _home(
    out: Any, at: Any, count: Any, each: Any, times: Any, n: Any, samples: Any, factor: Any, by: Any
) -> None:
    """The step of `count` numbers, each of which serves some neighbours among n inputs."""
    some = n // max(1, count)
    for b in range(samples):
        u, v = each[b * n : (b + 1) * n], times[b * n : (b + 1) * n]
        if some == 1:
            for i in range(n):
                out[at + i] += by * factor[b] * u[i] * v[i]
        else:
            for k in range(count):
                one = np.float32(0)
                for i in range(k * some, (k + 1) * some):
                    one += u[i] * v[i]
                out[at + k] += by * factor[b] * one


@_compiled
def _columns(a: Any, at: Any, shape: Any, out: Any, to: Any, back: Any) -> None:
    """Every patch of an image [channels, H, W] as a row (channels, kh, kw); `back`: added to the image."""
    channels, rows, cols, kh, kw, sh, sw, ph, pw, height, width = shape
    for y in range(height):
        for x in range(width):
            first = x * sw - pw
            left, right = max(0, -first), min(kw, cols - first)
            for c in range(channels):
                for i in range(kh):
                    row = y * sh + i - ph
                    inside = 0 <= row < rows
                    begin = at + (c * rows + (row if inside else 0)) * cols + first
                    if back:
                        if inside:
                            for j in range(left, right):
                                a[begin + j] += out[to + j]
                    elif inside and left == 0 and right == kw:
                        one, other = out[to : to + kw], a[begin : begin + kw]
                        for j in range(kw):
                            one[j] = other[j]
                    else:
                        for j in range(kw):
                            out[to + j] = a[begin + j] if inside and left <= j < right else np.float32(0)
                    to += kw


@_compiled
def _pool(a: Any, at: Any, shape: Any, to: Any, which: Any) -> None:
    """The largest of each window of an image, into the same array, and where it was, the first of equals."""
    channels, rows, cols, kh, kw, sh, sw, _, _, height, width = shape
    for c in range(channels):
        for y in range(height):
            for x in range(width):
                place = at + (c * rows + y * sh) * cols + x * sw
                best, most = place, a[place]
                for i in range(kh):
                    for j in range(kw):
                        value = a[place + i * cols + j]
                        if value > most or value != value:
                            best, most = place + i * cols + j, value
                a[to], which[to] = most, best
                to += 1


@_compiled
def _unpool(g: Any, at: Any, n: Any, to: Any, count: Any, which: Any) -> None:
    """The gradient by an image's n numbers of that by its `count` largest ones."""
    _clear(g, at, n)
    for i in range(to, to + count):
        g[which[i]] += g[i]


@_compiled
def _shift(z: Any, at: Any, count: Any, n: Any, rows: Any, bias: Any) -> None:
    """Each of `count` channels of n numbers plus its bias."""
    for o in range(count):
        one = z[at + o * n : at + (o + 1) * n]
        for i in range(n):
            one[i] += rows[bias + o]


@_compiled
def _shape(shapes: Any, m: Any) -> Any:
    s = shapes[m]
    return s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9], s[10]


@_compiled
def _kernel(shapes: Any, m: Any) -> Any:
    """Weights of a convolution."""
    return shapes[m, 11] * shapes[m, 0] * shapes[m, 3] * shapes[m, 4]


@_compiled
def step(
    blas: Any,  # the address of sgemm
    rows: Any,  # [C * P] trained in place
    samples: Any,  # [C, T, B] which of x
    counts: Any,  # [C, T]
    number: Any,  # of the step
    x: Any,  # [N, D]
    y: Any,  # [N]
    widths: Any,  # [L + 1]
    layers: Any,  # [L, 6] kind, activation, where weights and bias begin (-1: none), place in cols and each
    shapes: Any,  # [L, 12] of images: channels, H, W, kernel, stride, padding, output, channels of the output
    homes: Any,  # [2, 2] where scales and shifts of inputs begin in a row, and how many there are
    by: Any,  # [4, D] scale, shift, and a factor and summand behind them
    lr: Any,
    home_lr: Any,  # of scales and shifts
    clip: Any,  # 0: plain training
    lot: Any,
    loss: Any,  # [C] the samples' losses are added here
    a: Any,  # room for all layers' outputs, the inputs among them
    g: Any,  # and for their gradients
    raw: Any,  # and for the inputs as they were
    ones: Any,  # as many ones
    cols: Any,  # and for the convolutions' patches
    each: Any,  # and for each sample's gradient of their kernels and biases
    which: Any,  # and for the places of the largest
) -> None:
    count, inputs, widest = len(layers), widths[0], samples.shape[2]
    starts = np.zeros(count + 1, np.int64)  # of each layer's numbers in `a` and `g`
    for m in range(count):
        starts[m + 1] = starts[m] + widest * widths[m]
    last, classes, one, none = starts[count], widths[count], np.float32(1), np.float32(0)
    affine = homes[0, 1] + homes[1, 1] > 0
    norms, factor = np.empty(widest), np.empty(widest, np.float32)
    for c in range(len(loss)):
        n, row = counts[c, number], c * (len(rows) // len(loss))
        if n == 0:
            continue
        if affine:
            for k in range(2):
                for i in range(inputs if homes[k, 1] else 0):
                    by[k, i] = rows[row + homes[k, 0] + i // (inputs // homes[k, 1])]
            for b in range(n):
                _affine(a, b * inputs, x, samples[c, number, b], raw, b, inputs, by)
        else:
            for b in range(n):
                _copy(a, b * inputs, x, samples[c, number, b], inputs)
        for m in range(count):
            wide, out, before, after = widths[m], widths[m + 1], starts[m], starts[m + 1]
            kind, weight, bias, room = layers[m, 0], row + layers[m, 2], row + layers[m, 3], layers[m, 4]
            if kind == LINEAR:
                if out <= FEW:
                    for b in range(n):
                        for i in range(out):
                            z = _dot(a, before + b * wide, rows, weight + i * wide, wide)
                            a[after + b * out + i] = z
                else:
                    _sgemm(
                        blas, 1, (out, n, wide, wide, wide, out), one, rows, weight, a, before, none, a, after
                    )
                if bias >= row:
                    for b in range(n):
                        _shift(a, after + b * out, out, 1, rows, bias)
            else:
                shape = _shape(shapes, m)
                for b in range(n):
                    if kind == POOL:
                        _pool(a, before + b * wide, shape, after + b * out, which)
                        continue
                    channels = shapes[m, 11]
                    places, patch = out // channels, shape[0] * shape[3] * shape[4]
                    here, to = room + b * places * patch, after + b * out
                    _columns(a, before + b * wide, shape, cols, here, False)
                    sizes = (places, channels, patch, patch, patch, places)
                    _sgemm(blas, 1, sizes, one, cols, here, rows, weight, none, a, to)
                    if bias >= row:
                        _shift(a, to, channels, places, rows, bias)
            _activate(a, after, n * out, layers[m, 1])
        for b in range(n):
            loss[c] += _cross_entropy(a, g, last + b * classes, classes, y[samples[c, number, b]])
            norms[b] = 0
        for m in range(count - 1, -1, -1):
            wide, out, before, after = widths[m], widths[m + 1], starts[m], starts[m + 1]
            kind, weight, biased = layers[m, 0], row + layers[m, 2], layers[m, 3] >= 0
            if m < count - 1:
                _slope(g, a, after, n * out, layers[m, 1])
            if kind == LINEAR:
                for b in range(n if clip > 0 else 0):
                    left, right = before + b * wide, after + b * out
                    inside = np.float64(_dot(a, left, a, left, wide)) + biased
                    norms[b] += inside * np.float64(_dot(g, right, g, right, out))
                if m or affine:
                    sizes = (wide, n, out, wide, out, wide)
                    _sgemm(blas, 0, sizes, one, rows, weight, g, after, none, g, before)
                continue
            shape = _shape(shapes, m)
            for b in range(n):
                left, right = before + b * wide, after + b * out
                if kind == POOL:
                    _unpool(g, left, wide, right, out, which)
                    continue
                channels = shapes[m, 11]
                places, patch = out // channels, shape[0] * shape[3] * shape[4]
                here, kernel = layers[m, 4] + b * places * patch, channels * patch
                own = layers[m, 5] + b * (kernel + channels)
                sizes = (patch, channels, places, patch, places, patch)
                _sgemm(blas, 0, sizes, one, cols, here, g, right, none, each, own)
                for o in range(channels):
                    each[own + kernel + o] = _dot(g, right + o * places, ones, 0, places) if biased else none
                norms[b] += np.float64(_dot(each, own, each, own, kernel + channels))
                if m or affine:
                    sizes = (patch, places, channels, patch, places, patch)
                    _sgemm(blas, 2, sizes, one, rows, weight, g, right, none, cols, here)
                    _clear(g, left, wide)
                    _columns(g, left, shape, cols, here, True)
        for b in range(n):
            if affine:
                _times(g, b * inputs, inputs, by)
            factor[b] = one / np.float32(n)
            if clip > 0:
                if affine:
                    norms[b] += _squares(g, raw, b * inputs, inputs, homes[0, 1])
                    norms[b] += _squares(g, ones, b * inputs, inputs, homes[1, 1])
                norm = np.sqrt(norms[b])
                factor[b] = np.float32(clip) / np.float32(max(norm, clip)) / np.float32(lot)
                if not np.isfinite(norm):  # nothing bounds it, so not even an infinity may be left of it
                    factor[b] = 0
                    _clear(raw, b * inputs if affine else 0, inputs if affine else 0)
                    for m in range(count + 1):
                        _clear(a, starts[m] + b * widths[m], widths[m])
                        _clear(g, starts[m] + b * widths[m], widths[m])
                    for m in range(count):
                        if layers[m, 0] == CONVOLUTION:
                            size = _kernel(shapes, m) + shapes[m, 11]
                            _clear(each, layers[m, 5] + b * size, size)
        if affine:
            by_home = np.float32(-home_lr)
            _home(rows, row + homes[0, 0], homes[0, 1], g, raw, inputs, n, factor, by_home)
            _home(rows, row + homes[1, 0], homes[1, 1], g, ones, inputs, n, factor, by_home)
        for b in range(n):
            factor[b] *= np.float32(-lr)
        for m in range(count):
            wide, out, before, after = widths[m], widths[m + 1], starts[m], starts[m + 1]
            kind, weight, bias = layers[m, 0], row + layers[m, 2], row + layers[m, 3]
            if kind == CONVOLUTION:
                kernel, channels = _kernel(shapes, m), shapes[m, 11]
                apart, own = kernel + channels, layers[m, 5]
                for b in range(n):
                    _add(rows, weight, each, own + b * apart, kernel, 1, factor, b, 0)
                    if bias >= row:
                        _add(rows, bias, each, own + b * apart + kernel, channels, 1, factor, b, 0)
            elif kind == LINEAR:
                _scaled(g, after, n, out, factor)
                if bias >= row:
                    _add(rows, bias, g, after, out, n, ones, 0, 0)
                if out <= FEW:
                    for i in range(out):
                        _add(rows, weight + i * wide, a, before, wide, n, g, after + i, out)
                else:
                    sizes = (wide, out, n, wide, out, wide)
                    _sgemm(blas, 2, sizes, one, a, before, g, after, one, rows, weight)
