"""Products of matrices in compiled code are those of numpy, and touch nothing beside their numbers."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numba import njit

from fedpriv.engine.tiles import DEEP, MET, PANEL, ROWS, SIDE, inner, inner_by_panels, product
from fedpriv.engine.vectors import LANES, move, plus
from fedpriv.engine.windows import largest, to_largest

# Around every edge: of a vector, of two, of a tile's rows and sides.
EDGES = sorted({1, 2, SIDE, ROWS + 1, 2 * ROWS, LANES - 1, LANES, LANES + 1, 2 * LANES, 2 * LANES + 5})


@njit
def multiply(a, down, along, b, c, next_c, rows, columns, count, more):
    product(a, 0, down, along, b, 0, columns, c, 1, next_c, rows, columns, count, more)


@njit
def inner_products(a, b, wide, c, next_c, rows, columns):
    inner(a, 0, b, 0, wide, c, 1, next_c, rows, columns)


@njit
def by_panels(a, b, wide, c, next_c, rows, columns):
    inner_by_panels(a, 0, b, 0, wide, c, 1, next_c, rows, columns)


def matrices(rows, columns, count):
    draw = np.random.default_rng(rows + 100 * columns + 10_000 * count)
    left, right = draw.standard_normal((rows, count)), draw.standard_normal((count, columns))
    return left.astype(np.float32), right.astype(np.float32)


def room(rows, columns):
    """Flat, one number before the matrix and three behind each row, and the matrix within it."""
    flat = np.full(1 + rows * (columns + 3), 7, np.float32)
    return flat, flat[1:].reshape(rows, columns + 3)


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("columns", EDGES)
def test_a_product(columns, more):
    for rows in EDGES:
        for count in (1, 2, 19):
            left, right = matrices(rows, columns, count)
            for turned in (False, True):
                a = np.ascontiguousarray(left.T if turned else left).ravel()
                flat, c = room(rows, columns)
                steps = (1, rows) if turned else (count, 1)
                multiply(a, *steps, right.ravel(), flat, columns + 3, rows, columns, count, more)
                expected = left.astype(np.float64) @ right + 7 * more
                np.testing.assert_allclose(c[:, :columns], expected, rtol=1e-5, atol=1e-5)
                assert flat[0] == 7 and (c[:, columns:] == 7).all()


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("count", [DEEP - 1, DEEP, DEEP + 1, 2 * DEEP + 3])
def test_a_deep_product(count, more):
    for rows in (1, MET - 1, MET + ROWS + 1):
        for columns in (PANEL - 1, 2 * PANEL + 5):
            left, right = matrices(rows, columns, count)
            flat, c = room(rows, columns)
            multiply(left.ravel(), count, 1, right.ravel(), flat, columns + 3, rows, columns, count, more)
            expected = left.astype(np.float64) @ right + 7 * more
            np.testing.assert_allclose(c[:, :columns], expected, rtol=1e-5, atol=1e-4)
            assert flat[0] == 7 and (c[:, columns:] == 7).all()


def test_a_rows_products_do_not_depend_on_other_rows():
    left, right = matrices(2 * MET, 2 * PANEL + 5, 2 * DEEP + 3)
    found = []
    for rows in (3, MET - 1, MET, 2 * MET):
        flat, c = room(rows, right.shape[1])
        multiply(left.ravel(), len(right), 1, right.ravel(), flat, c.shape[1], rows, *right.T.shape, 0)
        found.append(c[:3, : right.shape[1]].copy())
    assert all((found[0] == other).all() for other in found)


def check(multiply, rows, columns, wide):
    left, right = matrices(rows, columns, wide)
    # Behind both stands what is no number: reading it would show.
    a, b = (np.append(m.ravel(), np.float32(np.nan)) for m in (left, np.ascontiguousarray(right.T)))
    flat, c = room(rows, columns)
    multiply(a, b, wide, flat, columns + 3, rows, columns)
    np.testing.assert_allclose(c[:, :columns], left.astype(np.float64) @ right, rtol=1e-5, atol=5e-5)
    assert flat[0] == 7 and (c[:, columns:] == 7).all()


@pytest.mark.parametrize("wide", [*EDGES, 5 * LANES + 3])
def test_inner_products(wide):
    for rows in EDGES:
        for columns in EDGES:
            check(inner_products, rows, columns, wide)


@pytest.mark.parametrize("wide", [1, DEEP - 1, DEEP, DEEP + 1, 3 * DEEP + 16])
def test_inner_products_by_panels(wide):
    for rows in (1, LANES, LANES + 1, PANEL, PANEL + 1, PANEL + LANES + 1):
        for columns in (1, ROWS, 3 * ROWS + 1):
            check(by_panels, rows, columns, wide)


def test_a_rows_products_by_panels_do_not_depend_on_other_rows():
    left, right = matrices(2 * PANEL, 40, 2 * DEEP + 3)
    a, b = left.ravel(), np.ascontiguousarray(right.T).ravel()
    found = []
    for rows in (3, LANES + 3, 2 * PANEL):
        flat, c = room(rows, 40)
        by_panels(a, b, len(right), flat, 43, rows, 40)
        found.append(c[:3, :40].copy())
    assert (found[0] == found[1]).all() and (found[0] == found[2]).all()


@njit
def moved(a, out, n):
    move(a, 1, out, 2, n)


@njit
def added(a, out, n):
    plus(a, 1, out, 2, n)


def test_some_numbers_are_copied_or_added_and_no_others():
    a = np.arange(1, 4 * LANES, dtype=np.float32)
    for n in (0, *EDGES):
        for work, before in ((moved, 0), (added, 100)):
            out = np.full(4 * LANES, 100, np.float32)
            work(a, out, n)
            np.testing.assert_array_equal(out[2 : 2 + n], a[1 : 1 + n] + before)
            assert (out[:2] == 100).all() and (out[2 + n :] == 100).all()


@njit
def pooled(a, which, line, channels, kh, kw, begin, to, width):
    largest(a, begin, line, channels, kh, kw, to, which, width)


@njit
def returned(g, which, line, channels, kh, kw, begin, to, width):
    to_largest(g, begin, line, channels, kh, kw, to, which, width)


@pytest.mark.parametrize("channels", [1, LANES - 1, LANES, LANES + 3])
@pytest.mark.parametrize(("kernel", "stride"), [((2, 2), 2), ((3, 2), 1), ((1, 1), 1)])
def test_windows_are_those_of_torch(channels, kernel, stride):
    """Of equals the first, and what is no number is larger than all before it."""
    rows, cols = 7, 6
    draw = np.random.default_rng(channels)
    image = draw.integers(0, 4, (rows, cols, channels)).astype(np.float32)
    image[draw.random(image.shape) < 0.2] = -np.inf
    image[draw.random(image.shape) < 0.1] = np.nan
    image[:3, :3, 0] = -np.inf  # a window of nothing else
    x = torch.tensor(image).permute(2, 0, 1)[None].clone().requires_grad_()
    expected, places = F.max_pool2d(x, kernel, stride, return_indices=True)
    height, width = expected.shape[2:]
    flat, count = image.ravel(), height * width * channels
    a = np.concatenate([flat, np.full(count + 1, 7, np.float32)])
    which = np.full(len(a), -1, np.int32)
    weight = draw.standard_normal((height, width, channels)).astype(np.float32)
    g = np.concatenate([np.zeros(len(flat)), weight.ravel(), [7]]).astype(np.float32)
    windows = [(y, z, c) for y in range(height) for z in range(width) for c in range(0, channels, LANES)]
    for y, z, c in windows:
        begin, to = ((y * cols + z) * stride) * channels + c, (y * width + z) * channels + c
        some = min(LANES, channels - c)
        pooled(a, which, cols * channels, channels, *kernel, begin, len(flat) + to, some)
        returned(g, which, cols * channels, channels, *kernel, begin, len(flat) + to, some)
    shape = (height, width, channels)
    np.testing.assert_array_equal(a[len(flat) : -1].reshape(shape), expected[0].detach().permute(1, 2, 0))
    found = which[len(flat) : -1].reshape(shape)
    np.testing.assert_array_equal(found // channels, places[0].permute(1, 2, 0))
    assert (found % channels == np.arange(channels)).all() and a[-1] == 7 and g[-1] == 7
    (expected * torch.tensor(weight).permute(2, 0, 1)).sum().backward()
    assert x.grad is not None
    back = x.grad[0].permute(1, 2, 0)
    np.testing.assert_allclose(g[: len(flat)].reshape(image.shape), back, rtol=1e-5, atol=1e-6)
