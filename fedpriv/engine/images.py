"""Convolutions and pools in compiled code. An image is [H, W, channels], its channels side by side, so that
neighbours in a row are neighbours in memory.

`shape` is channels, H, W, then height and width of kernel, stride, padding and output. A patch is a row
(kernel's height, width, channel), a one where there is a bias, and zeros up to a whole number of vectors:
weights and biases are then one matrix, and so are their gradients.

A `layer` is as compiled.steps has it, and `sizes` are its shape, the channels of its output and the numbers
of a patch; a client's weights begin at `row`.
"""

from typing import Any

import numpy as np

from fedpriv.engine.tiles import add, dot, product
from fedpriv.engine.vectors import LANES, compiled, move, plus
from fedpriv.engine.windows import largest, to_largest

EIGHT = 8  # patches are a multiple of it
CONVOLUTION, POOL, TURN = 1, 2, 3  # kinds of layers; linear ones are 0


@compiled
def _frame_of(shape: Any) -> Any:
    """Room for an image with its padding, or for nothing where there is none."""
    channels, rows, cols, _, _, _, _, ph, pw, _, _ = shape
    padded = ph + pw > 0
    return np.zeros((rows + 2 * ph) * (cols + 2 * pw) * channels if padded else 0, np.float32)


@compiled
def _columns(a: Any, at: Any, shape: Any, frame: Any, out: Any, to: Any, wide: Any, biased: Any) -> None:
    """Every patch of an image as a row of `wide` numbers."""
    channels, rows, cols, kh, kw, sh, sw, ph, pw, height, width = shape
    line, stretch = (cols + 2 * pw) * channels, kw * channels
    if len(frame):
        for row in range(rows):
            move(a, at + row * cols * channels, frame, (row + ph) * line + pw * channels, cols * channels)
        a, at = frame, 0
    behind = np.zeros(EIGHT, np.float32)
    behind[0] = biased
    for y in range(height):
        for x in range(width):
            begin = at + y * sh * line + x * sw * channels
            for i in range(kh):
                move(a, begin + i * line, out, to + i * stretch, stretch)
            move(behind, 0, out, to + kh * stretch, wide - kh * stretch)
            to += wide


@compiled
def _uncolumns(g: Any, at: Any, shape: Any, frame: Any, cols_: Any, to: Any, wide: Any) -> None:
    """The gradient by an image of that by its patches."""
    channels, rows, cols, kh, kw, sh, sw, ph, pw, height, width = shape
    line, stretch = (cols + 2 * pw) * channels, kw * channels
    target, first = (frame, 0) if len(frame) else (g, at)
    target[first : first + (rows + 2 * ph) * line] = 0
    for y in range(height):
        for x in range(width):
            begin = first + y * sh * line + x * sw * channels
            for i in range(kh):
                plus(cols_, to + i * stretch, target, begin + i * line, stretch)
            to += wide
    if len(frame):
        for row in range(rows):
            move(frame, (row + ph) * line + pw * channels, g, at + row * cols * channels, cols * channels)
        frame[:] = 0


@compiled
def _pool(a: Any, at: Any, shape: Any, to: Any, which: Any, back: Any) -> None:
    """The largest of each window of an image, into the same array, and where it was, the first of equals.
    Or `back`: gradients by the largest are added to those by the image."""
    channels, _, cols, kh, kw, sh, sw, _, _, height, width = shape
    line = cols * channels
    for y in range(height):
        for x in range(width):
            begin = at + y * sh * line + x * sw * channels
            for c in range(0, channels, LANES):
                some = min(LANES, channels - c)
                if back:
                    to_largest(a, begin + c, line, channels, kh, kw, to + c, which, some)
                else:
                    largest(a, begin + c, line, channels, kh, kw, to + c, which, some)
            to += channels


@compiled
def _turn(a: Any, at: Any, to: Any, rows: Any, cols: Any) -> None:
    """A matrix of rows and columns, turned: channels come first for layers that know no images."""
    for j in range(cols):
        for i in range(rows):
            a[to + j * rows + i] = a[at + i * cols + j]


@compiled
def _kernels(rows: Any, weight: Any, bias: Any, shape: Any, count: Any, wide: Any, out: Any, to: Any) -> None:
    """Weights as rows of patches [count, wide], and behind them the same turned, [wide, count]."""
    channels, _, _, kh, kw, _, _, _, _, _, _ = shape
    size = kh * kw
    for o in range(count):
        begin = to + o * wide
        for c in range(channels):
            one = rows[weight + (o * channels + c) * size : weight + (o * channels + c + 1) * size]
            for i in range(size):
                out[begin + i * channels + c] = one[i]
        out[begin + size * channels : begin + wide] = 0
        if bias >= 0:
            out[begin + size * channels] = rows[bias + o]
    _turn(out, to, to + count * wide, count, wide)


