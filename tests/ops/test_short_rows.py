"""Rows of 1 to 256 columns, which the CPU computes in groups: right values, and the bits of the
same row alone, in part of a group, over another dimension, and where rows are not evenly spaced."""

from functools import partial

import pytest
import torch
from oracle import DTYPES, same_bits
from with_gradients import norm_with_gradients, softmax_with_gradient

ops = torch.ops.fusedops

COLS = range(1, 257)
EPS = 1e-5


def add_layer_norm(x, grad, w, b):
    shape = list(w.shape)
    y, total, mean, rstd = ops.add_layer_norm(x, grad, shape, w, b, EPS)
    gradients = ops.add_layer_norm_backward(
        grad, x, total, shape, mean, rstd, w, b, [True, False, True, True]
    )
    return [y, total, mean, rstd, gradients[0], *gradients[2:]]


#: How many of the results are sums over rows.
OPS = {
    "softmax": (lambda x, grad, w, b: softmax_with_gradient("softmax", x, grad), 0),
    "log_softmax": (lambda x, grad, w, b: softmax_with_gradient("log_softmax", x, grad), 0),
    "layer_norm": (partial(norm_with_gradients, "layer_norm"), 2),
    "std_norm": (partial(norm_with_gradients, "std_norm"), 2),
    "rms_norm": (partial(norm_with_gradients, "rms_norm"), 1),
    "add_layer_norm": (add_layer_norm, 2),
}


def inputs(rows, cols, dtype):
    generator = torch.Generator().manual_seed(cols)
    x, grad = torch.randn(2, rows, cols, generator=generator)
    w, b = torch.randn(2, cols, generator=generator)
    return [t.to(dtype) for t in (x, grad, w, b)]


def with_special_rows(x):
    """Puts hidden, infinite, constant and very large or small rows among ordinary ones."""
    x[3], x[5, 0], x[8, -1], x[10] = -torch.inf, torch.nan, torch.inf, 2.5
    x[12] *= 1e-30
    x[14] *= 1e30
    x[17] += 1000
    x[20, 1:] = -torch.inf
    return x


def of_rows(op, *tensors):
    run, sums = OPS[op]
    results = run(*tensors)
    return results[: len(results) - sums]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_a_short_row_has_equal_bits_in_a_group_and_alone(op, dtype):
    for cols in COLS:
        if op == "std_norm" and cols == 1:
            continue
        x, grad, w, b = inputs(33, cols, dtype)
        x = with_special_rows(x)
        whole = of_rows(op, x, grad, w, b)
        for some in (slice(0, 14), slice(14, 21), slice(32, 33)):
            part = of_rows(op, x[some], grad[some], w, b)
            assert all(map(same_bits, part, [t[some] for t in whole])), (cols, some)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("cols", [1, 2, 7, 8, 17, 33, 64, 130])
def test_rows_with_gaps_between_them_have_the_bits_of_evenly_spaced_rows(op, dtype, cols):
    x, grad, w, b = inputs(5 * 14, cols + 3, dtype)
    x, grad = (t.view(5, 14, -1)[:, 1:, 2 : cols + 2] for t in (x, grad))
    even = OPS[op][0](x.contiguous(), grad.contiguous(), w[:cols], b[:cols])
    if op == "std_norm" and cols == 1:
        return
    grouped = OPS[op][0](x, grad, w[:cols], b[:cols])
    assert all(map(same_bits, grouped, even))


def exact(op, x, grad, w, b):
    """In float64, by autograd."""
    leaves = [t.double().requires_grad_() for t in (x, w, b)]
    x, w, b = leaves
    if op.endswith("softmax"):
        y = getattr(torch, op)(x, -1)
        return [y, *torch.autograd.grad(y, [x], grad.double())]
    centered = x if op == "rms_norm" else x - x.mean(-1, keepdim=True)
    if op == "std_norm":
        scale = x.std(-1, keepdim=True) + EPS
    else:
        scale = (centered.square().mean(-1, keepdim=True) + EPS).sqrt()
    y = centered / scale * w + (0 if op == "rms_norm" else b)
    wanted = [x, w] if op == "rms_norm" else [x, w, b]
    return [y, *torch.autograd.grad(y, wanted, grad.double())]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("op", ["softmax", "log_softmax", "layer_norm", "std_norm", "rms_norm"])
def test_values_and_gradients_of_every_short_width_are_right(op, dtype):
    run, sums = OPS[op]
    tolerance = 16 * torch.finfo(dtype).eps
    for cols in COLS:
        if op.endswith("norm") and cols < 3:
            continue  # the gradient is what rounding leaves
        tensors = inputs(70, cols, dtype)
        results, wanted = run(*tensors), exact(op, *tensors)
        found = [results[0], *results[len(results) - sums - 1 :]]
        for ours, right in zip(found, wanted, strict=True):
            size = right.abs().max().clamp(min=1)
            assert (ours.double() - right).abs().max() <= tolerance * size, cols
