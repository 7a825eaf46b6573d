"""Sinks: one more score of each row, whose probability is left out."""

import pytest
import torch
from oracle import relative_error, same_bits
from test_masked_softmax_grad import SEED, doubles
from torch.autograd import gradcheck

import fusedops
from fusedops import reference

ops = torch.ops.fusedops
INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sink", [-80.0, -30.0, 0.0, 30.0])
def test_a_small_probability_of_a_sink_has_all_its_digits_and_so_has_its_gradient(dtype, sink):
    """A difference from 1 would have none."""
    x, grad = torch.randn(64, 100).to(dtype), torch.randn(64, 100).to(dtype)
    sinks = torch.full((64,), sink, dtype=dtype, requires_grad=True)
    exact = sinks.detach().double().requires_grad_()
    y = torch.softmax(torch.cat([x.double(), exact[:, None]], -1), -1)
    (expected,) = torch.autograd.grad(y[:, :-1], exact, grad.double())
    (actual,) = torch.autograd.grad(fusedops.masked_softmax(x, sinks=sinks), sinks, grad)
    error = (actual.double() - expected).abs()
    sizes = y[:, -1] * (grad.double() * y[:, :-1]).abs().sum(-1)
    assert (error <= 64 * torch.finfo(dtype).eps * sizes.detach()).all()


@pytest.mark.parametrize("mask_value", [-INF, -1e4])
def test_a_row_that_sees_nothing_is_zero(mask_value):
    x, nothing = torch.randn(3, 40), torch.zeros(3, dtype=torch.int64)
    for masked_rows in ("nan", "zero"):
        y = fusedops.masked_softmax(
            x, end=nothing, sinks=1.0, mask_value=mask_value, masked_rows=masked_rows
        )
        assert (y == 0).all()
    assert (fusedops.masked_softmax(torch.full((2, 9), -INF), sinks=0.0) == 0).all()


def test_a_sink_has_no_gradient_of_rows_without_columns():
    x, sinks = torch.randn(64, 0), torch.randn(64, requires_grad=True)
    y = fusedops.masked_softmax(x, sinks=sinks)
    torch.full((64,), NAN)  # torch's allocator returns this memory for the gradient
    y.sum().backward()
    assert (sinks.grad == 0).all()


@pytest.mark.parametrize("row", [[NAN, 1.0], [INF, 1.0], [-INF, -INF], [3e38, -3e38]])
@pytest.mark.parametrize("sink", [0.0, NAN, INF, -INF, 3e38])
def test_special_values_come_out_as_of_one_more_column(row, sink):
    x, sinks = torch.tensor([row]), torch.tensor([sink])
    expected = torch.softmax(torch.cat([x, sinks[:, None]], -1), -1)[:, :-1]
    actual = fusedops.masked_softmax(x, sinks=sinks)
    torch.testing.assert_close(actual, expected, equal_nan=True)


def test_a_sink_of_minus_infinity_changes_no_bit():
    x = torch.randn(4, 5, 700)
    actual = fusedops.masked_softmax(x, causal=True, sinks=-INF)
    assert same_bits(actual, fusedops.masked_softmax(x, causal=True))


def test_the_third_derivative_is_right():
    x, sinks = doubles(2, 4), doubles(2)
    weight = torch.randn(2, 4, dtype=torch.float64)

    def of(softmax):
        y = (softmax() * weight).sum()
        for _ in range(3):
            grads = torch.autograd.grad(y, (x, sinks), create_graph=True)
            y = sum(grad.square().sum() for grad in grads)
        return grads

    ours = of(lambda: fusedops.masked_softmax(x, sinks=sinks))
    theirs = of(lambda: torch.softmax(torch.cat([x, sinks[:, None]], -1), -1)[:, :-1])
    for actual, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(actual, expected)


def test_the_probabilities_of_dropout_have_a_gradient_too():
    x, sinks, seed = doubles(4, 9), doubles(4), torch.tensor(SEED)

    def both(x, sinks):
        op = ops.masked_softmax_dropout
        return op(x, None, 0.5, False, 0.0, 0.3, seed, sinks=sinks)

    assert gradcheck(both, (x, sinks))
    assert gradcheck(lambda x, sinks: both(x, sinks)[1], (x, sinks))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_16_bits_are_those_of_float64_within_their_rounding(dtype):
    x, grad = torch.randn(8, 4, 30, 200).to(dtype), torch.randn(8, 4, 30, 200).to(dtype)
    sinks = torch.randn(4, 1, requires_grad=True)
    x.requires_grad_()
    exact = [t.detach().double().requires_grad_() for t in (x, sinks)]
    of_exact = reference.masked_softmax(exact[0], diagonal=0, sinks=exact[1])
    expected = torch.autograd.grad(of_exact, exact, grad.double())
    y = fusedops.masked_softmax(x, causal=True, sinks=sinks)
    actual = torch.autograd.grad(y, (x, sinks), grad)
    assert actual[0].dtype == dtype and actual[1].dtype == torch.float32
    for ours, theirs in zip(actual, expected, strict=True):
        assert relative_error(ours, theirs) < 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_the_function_and_the_op_give_the_same_eager_and_compiled(backend, learned, p):
    x = torch.randn(2, 3, 6, 40, requires_grad=True)
    sinks, seed = torch.randn(3, 1, requires_grad=learned), torch.tensor(SEED)

    def function(x, sinks):
        if p == 0:
            return fusedops.masked_softmax(x, causal=True, sinks=sinks)
        return fusedops.masked_softmax_dropout(x, p=p, seed=seed, causal=True, sinks=sinks)

    def op(x, sinks):
        if p == 0:
            return ops.masked_softmax(x, None, 1.0, True, None, sinks=sinks)
        return ops.masked_softmax_dropout(x, None, 1.0, True, None, p, seed, sinks=sinks)[0]

    compiled = torch.compile(function, backend=backend, fullgraph=True)
    compiled_op = torch.compile(op, backend="aot_eager", fullgraph=True)
    grad, results = torch.randn(x.shape), []
    for run in (function, op, compiled, compiled_op):
        y = run(x, sinks)
        results.append((y, *torch.autograd.grad(y, (x, sinks) if learned else (x,), grad)))
    for actual in results[1:]:
        torch.testing.assert_close(actual, results[0], rtol=1e-6, atol=1e-7)
