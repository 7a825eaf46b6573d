"""Derivatives on a GPU are within their bounds and agree with finite differences."""

import bounds
import pytest
import torch
from lengths import AT_EVERY_PLAN, ONE_OF_EACH_KERNEL, rows_for
from oracle import DTYPES, relative_error, same_bits
from test_norm import NORMS, gradients
from test_softmax_grad import GRADIENT_BOUNDS, OPS
from torch.autograd import gradcheck, gradgradcheck

# Rows that fill less than a block, one wave of blocks, and many rounds of each block.
ROWS = [1, 3, 264, 3000]


@pytest.mark.parametrize("cols", AT_EVERY_PLAN)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_softmax_backward_is_within_its_bound_and_typical(op, dtype, cols):
    rows = rows_for(cols, 100_000)
    output = getattr(torch, op)(torch.randn(rows, cols) * 2, -1).to(dtype)
    grad = torch.randn(rows, cols).to(dtype)
    backward = getattr(torch.ops.fusedops, f"{op}_backward")
    ours = backward(grad.cuda(), output.cuda(), -1, dtype)
    bounds.assert_typical(ours, GRADIENT_BOUNDS[op](output, grad, dtype).rounded_to(dtype))


@pytest.mark.parametrize("cols", ONE_OF_EACH_KERNEL)
@pytest.mark.parametrize("source", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("op", OPS)
def test_gradient_of_an_upcast_comes_back_in_the_inputs_dtype(op, source, cols):
    x = torch.randn(rows_for(cols, 100_000), cols).to(source)
    grad, leaf = torch.randn(x.shape), x.cuda().requires_grad_()
    y = OPS[op](leaf, -1, torch.float32)
    y.backward(grad.cuda())
    assert leaf.grad.dtype == source
    bounds.assert_typical(leaf.grad, GRADIENT_BOUNDS[op](y, grad, source).rounded_to(source))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("cols", ONE_OF_EACH_KERNEL)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_layer_norm_gradients_are_within_their_bounds_and_typical(dtype, cols, rows):
    if rows * cols > 4_000_000:
        rows = 4_000_000 // cols
    x, grad = torch.randn(2, rows, cols).to(dtype)
    w, b = torch.randn(2, cols).to(dtype)
    ours = gradients(NORMS["layer_norm"], [t.cuda() for t in (x, w, b)], grad.cuda())
    wanted = bounds.norm_gradients("layer_norm", x, w, grad, 1e-5)
    for actual, bound in zip(ours, wanted, strict=True):
        bounds.assert_typical(actual, bound.rounded_to(dtype))


@pytest.mark.parametrize("shape", [(8192, 128), (4096, 1024), (300, 20000)])
def test_bfloat16_parameter_gradients_are_rounded_once(shape):
    x, grad = torch.randn(2, *shape).bfloat16()
    w, b = torch.randn(2, shape[1]).bfloat16()
    norm = NORMS["layer_norm"]
    exact = gradients(norm.eager, [t.double() for t in (x, w, b)], grad.double())
    _, grad_w, grad_b = gradients(norm, [t.cuda() for t in (x, w, b)], grad.cuda())
    assert relative_error(grad_w.cpu(), exact[1]) < 2.5e-3
    assert relative_error(grad_b.cpu(), exact[2]) < 2.5e-3


@pytest.mark.parametrize("cols", [50, 1000, 20000])
@pytest.mark.parametrize("mask", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (0, 1, 1), (1, 0, 1)])
def test_only_the_gradients_that_are_wanted_are_computed_and_they_are_the_same(mask, cols):
    op = torch.ops.fusedops.layer_norm_backward
    x, grad = torch.randn(2, 70, cols, device="cuda")
    w, b = torch.randn(2, cols, device="cuda")
    _, mean, rstd = torch.ops.fusedops.layer_norm(x, [cols], w, b, 1e-5)
    full = op(grad, x, [cols], mean, rstd, w, b, [True] * 3)
    some = op(grad, x, [cols], mean, rstd, w, b, [bool(wanted) for wanted in mask])
    for wanted, part, whole in zip(mask, some, full, strict=True):
        assert same_bits(part, whole) if wanted else part.numel() == 0


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax_gradcheck_and_gradgradcheck(op, dim):
    x = torch.randn(3, 4, 5, dtype=torch.float64, device="cuda", requires_grad=True)
    assert gradcheck(lambda x: OPS[op](x, dim), x)
    assert gradgradcheck(lambda x: OPS[op](x, dim), x)
