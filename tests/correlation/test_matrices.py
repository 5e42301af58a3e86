"""Correlated noise against dense matrices: C C^-1 = I, sensitivity over all patterns, variances of sums."""

import copy
from functools import partial
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch

from fedpriv.correlation.toeplitz import BLT, Banded, Toeplitz, _together, banded
from fedpriv.correlation.tree import Tree

ROUNDS = 11


def dense(c: np.ndarray) -> np.ndarray:
    """The lower triangular Toeplitz matrix."""
    return np.array([[c[t - s] if t >= s else 0.0 for s in range(len(c))] for t in range(len(c))])


def patterns(rounds: int, times: int, separation: int):
    """Every set of at most so many rounds, any two so far apart."""
    for size in range(1, times + 1):
        for rows in combinations(range(rounds), size):
            if all(b - a >= separation for a, b in pairwise(rows)):
                yield list(rows)


def rows_of(correlation, width: int, rounds: int = ROUNDS) -> tuple[np.ndarray, dict[tuple[int, int], int]]:
    """The noise of every round as weights of single normals, [rounds, width], and which (round, number) each
    is; stopped and continued on the way."""
    names: dict[tuple[int, int], int] = {}

    def normal(t: int, number: int) -> torch.Tensor:
        place = names.setdefault((t, number), len(names))
        return torch.eye(width, dtype=torch.float64)[place]

    rows = []
    for t in range(rounds):
        other = copy.deepcopy(correlation)
        other.__dict__.update({k: v for k, v in vars(new_one(correlation)).items() if k.startswith("_")})
        other.load(correlation.state())
        correlation = other
        rows.append(correlation.row(partial(normal, t)).numpy())
    return np.stack(rows), names


def new_one(correlation):
    if isinstance(correlation, Tree):
        return Tree(correlation.rounds, correlation.restart)
    if isinstance(correlation, BLT):
        return BLT(ROUNDS, 3, 3, len(correlation.scales))
    return Banded(len(correlation.c), correlation.bands)


@pytest.mark.parametrize(
    "made", [lambda: Banded(ROUNDS, 3), lambda: BLT(ROUNDS, 3, 3, 2)], ids=["banded", "blt"]
)
def test_rows_are_the_inverse_and_sums_have_the_variance_of_theory(made):
    correlation = made()
    inverse, _ = rows_of(correlation, ROUNDS)
    matrix = dense(correlation.c)
    np.testing.assert_allclose(matrix @ inverse, np.eye(ROUNDS), atol=1e-12)
    sums = np.tril(np.ones((ROUNDS, ROUNDS))) @ inverse
    np.testing.assert_allclose((sums**2).sum(1), correlation.variances(), rtol=1e-9)
    assert np.allclose(np.triu(matrix, 1), 0) and matrix[0, 0] == 1


@pytest.mark.parametrize("restart", [1, 3, 4, 8, 11])
def test_a_tree_tells_prefix_sums_from_its_nodes(restart):
    tree = Tree(ROUNDS, restart)
    rows, names = rows_of(tree, 2 * ROUNDS)
    nodes = np.zeros((2 * ROUNDS, ROUNDS))  # C: which rounds a node sums
    for (t, height), place in names.items():
        nodes[place, t - 2**height + 1 : t + 1] = 1
    sums = np.cumsum(rows, 0)  # B
    np.testing.assert_allclose(sums @ nodes, np.tril(np.ones((ROUNDS, ROUNDS))), atol=1e-12)
    np.testing.assert_allclose((sums**2).sum(1), tree.variances(), rtol=1e-12)
    for times, separation in ((1, 1), (2, 3), (3, 3), (3, 4), (4, 1), (2, 8)):
        found = tree.sensitivities(times, separation)
        for count in range(1, times + 1):
            worst = max(np.linalg.norm(nodes[:, p].sum(1)) for p in patterns(ROUNDS, count, separation))
            assert found[count - 1] >= worst - 1e-9
            if tree.exact:
                assert found[count - 1] == pytest.approx(worst)


