"""Local steps of a chain of layers for some clients, one after the other, in one compiled call.

A client's numbers stay in the cache for the whole step, and nothing of Python is between two products.
Matrices are flat: rows of samples one below the other, [n, width], and weights [O, I] as torch has them.
Helpers get an array, where to begin and how far to go.
"""

from typing import Any

import numpy as np

from fedpriv.engine import affine, images, normed
from fedpriv.engine.tiles import MANY, PANEL, add, dot, inner, inner_by_panels, product
from fedpriv.engine.vectors import compiled, entry, plus
from fedpriv.randomness.compiled import add_normals

LINEAR, NORM = 0, 4  # other kinds of layers are those of images.py
NOTHING, TANH, RELU, SIGMOID = 0, 1, 2, 3  # what is applied to their outputs
_END = np.float32(9.02)  # from here on the nearest number to tanh is one
_LOST = 2 * float(np.finfo(np.float32).tiny)  # a sum of squares may lack this for each that counts as zero


@compiled
def _tanh(z: Any) -> Any:
    """By Lambert's continued fraction of a quarter, doubled twice."""
    x = np.float32(0.25) * min(max(z, -_END), _END)
    s = x * x
    over = x * (np.float32(135135) + s * (np.float32(17325) + s * (np.float32(378) + s)))
    under = np.float32(62370) + s * (np.float32(3150) + s * np.float32(28))
    t = over / (np.float32(135135) + s * under)
    t = np.float32(2) * t / (np.float32(1) + t * t)
    t = np.float32(2) * t / (np.float32(1) + t * t)
    t = np.float32(1) if z > _END else t  # and from there on its slope is zero
    t = np.float32(-1) if z < -_END else t
    return t if z == z else z


@compiled
def activate(z: Any, at: Any, n: Any, how: Any) -> None:
    """tanh, what is above zero, or the logistic function, which is tanh of the half, moved."""
    z = z[at : at + n]
    if how == TANH:
        for i in range(n):
            z[i] = _tanh(z[i])
    elif how == SIGMOID:
        for i in range(n):
            z[i] = np.float32(0.5) + np.float32(0.5) * _tanh(np.float32(0.5) * z[i])
    elif how == RELU:
        for i in range(n):
            z[i] = np.float32(0) if z[i] < 0 else z[i]


@compiled
def _slope(g: Any, seen: Any, at: Any, n: Any, how: Any) -> None:
    """g times the derivative of the activation that gave `seen`."""
    g, seen = g[at : at + n], seen[at : at + n]
    if how == TANH:
        for i in range(n):
            g[i] *= np.float32(1) - seen[i] * seen[i]
    elif how == SIGMOID:
        for i in range(n):
            g[i] *= seen[i] * (np.float32(1) - seen[i])
    elif how == RELU:
        for i in range(n):
            g[i] = np.float32(0) if seen[i] <= 0 else g[i]  # what is no number stays none


@compiled
def cross_entropy(z: Any, g: Any, at: Any, classes: Any, label: Any) -> Any:
    """A sample's loss; its gradient by the outputs goes to g."""
    z, g = z[at : at + classes], g[at : at + classes]
    most, total = z[0], np.float32(0)
    for i in range(1, classes):
        most = max(most, z[i])
    for i in range(classes):
        g[i] = np.exp(z[i] - most)
    for i in range(classes):  # apart from the above: how it is rounded must not depend on where both lie
        total += g[i]
    for i in range(classes):
        g[i] /= total
    g[label] -= np.float32(1)
    return np.log(total) + most - z[label]


@compiled
def _clear(a: Any, at: Any, n: Any) -> None:
    for i in range(at, at + n):
        a[i] = 0


@compiled
def copy(a: Any, at: Any, x: Any, sample: Any, n: Any) -> None:
    out = a[at : at + n]
    for i in range(n):
        out[i] = x[sample, i]


@compiled
def _scaled(g: Any, at: Any, n: Any, width: Any, factor: Any) -> None:
    for b in range(n):
        one = g[at + b * width : at + (b + 1) * width]
        for i in range(width):
            one[i] *= factor[b]


@compiled
def linear(
    rows: Any, weight: Any, bias: Any, a: Any, before: Any, after: Any, n: Any, wide: Any, out: Any,
    usual: Any,
) -> None:  # fmt: skip
    """Outputs of n samples; bias -1: none. How sums are rounded follows from how many samples are usual, not
    from n: a sample's outputs do not change with who else is there."""
    if usual >= PANEL and out >= MANY:
        inner_by_panels(a, before, rows, weight, wide, a, after, out, n, out)
    else:
        inner(a, before, rows, weight, wide, a, after, out, n, out)
    for b in range(n if bias >= 0 else 0):
        plus(rows, bias, a, after + b * out, out)


