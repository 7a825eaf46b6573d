"""Rows that threads share have the same bits whichever thread computes a part; and softmaxes whose
only row are all elements."""

import pytest
import torch
from oracle import DTYPES, assert_same_on_threads, relative_error, same_bits
from with_gradients import norm_with_gradients, softmax_with_gradient

import fusedops


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


SOFTMAXES, NORMS = ("softmax", "log_softmax"), ("layer_norm", "rms_norm", "std_norm")
#: Each op as a function of its name, input, gradient, weight and bias, that gives all results.
OPS = {
    **{op: lambda op, x, grad, w, b: softmax_with_gradient(op, x, grad) for op in SOFTMAXES},
    **{op: norm_with_gradients for op in NORMS},
}


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_a_hundred_runs_give_the_same_bits(op, dtype):
    x, grad = (randn(1, 70_001, dtype=dtype, seed=seed) for seed in (1, 2))
    w, b = (randn(70_001, dtype=dtype, seed=seed) for seed in (3, 4))
    assert_same_on_threads(lambda: OPS[op](op, x, grad, w, b), counts=[1] + [2] * 100)


@pytest.mark.parametrize("threads", [1, 2, 3], indirect=True)
@pytest.mark.parametrize("op", SOFTMAXES)
def test_without_a_dim_all_elements_are_one_row(op, threads):
    x = randn(7, 100, 200).transpose(0, 1).requires_grad_()
    function = getattr(fusedops, op)
    y = function(x, None)
    assert same_bits(y, function(x.reshape(-1), 0).view(x.shape))
    total = y.double().exp().sum() if op == "log_softmax" else y.double().sum()
    assert abs(total - 1) < 1e-5
    grad = randn(100, 7, 200, seed=1)
    exact = x.detach().double().requires_grad_()
    want = torch.autograd.grad(
        getattr(torch, op)(exact.reshape(-1), 0), exact, grad.double().view(-1)
    )
    assert relative_error(torch.autograd.grad(y, x, grad)[0], want[0]) < 1e-5


def test_without_a_dim_results_may_go_into_a_contiguous_tensor():
    x = randn(3, 4)
    out = torch.empty_like(x)
    assert fusedops.softmax(x, None, out=out) is out
    assert same_bits(out, fusedops.softmax(x, None))
    with pytest.raises(RuntimeError, match=r"out has shape \[4, 3\].*contiguous tensor of input's"):
        fusedops.softmax(x, None, out=torch.empty(4, 3))
    with pytest.raises(RuntimeError, match="contiguous"):
        fusedops.softmax(x, None, out=torch.empty(4, 3).t())


def test_without_a_dim_it_compiles():
    x = randn(3, 4)
    compiled = torch.compile(lambda t: fusedops.softmax(t, None), fullgraph=True)
    assert same_bits(compiled(x), fusedops.softmax(x, None))