def test_the_variance_of_a_tree_by_hand():
    """Of four leaves: 1; 2/3; 2/3 + 1; and 4/7 for the whole (Honaker's v_h = 2^h / (2^(h+1) - 1))."""
    assert Tree(5, 4).variances() == pytest.approx([1, 2 / 3, 5 / 3, 4 / 7, 4 / 7 + 1])
    assert Tree(4, 4).sensitivities(1, 4)[0] == pytest.approx(3**0.5)  # a leaf is in three nodes


@pytest.mark.parametrize(
    ("correlation", "separation"),
    [
        (Banded(ROUNDS, 1), 1),
        (Banded(ROUNDS, 3), 3),
        (Banded(ROUNDS, 3), 5),
        (BLT(ROUNDS, 3, 3, 2), 3),
        (BLT(ROUNDS, 4, 2, 3), 2),
        (BLT(ROUNDS, 4, 1, 3), 1),
        (Toeplitz(np.array([1, -0.5, 0.4, 0, 0, 0, 0, 0, 0, 0, 0]), 3), 3),
    ],
)
def test_the_sensitivity_is_that_of_the_worst_pattern(correlation, separation):
    matrix, random = dense(correlation.c), np.random.default_rng(0)
    found = correlation.sensitivities(4, separation)
    assert correlation.exact
    for count in (1, 2, 3, 4):
        worst = max(np.linalg.norm(matrix[:, p].sum(1)) for p in patterns(ROUNDS, count, separation))
        assert found[count - 1] == pytest.approx(worst)
    for rows in patterns(ROUNDS, 4, separation):  # nor do other directions get further
        sent = random.normal(size=(len(rows), 3))
        sent /= np.linalg.norm(sent, axis=1, keepdims=True)
        assert np.linalg.norm(matrix[:, rows] @ sent) <= found[-1] + 1e-9


def test_coefficients_that_grow_are_bounded_from_above():
    correlation = Toeplitz(np.array([1, -0.3, 0.6, 0.1, 0, 0, 0, 0, 0, 0, 0]), 4)
    found, matrix = correlation.sensitivities(4, 2), dense(correlation.c)
    assert not correlation.exact
    for rows in patterns(ROUNDS, 4, 2):
        for signs in np.ndindex(*[2] * len(rows)):
            assert np.linalg.norm(matrix[:, rows] @ (2.0 * np.array(signs) - 1)) <= found[-1] + 1e-9


def test_what_is_optimised_beats_the_root_of_the_sums_and_independent_noise():
    """Of one participation, the root of A (1, 1/2, 3/8, ...) is known to be close to the best."""
    rounds = 64
    root = np.cumprod([1.0, *(1 - 0.5 / np.arange(1, rounds))])

    def error(correlation, times, separation):
        return correlation.variances().mean() ** 0.5 * correlation.sensitivities(times, separation)[-1]

    known = error(Toeplitz(root, rounds), 1, rounds)
    best = error(Banded(rounds, rounds), 1, rounds)
    assert 0.95 * known < best < known
    assert best <= error(BLT(rounds, 1, rounds, 3), 1, rounds) < 1.01 * best
    alone = error(Banded(rounds, 1), 4, 16)
    assert alone == pytest.approx((65 / 2) ** 0.5 * 2)
    assert error(Banded(rounds, 16), 4, 16) < 0.5 * alone
    assert error(Banded(rounds, 16), 4, 16) < error(Tree(rounds, 16), 4, 16) < alone


@pytest.mark.parametrize(("times", "separation"), [(1, 11), (2, 3), (4, 3), (11, 1), (3, 4), (2, 6)])
def test_columns_together(times, separation):
    c = 0.8 ** np.arange(ROUNDS)
    columns = [i for i in range(0, times * separation, separation) if i < ROUNDS]
    np.testing.assert_allclose(_together(c, times, separation), dense(c)[:, columns].sum(1))


def test_two_bands_of_two_rounds_by_hand():
    """(1 + c^2) (1 + 1 + (1 - c)^2) is least where 4 c^3 - 6 c^2 + 8 c - 2 = 0: at 0.3038."""
    assert banded(2, 2)[1] == pytest.approx(np.roots([4, -6, 8, -2]).real[-1], abs=2e-5)