@compiled
def _linear_update(
    target: Any, weight: Any, bias: Any, a: Any, before: Any, g: Any, after: Any, n: Any, wide: Any, out: Any,
    factor: Any, ones: Any,
) -> None:  # fmt: skip
    """Weights and biases plus the samples' gradients, each times its factor."""
    _scaled(g, after, n, out, factor)
    if bias >= 0:
        add(target, bias, g, after, out, n, ones, 0, 0)
    product(g, after, 1, out, a, before, wide, target, weight, wide, out, wide, n, 1)


@entry
def steps(
    rows: Any,  # [C, P]
    target: Any,  # [C, P] gets each step on top; `rows` itself: trained in place
    first: Any,  # of the steps to be made
    last: Any,  # and the one behind them
    scales: Any,  # [2, T] what gradients are multiplied with; those of what stays at home
    key: Any,  # of the noise; empty: none
    names: Any,  # [C, 3] of its rows
    deviations: Any,  # [T, C] of the noise
    staying: Any,  # [T] how many clients, the first ones, are not done
    loss: Any,  # [C] the own samples' losses are added here
    samples: Any,  # [C, T, B] which of x; from len(x) on, of more
    counts: Any,  # [2, C, T] own and shared ones
    x: Any,  # [N, D]
    y: Any,  # [N]
    more: Any,  # [M, D] shared samples
    labels: Any,  # [M]
    widths: Any,  # [L + 1]
    layers: Any,  # [L, 7] kind, activation, where weights, bias (-1: none), cols, each and kernel begin
    shapes: Any,  # [L, 13] of images.py; then channels of the output and numbers of a patch; or of normed.py
    tuned: Any,  # [L, 2] eps and momentum of norms
    statistics: Any,  # [C, F] running ones, changed in place; None: there are no norms
    homes: Any,  # [2, 2] where scales and shifts of inputs begin in a row, and how many there are
    by: Any,  # [4, D] scale, shift, and a factor and summand behind them
    front: Any,  # [3] whether they are there, whether they scale squares, and what is applied to them
    clip: Any,  # 0: plain training
    lot: Any,
    a: Any,  # room for all layers' outputs, the inputs among them
    g: Any,  # and for their gradients
    raw: Any,  # and for the inputs as they were
    ones: Any,  # as many ones as there are inputs, or numbers in a layer
    cols: Any,  # and for the convolutions' patches; None, and so the following: there are no images
    each: Any,  # and for each sample's gradient of their kernels
    kernel: Any,  # and for their kernels, as they are and turned
    which: Any,  # room for the places of the largest
) -> None:
    """Local steps, the noise of each behind it."""
    flat, to = rows.reshape(-1), target.reshape(-1)
    count, inputs, widest, size = len(layers), widths[0], samples.shape[2], rows.shape[1]
    starts = np.zeros(count + 1, np.int64)  # of each layer's numbers in `a` and `g`
    for m in range(count):
        starts[m + 1] = starts[m] + widest * widths[m]
    end, classes, one = starts[count], widths[count], np.float32(1)
    moved, learned, private = front[0] > 0, homes[0, 1] + homes[1, 1] > 0, clip > 0
    usual = lot if private else float(widest)
    norms, factor = np.empty(widest), np.empty(widest, np.float32)
    sums = np.empty((2, widths.max()), np.float32)  # room for those of batch norms
    for number in range(first, last):
        for c in range(len(loss)):
            own, n, row = counts[0, c, number], counts[0, c, number] + counts[1, c, number], c * size
            if n == 0:
                continue
            for k in range(2 if moved else 0):
                for i in range(inputs if homes[k, 1] else 0):
                    by[k, i] = flat[row + homes[k, 0] + i // (inputs // homes[k, 1])]
            for b in range(n):
                sample = samples[c, number, b]
                source, place = (x, sample) if sample < len(x) else (more, sample - len(x))
                if moved:
                    affine.transform(a, b * inputs, source, place, raw, b, inputs, by, front[1] > 0)
                else:
                    copy(a, b * inputs, source, place, inputs)
            activate(a, 0, n * inputs, front[2])
            for m in range(count):
                wide, out, before, after = widths[m], widths[m + 1], starts[m], starts[m + 1]
                if layers[m, 0] == LINEAR:
                    bias = row + layers[m, 3] if layers[m, 3] >= 0 else -1
                    linear(flat, row + layers[m, 2], bias, a, before, after, n, wide, out, usual)
                elif layers[m, 0] == NORM:
                    if statistics is not None:
                        normed.forward(
                            flat, row, layers[m], shapes[m], tuned[m], statistics[c], a, g, before, after, n,
                            out, sums, ones,
                        )  # fmt: skip
                elif cols is not None:
                    images.forward(
                        flat, row, layers[m], shapes[m], a, before, after, n, wide, out, cols, kernel, which
                    )
                activate(a, after, n * out, layers[m, 1])
            for b in range(n):
                sample = samples[c, number, b]
                label = y[sample] if sample < len(x) else labels[sample - len(x)]
                value = cross_entropy(a, g, end + b * classes, classes, label)
                loss[c] += value if b < own else np.float32(0)
                norms[b], factor[b] = 0, one / np.float32(own if b < own else n - own)
            if not private:  # then each sample's weight is known before its gradient
                _scaled(g, end, n, classes, factor)
            for m in range(count - 1, -1, -1):
                wide, out, before, after = widths[m], widths[m + 1], starts[m], starts[m + 1]
                wanted = m > 0 or learned
                if m < count - 1:
                    _slope(g, a, after, n * out, layers[m, 1])
                if layers[m, 0] == LINEAR:
                    for b in range(n if private else 0):
                        left, right = before + b * wide, after + b * out
                        inside = np.float64(dot(a, left, a, left, wide)) + wide * _LOST + (layers[m, 3] >= 0)
                        norms[b] += inside * (np.float64(dot(g, right, g, right, out)) + out * _LOST)
                    if wanted:
                        weight = row + layers[m, 2]
                        product(g, after, out, 1, flat, weight, wide, g, before, wide, n, wide, out, 0)
                elif layers[m, 0] == NORM:
                    if statistics is not None:
                        normed.backward(
                            flat, row, layers[m], shapes[m], a, g, before, after, n, out, norms, private, sums
                        )
                elif cols is not None:
                    images.backward(
                        layers[m], shapes[m], g, before, after, n, wide, out, cols, each, kernel, which,
                        norms, private, wanted,
                    )  # fmt: skip
            if learned:
                _slope(g, a, 0, n * inputs, front[2])
            for b in range(n):
                if learned:
                    affine.times(g, b * inputs, inputs, by)
                if not private:
                    factor[b] = one
                    continue
                if learned:
                    norms[b] += affine.squares(g, raw, b * inputs, inputs, homes[0, 1])
                    norms[b] += affine.squares(g, ones, b * inputs, inputs, homes[1, 1])
                norm = np.sqrt(norms[b])
                if b < own:
                    factor[b] = np.float32(clip) / np.float32(max(norm, clip)) / np.float32(lot)
                if not np.isfinite(norm):  # nothing bounds it, so not even an infinity may be left of it
                    factor[b] = 0
                    _clear(raw, b * inputs if moved else 0, inputs if moved else 0)
                    for m in range(count + 1):
                        _clear(a, starts[m] + b * widths[m], widths[m])
                        _clear(g, starts[m] + b * widths[m], widths[m])
                    if cols is not None:
                        for m in range(count):
                            images.forget(layers[m], shapes[m], each, b)
            if learned:
                home = np.float32(scales[1, number])
                affine.home(to, row + homes[0, 0], homes[0, 1], g, raw, inputs, n, factor, home)
                affine.home(to, row + homes[1, 0], homes[1, 1], g, ones, inputs, n, factor, home)
            if statistics is not None:
                for m in range(count):
                    if layers[m, 0] == NORM:
                        normed.update(
                            to, row, layers[m], shapes[m], a, g, starts[m], starts[m + 1], n, widths[m],
                            factor, scales[:, number],
                        )  # fmt: skip
            for b in range(n):
                factor[b] *= np.float32(scales[0, number])
            for m in range(count):
                wide, out, before, after = widths[m], widths[m + 1], starts[m], starts[m + 1]
                if layers[m, 0] == LINEAR:
                    weight, bias = row + layers[m, 2], row + layers[m, 3] if layers[m, 3] >= 0 else -1
                    _linear_update(to, weight, bias, a, before, g, after, n, wide, out, factor, ones)
                elif layers[m, 0] != NORM and cols is not None:
                    images.update(to, row, layers[m], shapes[m], each, kernel, n, factor, private)
        if len(key):
            there = staying[number]
            names[:there, 1] = number
            add_normals(target[:there], deviations[number, :there], key, names[:there])
