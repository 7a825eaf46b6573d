"""Derivatives of softmax and log_softmax, of first and second order."""

import bounds
import pytest
import torch
from oracle import DTYPES
from torch.autograd import gradcheck, gradgradcheck

import fusedops

OPS = {"softmax": fusedops.softmax, "log_softmax": fusedops.log_softmax}
GRADIENT_BOUNDS = {
    "softmax": bounds.softmax_gradient,
    "log_softmax": bounds.log_softmax_gradient,
}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gradcheck_and_gradgradcheck(op, dim):
    x = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: OPS[op](x, dim), x)
    assert gradgradcheck(lambda x: OPS[op](x, dim), x)


@pytest.mark.parametrize("op", OPS)
def test_third_order_is_right(op):
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)

    def second(function):
        (first,) = torch.autograd.grad(function(x, 0).pow(3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.pow(2).sum(), x, create_graph=True)
        return torch.autograd.grad(second.pow(2).sum(), x)[0]

    torch.testing.assert_close(second(OPS[op]), second(getattr(torch, op)))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cols", [1, 5, 31, 33, 64, 1000, 4097, 70_001, 100_003])
def test_gradients_are_within_their_bound_and_typical(op, dtype, cols):
    torch.manual_seed(cols)
    rows = max(6, 50_000 // cols)
    output = getattr(torch, op)(torch.randn(rows, cols) * 2, -1).to(dtype)
    grad = torch.randn(rows, cols).to(dtype)
    ours = getattr(torch.ops.fusedops, f"{op}_backward")(grad, output, -1, dtype)
    bounds.assert_typical(ours, GRADIENT_BOUNDS[op](output, grad, dtype).rounded_to(dtype))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("source", [torch.bfloat16, torch.float16])
def test_gradient_of_an_upcast_comes_back_in_the_inputs_dtype(op, source):
    x = torch.randn(4, 77).to(source).requires_grad_()
    grad = torch.randn(4, 77)
    y = OPS[op](x, -1, torch.float32)
    y.backward(grad)
    assert x.grad.dtype == source
    bounds.assert_typical(x.grad, GRADIENT_BOUNDS[op](y, grad, source).rounded_to(source))


@pytest.mark.parametrize("op", OPS)
def test_expanded_gradient_of_a_sum(op):
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    OPS[op](x, -1).sum().backward()  # the incoming gradient has stride 0
    y = x.detach().clone().requires_grad_()
    getattr(torch, op)(y, -1).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("op", OPS)
def test_masked_rows_have_the_gradient_of_eager(op):
    x = torch.randn(3, 6)
    x[0, 2:] = float("-inf")
    x[1] = float("-inf")
    ours, eager = x.clone().requires_grad_(), x.clone().requires_grad_()
    grad = torch.randn(3, 6)
    OPS[op](ours, -1).backward(grad)
    getattr(torch, op)(eager, -1).backward(grad)
    torch.testing.assert_close(ours.grad, eager.grad, equal_nan=True)


@pytest.mark.parametrize("op", OPS)
def test_backward_of_an_empty_tensor_is_empty(op):
    x = torch.randn(0, 5, requires_grad=True)
    OPS[op](x, -1).sum().backward()
    assert x.grad.shape == (0, 5)
