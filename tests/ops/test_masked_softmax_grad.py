"""Derivatives of masked_softmax, with and without dropout."""

import bounds
import pytest
import torch
from oracle import DTYPES, relative_error
from test_masked_softmax_values import bools
from torch.autograd import gradcheck, gradgradcheck

import fusedops

SEED = 1234567


def doubles(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


CALLS = {
    "scale": lambda f, x, m, b: f(x, scale=0.3),
    "mask": lambda f, x, m, b: f(x, m),
    "bias": lambda f, x, m, b: f(x, bias=b, scale=2.0),
    "mask and bias": lambda f, x, m, b: f(x, m, bias=b),
    "bool": lambda f, x, m, b: f(x, m > 0.3, scale=0.3),
    "causal": lambda f, x, m, b: f(x, causal=True, scale=0.3),
    "all": lambda f, x, m, b: f(x, m, bias=b, causal="bottom_right", mask_value=-1.0),
}
FUNCTIONS = {
    "masked_softmax": fusedops.masked_softmax,
    "masked_softmax_dropout": lambda *args, **kwargs: fusedops.masked_softmax_dropout(
        *args, **kwargs, p=0.4, seed=torch.tensor(SEED)
    ),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradcheck_and_gradgradcheck(call, function):
    x, mask, bias = doubles(2, 3, 4, 5), doubles(2, 1, 1, 5), doubles(3, 4, 1)

    def run(x, mask, bias):
        return CALLS[call](FUNCTIONS[function], x, mask, bias)

    used = [t for t, name in ((mask, "mask"), (bias, "bias")) if name in call or call == "all"]
    inputs = (x, *used)

    def of_used(x, *operands):
        given = dict(zip([t is mask for t in used], operands, strict=True))
        return run(x, given.get(True, mask.detach()), given.get(False, bias.detach()))

    assert gradcheck(of_used, inputs)
    assert gradgradcheck(of_used, inputs)


def chain(x, mask, bias, scale, diagonal, mask_value):
    """A masked softmax in the dtype of its inputs, recorded by autograd."""
    scores = x * scale + bias
    hidden = ~mask | torch.ones(x.shape, dtype=torch.bool).triu(diagonal + 1)
    return torch.softmax(scores.masked_fill(hidden, mask_value), -1)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("mask_value", [-float("inf"), -1e4])
@pytest.mark.parametrize("keys", [30, 1000])
def test_gradients_are_within_their_bounds_and_typical(dtype, mask_value, keys):
    x = (torch.randn(2, 3, 30, keys) * 2).to(dtype)
    bias, mask = torch.randn(3, 30, keys).to(dtype), bools(2, 1, 1, keys)
    grad = torch.randn(x.shape).to(dtype)

    leaves = [t.requires_grad_() for t in (x, bias)]
    y = fusedops.masked_softmax(x, mask, bias=bias, scale=0.3, causal=True, mask_value=mask_value)
    to_input, to_bias = torch.autograd.grad(y, leaves, grad)
    to_scores = bounds.softmax_gradient(y, grad, dtype)
    bounds.assert_typical(to_input, to_scores.scaled(0.3, dtype).rounded_to(dtype))
    bounds.assert_typical(to_bias, to_scores.rounded_to(dtype).summed(dtype).rounded_to(dtype))


@pytest.mark.parametrize("mask_value", [-float("inf"), -1e9, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("diagonal", [-3, 0])
def test_rows_that_are_hidden_whole_have_eagers_gradient(mask_value, diagonal):
    """It is zero though the probabilities are NaN or uniform: hidden scores have no gradient."""
    x, bias = torch.randn(2, 6, 50), torch.zeros(50)
    mask = bools(2, 1, 50)
    mask[1] = False
    grad = torch.randn(x.shape)
    ours, eager = x.clone().requires_grad_(), x.clone().requires_grad_()
    op = torch.ops.fusedops.masked_softmax
    op(ours, mask, 1.0, True, mask_value, None, None, diagonal).backward(grad)
    chain(eager, mask, bias, 1.0, diagonal, mask_value).backward(grad)
    torch.testing.assert_close(ours.grad, eager.grad)
    assert (ours.grad[1] == 0).all()


def test_zeroed_rows_have_no_gradient():
    x = torch.randn(3, 8, requires_grad=True)
    mask = torch.tensor([[True], [False], [True]])
    fusedops.masked_softmax(x, mask, masked_rows="zero").pow(2).sum().backward()
    assert (x.grad[1] == 0).all() and (x.grad[0] != 0).any()


@pytest.mark.parametrize("source", [torch.bfloat16, torch.float16])
def test_gradient_of_an_upcast_comes_back_in_the_inputs_dtype(source):
    x = torch.randn(2, 9, 33).to(source).requires_grad_()
    grad = torch.randn(2, 9, 33)
    fusedops.masked_softmax(x, scale=0.5, causal=True, dtype=torch.float32).backward(grad)
    wide = x.detach().double().requires_grad_()
    hidden = torch.ones(9, 33, dtype=torch.bool).triu(1)
    torch.softmax((wide * 0.5).masked_fill(hidden, -float("inf")), -1).backward(grad.double())
    assert x.grad.dtype == source
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=torch.finfo(source).eps, atol=1e-4)


@pytest.mark.parametrize("shape", [(7,), (5, 1), (1, 1, 7), (3, 1, 1), (2, 3, 5, 7), (1,)])
def test_the_gradient_of_a_broadcast_bias_is_summed(shape):
    x, bias = doubles(2, 3, 5, 7), doubles(*shape)
    grad = torch.randn(x.shape, dtype=torch.float64)
    (actual,) = torch.autograd.grad(fusedops.masked_softmax(x, bias=bias), bias, grad)
    (expected,) = torch.autograd.grad(torch.softmax(x + bias, -1), bias, grad)
    torch.testing.assert_close(actual, expected)


def test_a_float32_bias_beside_bfloat16_scores_gets_a_float32_gradient():
    x, bias = torch.randn(64, 4, 32, 32).bfloat16(), torch.randn(4, 32, 32, requires_grad=True)
    grad = torch.randn(x.shape).bfloat16()
    fusedops.masked_softmax(x, bias=bias).backward(grad)
    wide = bias.detach().double().requires_grad_()
    torch.softmax(x.double() + wide, -1).backward(grad.double())
    assert bias.grad.dtype == torch.float32
    assert relative_error(bias.grad, wide.grad) < torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize("scale", [1.0, 0.3])
@pytest.mark.parametrize("trains_scores", [False, True])
def test_a_float32_bias_beside_float16_scores_loses_no_small_gradient(scale, trains_scores):
    x = torch.randn(4, 1024).half().requires_grad_(trains_scores)
    bias, grad = torch.randn(4, 1024, requires_grad=True), torch.randn(4, 1024) * 1e-6
    fusedops.masked_softmax(x, bias=bias, scale=scale, dtype=torch.float32).backward(grad)
    wide, scores = bias.detach().double().requires_grad_(), x.detach().double().requires_grad_()
    torch.softmax(scores * scale + wide, -1).backward(grad.double())
    assert relative_error(bias.grad, wide.grad) < 1e-6
    if trains_scores:
        assert x.grad.dtype == x.dtype
        assert (x.grad - scores.grad).abs().max() <= 2**-25  # half of the least step


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_bias_of_integer_scores_has_a_gradient(function):
    x, bias = torch.randint(-3, 4, (3, 9)), torch.randn(9, requires_grad=True)
    function(x, bias=bias, dtype=torch.float32)[:, 0].sum().backward()
    wide = bias.detach().requires_grad_()
    function(x.float(), bias=wide)[:, 0].sum().backward()
    assert torch.equal(bias.grad, wide.grad)


def test_only_the_gradients_that_are_needed_are_computed():
    x = torch.randn(2, 5, 7)
    bias = torch.randn(7, requires_grad=True)
    y = fusedops.masked_softmax(x, bias=bias)
    y.sum().backward()
    assert x.grad is None and bias.grad.shape == (7,)


def test_the_probabilities_of_dropout_have_a_gradient_too():
    x = doubles(4, 9)
    op = torch.ops.fusedops.masked_softmax_dropout

    def both(x):
        return op(x, None, 0.5, False, 0.0, 0.3, torch.tensor(SEED))

    assert gradcheck(both, x)
    assert gradcheck(lambda x: both(x)[1], x)
