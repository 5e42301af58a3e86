"""Products of clients with batches of their own sizes, against one plain product a client."""

import pytest
import torch

from fedpriv.engine import ragged

ROWS = [3, 0, 5, 1]  # a client may have drawn no sample


@pytest.fixture(params=[(8, 4), (8, 5), (7, 4)], ids=str)
def sizes(request):
    """Inputs and outputs; torch's own product of groups takes the first only."""
    return request.param


def drawn(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("biased", [False, True])
def test_products_and_their_gradient_are_each_clients_own(sizes, dtype, biased):
    inputs, outputs = sizes
    a = drawn(sum(ROWS), inputs, dtype=dtype).requires_grad_()
    weight = drawn(len(ROWS), outputs, inputs, dtype=dtype)
    bias = drawn(len(ROWS), outputs, dtype=dtype) if biased else None
    out = ragged.product(a, weight, bias, ROWS)
    shifts = torch.zeros(len(ROWS), outputs, dtype=dtype) if bias is None else bias
    expected = torch.cat([x @ w.T + b for x, w, b in zip(a.split(ROWS), weight, shifts, strict=True)])
    torch.testing.assert_close(out, expected)
    slope = drawn(*out.shape, dtype=dtype)
    torch.testing.assert_close(*(torch.autograd.grad(z, a, slope)[0] for z in (out, expected)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_add_up_each_clients_own_rows(sizes, dtype):
    inputs, outputs = sizes
    a, g = drawn(sum(ROWS), inputs, dtype=dtype), drawn(sum(ROWS), outputs, dtype=dtype)
    target = drawn(len(ROWS), outputs, inputs, dtype=dtype)
    start, weights = target.clone(), g[:, 0]
    ragged.add_products(target, g, a, ROWS, -0.5)
    parts = list(zip(g.split(ROWS), a.split(ROWS), weights.split(ROWS), strict=True))
    torch.testing.assert_close(target, start - 0.5 * torch.stack([s.T @ x for s, x, _ in parts]))
    torch.testing.assert_close(ragged.sums(weights, a, ROWS), torch.stack([w @ x for _, x, w in parts]))


def test_who_else_is_there_changes_no_bit_of_a_client(sizes):
    inputs, outputs = sizes
    a = drawn(sum(ROWS), inputs, dtype=torch.float32)
    weight = drawn(len(ROWS), outputs, inputs, dtype=torch.float32)
    together = ragged.product(a, weight, None, ROWS)
    assert torch.equal(together[3:8], ragged.product(a[3:8], weight[2:3], None, [5]))
