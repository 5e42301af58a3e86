"""Group and batch norms of vectors in compiled code, directly behind a dense layer.

Nothing needs the dense layer's outputs any more when they are normed, so what the norm makes of them, x hat,
takes their place; 1 / deviation waits where the gradient by them will be. So what is cleared of a sample that
overflowed is all there is of it.

A `layer` is as compiled.steps has it; its `sizes` are its groups (0: a batch norm), which of the two scales
its weight and its bias have, and where running mean and variance begin; `tuned` are its eps and momentum. A
client's weights begin at `row`.
"""

from typing import Any

import numpy as np

from fedpriv.engine.tiles import add, inner
from fedpriv.engine.vectors import compiled


@compiled
def _affine(rows: Any, weight: Any, bias: Any, a: Any, at: Any, to: Any, n: Any) -> None:
    """A sample's outputs of its x hat."""
    hat, out, by, plus = a[at : at + n], a[to : to + n], rows[weight : weight + n], rows[bias : bias + n]
    for i in range(n):
        out[i] = hat[i] * by[i] + plus[i]


@compiled
def _group(a: Any, at: Any, n: Any, eps: Any, mean: Any) -> Any:
    """x hat of one group instead of its numbers; 1 / deviation."""
    x, total = a[at : at + n], np.float32(0)
    for i in range(n):
        x[i] -= mean
    for i in range(n):
        total += x[i] * x[i]
    over = np.float32(1) / np.sqrt(total / np.float32(n) + eps)
    for i in range(n):
        x[i] *= over
    return over


@compiled
def _moments(a: Any, at: Any, n: Any, width: Any, mean: Any, spread: Any, ones: Any) -> None:
    """Mean and variance of each of the numbers of n samples."""
    share = np.float32(1) / np.float32(n)
    mean[:width] = 0
    spread[:width] = 0
    add(mean, 0, a, at, width, n, ones, 0, 0)
    for i in range(width):
        mean[i] *= share
    for b in range(n):
        x = a[at + b * width : at + (b + 1) * width]
        for i in range(width):
            spread[i] += (x[i] - mean[i]) * (x[i] - mean[i])
    for i in range(width):
        spread[i] *= share


@compiled
def _towards(kept: Any, at: Any, width: Any, new: Any, times: Any, momentum: Any) -> None:
    old = kept[at : at + width]
    for i in range(width):
        old[i] += momentum * (new[i] * times - old[i])


@compiled
def forward(
    rows: Any, row: Any, layer: Any, sizes: Any, tuned: Any, kept: Any, a: Any, g: Any, before: Any,
    after: Any, n: Any, width: Any, sums: Any, ones: Any,
) -> None:  # fmt: skip
    """Outputs of n samples, from `after` on; `kept`: a client's running statistics."""
    groups, eps = sizes[0], np.float32(tuned[0])
    if groups:
        size = width // groups
        inner(a, before, ones, 0, size, g, after, 1, n * groups, 1)
        for k in range(n * groups):
            mean = g[after + k] / np.float32(size)
            g[before + k] = _group(a, before + k * size, size, eps, mean)
    else:
        mean, spread, momentum = sums[0], sums[1], np.float32(tuned[1])
        _moments(a, before, n, width, mean, spread, ones)
        _towards(kept, sizes[3], width, mean, np.float32(1), momentum)
        _towards(kept, sizes[4], width, spread, np.float32(n) / np.float32(max(1, n - 1)), momentum)
        over = g[before : before + width]
        for i in range(width):
            over[i] = np.float32(1) / np.sqrt(spread[i] + eps)
        for b in range(n):
            x = a[before + b * width : before + (b + 1) * width]
            for i in range(width):
                x[i] = (x[i] - mean[i]) * over[i]
    for b in range(n):
        place = before + b * width
        _affine(rows, row + layer[2], row + layer[3], a, place, after + b * width, width)


@compiled
def _squares(a: Any, at: Any, g: Any, to: Any, n: Any) -> Any:
    """Of a sample's gradient by weight and bias."""
    hat, slope, total = a[at : at + n], g[to : to + n], np.float32(0)
    for i in range(n):
        total += slope[i] * slope[i] * (hat[i] * hat[i] + np.float32(1))
    return total


@compiled
def _group_back(by: Any, hat: Any, slope: Any, out: Any, over: Any) -> None:
    """The gradient by a group's numbers."""
    n, first, second = len(out), np.float32(0), np.float32(0)
    for i in range(n):
        out[i] = slope[i] * by[i]
        first += out[i]
        second += out[i] * hat[i]
    first, second = first / np.float32(n), second / np.float32(n)
    for i in range(n):
        out[i] = over * (out[i] - first - hat[i] * second)


@compiled
def _batch_back(
    by: Any, a: Any, g: Any, before: Any, after: Any, n: Any, width: Any, first: Any, second: Any
) -> None:
    """The gradients by n samples' numbers, of which each takes all others along."""
    first[:width] = 0
    second[:width] = 0
    for b in range(n):
        hat, slope = (
            a[before + b * width : before + (b + 1) * width],
            g[after + b * width : after + (b + 1) * width],
        )
        for i in range(width):
            first[i] += slope[i]
            second[i] += slope[i] * hat[i]
    share, over = np.float32(1) / np.float32(n), g[before : before + width]
    for i in range(width):
        first[i], second[i], over[i] = first[i] * share, second[i] * share, over[i] * by[i]
    for b in range(n - 1, -1, -1):  # the first one's gradient takes the place of `over`
        hat, slope = (
            a[before + b * width : before + (b + 1) * width],
            g[after + b * width : after + (b + 1) * width],
        )
        out = g[before + b * width : before + (b + 1) * width]
        for i in range(width):
            out[i] = over[i] * (slope[i] - first[i] - hat[i] * second[i])


@compiled
def backward(
    rows: Any, row: Any, layer: Any, sizes: Any, a: Any, g: Any, before: Any, after: Any, n: Any, width: Any,
    norms: Any, private: Any, sums: Any,
) -> None:  # fmt: skip
    """Gradients by the inputs; in private training the squares of those by weight and bias go to `norms`."""
    groups, by = sizes[0], rows[row + layer[2] : row + layer[2] + width]
    for b in range(n if private else 0):
        norms[b] += np.float64(_squares(a, before + b * width, g, after + b * width, width))
    if groups == 0:
        _batch_back(by, a, g, before, after, n, width, sums[0], sums[1])
        return
    size = width // groups
    for k in range(n * groups - 1, -1, -1):  # so that no deviation is overwritten before it is read
        to, part = k * size, k % groups * size
        over = g[before + k]
        hat, slope = a[before + to : before + to + size], g[after + to : after + to + size]
        _group_back(by[part : part + size], hat, slope, g[before + to : before + to + size], over)


@compiled
def update(
    target: Any, row: Any, layer: Any, sizes: Any, a: Any, g: Any, before: Any, after: Any, n: Any,
    width: Any, factor: Any, scales: Any,
) -> None:  # fmt: skip
    """Weight and bias plus the samples' gradients, each times its factor."""
    weight = target[row + layer[2] : row + layer[2] + width]
    bias = target[row + layer[3] : row + layer[3] + width]
    for b in range(n):
        hat, slope = (
            a[before + b * width : before + (b + 1) * width],
            g[after + b * width : after + (b + 1) * width],
        )
        one, other = factor[b] * np.float32(scales[sizes[1]]), factor[b] * np.float32(scales[sizes[2]])
        for i in range(width):
            weight[i] += one * slope[i] * hat[i]
            bias[i] += other * slope[i]
