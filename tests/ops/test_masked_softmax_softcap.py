"""Soft caps: scores bounded by cap * tanh(score / cap) before what is added and what is hidden."""

import bounds
import numpy as np
import pytest
import torch
from oracle import DTYPES

import fusedops

INF, NAN = float("inf"), float("nan")
SCALE = 0.7


def eager(x, cap, scale=1.0):
    return torch.softmax(torch.tanh(x * scale / cap) * cap, -1)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cap", [1.0, 30.0, 1e3, 1e5])
def test_small_scores_keep_their_digits_beside_a_large_cap(dtype, cap):
    """A tanh with the absolute error of a float would be wrong by 1e5 times that here."""
    x = (torch.randn(64, 400) * torch.logspace(-2, 1.5, 64)[:, None]).to(dtype)
    wanted = bounds.softmax(bounds.masked_scores(x, scale=SCALE, softcap=cap), dtype)
    bounds.assert_typical(fusedops.masked_softmax(x, scale=SCALE, softcap=cap), wanted)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize(
    "row", [[NAN, 1.0], [INF, 1.0, 0.0], [-INF, -1.0], [-INF, -INF], [0.0, -0.0], [6e4, -6e4, 5.0]]
)
def test_special_values_come_out_as_in_eager_mode(dtype, row):
    for cols in (len(row), 100):
        x = torch.tensor(row + [1.0] * (cols - len(row))).to(dtype)
        actual = fusedops.masked_softmax(x, softcap=4.0)
        exact = eager(x.double(), 4.0)
        assert torch.equal(actual.isnan(), exact.isnan())
        torch.testing.assert_close(actual, exact.to(dtype), equal_nan=True)


def test_an_infinite_score_is_the_cap_and_so_stays_visible():
    x = torch.tensor([[INF, -INF, 0.0]])
    y = fusedops.masked_softmax(x, softcap=2.0, masked_rows="zero")
    torch.testing.assert_close(y, torch.softmax(torch.tensor([[2.0, -2.0, 0.0]]), -1))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cap", [2.0, 30.0])
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_are_within_their_bounds(dtype, cap, compiled):
    """Compiled, 1 - tanh^2 has another formula."""

    def run(x, bias):
        return fusedops.masked_softmax(x, bias=bias, scale=SCALE, causal=True, softcap=cap)

    x, bias = (torch.randn(2, 3, 30, 200) * 4).to(dtype), torch.randn(3, 30, 200).to(dtype)
    grad = torch.randn(x.shape).to(dtype)
    leaves = [t.requires_grad_() for t in (x, bias)]
    y = (torch.compile(run, backend="aot_eager") if compiled else run)(x, bias)
    to_input, to_bias = torch.autograd.grad(y, leaves, grad)
    to_scores = bounds.softmax_gradient(y, grad, dtype)
    to_capped = to_scores.scaled(SCALE, dtype).rounded_to(dtype)
    slope = 1 - np.tanh(bounds.exactly(x) * SCALE / cap) ** 2
    # 1 - tanh^2 has the absolute error of a few roundings of 1.
    error = to_capped.error * slope + bounds.rounded(12, np.abs(to_capped.exact), dtype)
    bounds.assert_within(to_input, bounds.Bounded(to_capped.exact * slope, error).rounded_to(dtype))
    bounds.assert_within(to_bias, to_scores.rounded_to(dtype).summed(dtype).rounded_to(dtype))


def test_without_a_cap_the_input_is_not_saved():
    def saved(**options):
        tensors = []
        x = torch.randn(3, 50, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(tensors.append, lambda t: t):
            fusedops.masked_softmax(x * 2, **options)
        return sum(isinstance(t, torch.Tensor) and t.shape == x.shape for t in tensors)

    assert saved() == 1  # the probabilities
    assert saved(softcap=3.0) == 2


def test_writing_to_the_input_before_the_backward_pass_is_noticed():
    x = torch.randn(3, 50, requires_grad=True) * 1.0
    y = fusedops.masked_softmax(x, softcap=3.0)
    x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_the_range_of_float64_is_its_own():
    x = torch.randn(4, 9, dtype=torch.float64) * 1e200
    torch.testing.assert_close(
        fusedops.masked_softmax(x, softcap=1e100, scale=1e-100), eager(x, 1e100, 1e-100)
    )


def test_the_derivative_of_the_cap_is_that_at_the_converted_input():
    x, grad = torch.tensor([[5.014, 0.0]], requires_grad=True), torch.tensor([[1.0, 0.0]])
    y = fusedops.masked_softmax(x, softcap=1.0, dtype=torch.bfloat16)
    narrow = x.detach().bfloat16().double().requires_grad_()
    exact = torch.tanh(narrow).softmax(-1)
    (ours,), (expected,) = (
        torch.autograd.grad(out, leaf, grad.to(out.dtype))
        for out, leaf in ((y, x), (exact, narrow))
    )
    torch.testing.assert_close(ours.double(), expected, rtol=0.01, atol=0)
