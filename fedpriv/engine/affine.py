"""An affine transform in front of a network in compiled code: scales and shifts, each of which serves one
input or some neighbours; of the inputs or of their squares."""

from typing import Any

import numpy as np

from fedpriv.engine.vectors import compiled


@compiled
def transform(a: Any, at: Any, x: Any, sample: Any, raw: Any, b: Any, n: Any, by: Any, square: Any) -> None:
    """a[at:][:n] = a sample's numbers, or their squares; scaled and shifted by by[0], by[1], then by by[2],
    by[3]."""
    out, kept = a[at : at + n], raw[b * n : (b + 1) * n]
    for i in range(n):
        kept[i] = x[sample, i] * (x[sample, i] if square else np.float32(1))
        out[i] = (kept[i] * by[0, i] + by[1, i]) * by[2, i] + by[3, i]


@compiled
def times(g: Any, at: Any, n: Any, by: Any) -> None:
    """The gradient by what the transform gives."""
    g = g[at : at + n]
    for i in range(n):
        g[i] *= by[2, i]


@compiled
def squares(each: Any, times: Any, at: Any, n: Any, count: Any) -> Any:
    """The sum of squares of `count` numbers, each the sum of neighbours among the n of each * times."""
    u, v, total = each[at : at + n], times[at : at + n], 0.0
    some = n // max(1, count)
    if count == n:
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


@compiled
def home(
    out: Any, at: Any, count: Any, each: Any, times: Any, n: Any, samples: Any, factor: Any, by: Any
) -> None:
    """The step of `count` numbers, each of which serves some neighbours among n inputs."""
    some = n // max(1, count)
    for b in range(samples):
        u, v = each[b * n : (b + 1) * n], times[b * n : (b + 1) * n]
        if count == n:
            for i in range(n):
                out[at + i] += by * factor[b] * u[i] * v[i]
        else:
            for k in range(count):
                one = np.float32(0)
                for i in range(k * some, (k + 1) * some):
                    one += u[i] * v[i]
                out[at + k] += by * factor[b] * one