@compiled
def _add_kernels(
    rows: Any, weight: Any, bias: Any, shape: Any, count: Any, wide: Any, g: Any, at: Any
) -> None:
    """Weights and biases plus rows of patches."""
    channels, _, _, kh, kw, _, _, _, _, _, _ = shape
    size = kh * kw
    for o in range(count):
        begin = at + o * wide
        for c in range(channels):
            one = rows[weight + (o * channels + c) * size : weight + (o * channels + c + 1) * size]
            for i in range(size):
                one[i] += g[begin + i * channels + c]
        if bias >= 0:
            rows[bias + o] += g[begin + size * channels]


@compiled
def _shape(s: Any) -> Any:
    return s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9], s[10]


@compiled
def forward(
    rows: Any, row: Any, layer: Any, sizes: Any, a: Any, before: Any, after: Any, n: Any, wide: Any, out: Any,
    cols: Any, kernel: Any, which: Any,
) -> None:  # fmt: skip
    """Outputs of n samples, from `after` on, of what is in `a` from `before` on."""
    shape, channels, patch = _shape(sizes), sizes[11], sizes[12]
    if layer[0] == CONVOLUTION:
        places, biased, frame = out // max(1, channels), layer[3] >= 0, _frame_of(shape)
        for b in range(n):
            _columns(a, before + b * wide, shape, frame, cols, layer[4] + b * places * patch, patch, biased)
        bias = row + layer[3] if biased else -1
        _kernels(rows, row + layer[2], bias, shape, channels, patch, kernel, layer[6])
        turned = layer[6] + channels * patch
        many = n * places
        product(
            cols, layer[4], patch, 1, kernel, turned, channels, a, after, channels, many, channels, patch, 0
        )
    elif layer[0] == POOL:
        for b in range(n):
            _pool(a, before + b * wide, shape, after + b * out, which, False)
    else:
        for b in range(n):
            _turn(a, before + b * wide, after + b * out, shape[0], shape[1])


@compiled
def backward(
    layer: Any, sizes: Any, g: Any, before: Any, after: Any, n: Any, wide: Any, out: Any, cols: Any,
    each: Any, kernel: Any, which: Any, norms: Any, private: Any, wanted: Any,
) -> None:  # fmt: skip
    """Gradients by the inputs, if they are wanted, and by a kernel: in private training each sample's, with
    its square added to `norms`, else that of all."""
    shape, channels, patch = _shape(sizes), sizes[11], sizes[12]
    if layer[0] == CONVOLUTION:
        places, size, room = out // max(1, channels), channels * patch, layer[4]
        for b in range(n if private else 1):
            there, here, to = after + b * out, room + b * places * patch, layer[5] + b * size
            many = places if private else n * places
            product(g, there, 1, channels, cols, here, patch, each, to, patch, channels, patch, many, 0)
            if private:
                norms[b] += np.float64(dot(each, to, each, to, size))
        if wanted:
            many, frame = n * places, _frame_of(shape)
            product(
                g, after, channels, 1, kernel, layer[6], patch, cols, room, patch, many, patch, channels, 0
            )
            for b in range(n):
                _uncolumns(g, before + b * wide, shape, frame, cols, room + b * places * patch, patch)
    elif layer[0] == POOL:
        g[before : before + n * wide] = 0
        for b in range(n):
            _pool(g, before + b * wide, shape, after + b * out, which, True)
    else:
        for b in range(n):
            _turn(g, after + b * out, before + b * wide, shape[1], shape[0])


@compiled
def forget(layer: Any, sizes: Any, each: Any, b: Any) -> None:
    """A sample's gradient by the kernel is nothing."""
    size = sizes[11] * sizes[12] if layer[0] == CONVOLUTION else 0
    each[layer[5] + b * size : layer[5] + (b + 1) * size] = 0


@compiled
def update(
    target: Any, row: Any, layer: Any, sizes: Any, each: Any, kernel: Any, n: Any, factor: Any, private: Any
) -> None:
    """Weights and biases plus the samples' gradients, each times its factor."""
    if layer[0] != CONVOLUTION:
        return
    channels, patch, to = sizes[11], sizes[12], layer[6]
    size = channels * patch
    kernel[to : to + size] = 0  # which is not needed any more
    add(kernel, to, each, layer[5], size, n if private else 1, factor, 0, 1)
    bias = row + layer[3] if layer[3] >= 0 else -1
    _add_kernels(target, row + layer[2], bias, _shape(sizes), channels, patch, kernel, to)
