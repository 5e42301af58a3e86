"""How clients' networks judge samples, in compiled code: losses and right answers.

A block of samples goes through one client's network at a time, so that what a layer gives stays in the cache.
"""

from typing import Any

import numpy as np

from fedpriv.engine import affine, images
from fedpriv.engine.compiled import LINEAR, activate, copy, cross_entropy, linear
from fedpriv.engine.vectors import compiled, entry

BLOCK, PICTURES = 64, 8  # samples at a time, of dense networks and of those with convolutions


@compiled
def _answers(z: Any, at: Any, classes: Any) -> Any:
    """The class with the largest output, the first of several; what is no number is largest."""
    best = 0
    for i in range(1, classes):
        one, most = z[at + i], z[at + best]
        if one > most or (one != one and most == most):
            best = i
    return best


@compiled
def _moved(a: Any, at: Any, first: Any, b: Any, scale: Any, shift: Any, c: Any, n: Any) -> None:
    out = a[at : at + n]
    for i in range(n):
        out[i] = first[b, i] * scale + shift[c, i]


@entry
def judge(
    rows: Any,  # [C, P]
    samples: Any,  # [C, N] which of x, or [1, N]: the same for all
    x: Any,  # [X, D]
    y: Any,  # [X]
    first: Any,  # [N, O] the first layer's outputs but for a scale and a shift; [0, O]: unknown
    scale: Any,  # [C]
    shift: Any,  # [C, O]
    widths: Any,  # these six as in compiled.steps
    layers: Any,
    shapes: Any,
    homes: Any,
    by: Any,
    front: Any,
    block: Any,  # how many samples at a time
    a: Any,  # room for all layers' outputs of as many, the inputs among them
    g: Any,  # and as much again
    raw: Any,  # and for the inputs as they were
    cols: Any,  # these three as in compiled.steps
    kernel: Any,
    which: Any,
    loss: Any,  # [C, N]
    right: Any,  # [C, N]
) -> None:
    flat, count, inputs, size = rows.reshape(-1), len(layers), widths[0], rows.shape[1]
    starts = np.zeros(count + 1, np.int64)
    for m in range(count):
        starts[m + 1] = starts[m] + block * widths[m]
    end, classes, begin = starts[count], widths[count], 1 if len(first) else 0
    for c in range(len(rows)):
        row, those = c * size, c if len(samples) > 1 else 0
        for k in range(2 if front[0] else 0):
            for i in range(inputs if homes[k, 1] else 0):
                by[k, i] = flat[row + homes[k, 0] + i // (inputs // homes[k, 1])]
        for left in range(0, samples.shape[1], block):
            n = min(block, samples.shape[1] - left)
            for b in range(n):
                if begin:
                    _moved(a, starts[1] + b * widths[1], first, left + b, scale[c], shift, c, widths[1])
                elif front[0]:
                    place = samples[those, left + b]
                    affine.transform(a, b * inputs, x, place, raw, b, inputs, by, front[1] > 0)
                else:
                    copy(a, b * inputs, x, samples[those, left + b], inputs)
            if begin:
                activate(a, starts[1], n * widths[1], layers[0, 1])
            else:
                activate(a, 0, n * inputs, front[2])
            for m in range(begin, count):
                wide, out, before, after = widths[m], widths[m + 1], starts[m], starts[m + 1]
                if layers[m, 0] == LINEAR:
                    bias = row + layers[m, 3] if layers[m, 3] >= 0 else -1
                    linear(flat, row + layers[m, 2], bias, a, before, after, n, wide, out, block)
                elif cols is not None:
                    images.forward(
                        flat, row, layers[m], shapes[m], a, before, after, n, wide, out, cols, kernel, which
                    )
                activate(a, after, n * out, layers[m, 1])
            for b in range(n):
                label = y[samples[those, left + b]]
                loss[c, left + b] = cross_entropy(a, g, end + b * classes, classes, label)
                right[c, left + b] = _answers(a, end + b * classes, classes) == label
