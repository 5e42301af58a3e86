"""Products of matrices in compiled code are those of numpy, and touch nothing beside their numbers."""

import numpy as np
import pytest
from numba import njit

from fedpriv.engine.tiles import DEEP, PANEL, ROWS, SIDE, inner, inner_by_panels, product
from fedpriv.engine.vectors import LANES, keep_larger

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


def test_what_is_no_number_is_larger_than_all_before_it_and_equals_keep_the_first():
    @njit
    def larger(a, at, most, place):
        keep_larger(a, at, most, place, 0)

    a = np.zeros(LANES + 1, np.float32)
    a[1:5] = 2, 1, np.nan, np.inf
    most, place = np.ones(LANES, np.float32), np.full(LANES, -1, np.int32)
    most[3] = np.nan
    larger(a, 1, most, place)
    assert most[0] == 2 and most[1] == 1 and np.isnan(most[2]) and np.isnan(most[3]) and most[4] == 1
    assert place[:5].tolist() == [1, -1, 3, -1, -1]
