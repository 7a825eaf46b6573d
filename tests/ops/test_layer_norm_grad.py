"""Derivatives of layer_norm, of first and second order."""

import bounds
import pytest
import torch
from oracle import DTYPES, relative_error, same_bits
from torch.autograd import gradcheck, gradgradcheck

import fusedops
from fusedops import reference

AFFINE = {"none": (0, 0), "weight": (1, 0), "bias": (0, 1), "both": (1, 1)}


@pytest.mark.parametrize("affine", AFFINE)
@pytest.mark.parametrize("shape", [[5], [4, 5]])
def test_gradcheck_and_gradgradcheck(affine, shape):
    inputs = [torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)]
    has_weight, has_bias = AFFINE[affine]
    inputs += [torch.randn(shape, dtype=torch.float64, requires_grad=True)] * (
        has_weight + has_bias
    )
    inputs = [t.detach().clone().requires_grad_() for t in inputs]

    def norm(x, *rest):
        w = rest[0] if has_weight else None
        b = rest[-1] if has_bias else None
        return fusedops.layer_norm(x, shape, w, b, 1e-3)

    assert gradcheck(norm, inputs)
    assert gradgradcheck(norm, inputs)


def test_third_order_raises_instead_of_being_wrong():
    x = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    y = fusedops.layer_norm(x, [5]).pow(3).sum()
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    (second,) = torch.autograd.grad(first.pow(2).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="first and second order"):
        torch.autograd.grad(second.sum(), x)


def exact_gradients(x, shape, w, b, grad):
    leaves = [t.detach().double().requires_grad_() for t in (x, w, b)]
    reference.layer_norm(leaves[0], shape, leaves[1], leaves[2]).backward(grad.double())
    return [leaf.grad for leaf in leaves]


def gradients(norm, x, shape, w, b, grad):
    leaves = [t.detach().clone().requires_grad_() for t in (x, w, b)]
    norm(leaves[0], shape, leaves[1], leaves[2]).backward(grad)
    return [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize(
    "rows, cols", [(1, 1), (1, 40), (3, 7), (5, 31), (64, 33), (65, 128), (300, 100), (9000, 16)]
)
def test_gradients_are_within_their_bounds_and_typical(dtype, rows, cols):
    torch.manual_seed(rows)
    x, grad = torch.randn(rows, cols).to(dtype), torch.randn(rows, cols).to(dtype)
    w, b = torch.randn(cols).to(dtype), torch.randn(cols).to(dtype)
    ours = gradients(fusedops.layer_norm, x, [cols], w, b, grad)
    wanted = bounds.norm_gradients("layer_norm", x, w, grad, 1e-5)
    for actual, bound in zip(ours, wanted, strict=True):
        assert actual.dtype == dtype
        bounds.assert_typical(actual, bound.rounded_to(dtype))


@pytest.mark.parametrize("rows, cols", [(8192, 128), (4096, 1024), (256, 768)])
def test_bfloat16_parameter_gradients_are_right_where_eagers_are_off_by_percents(rows, cols):
    torch.manual_seed(0)
    x, grad = torch.randn(rows, cols).bfloat16(), torch.randn(rows, cols).bfloat16()
    w, b = torch.randn(cols).bfloat16(), torch.randn(cols).bfloat16()
    exact = exact_gradients(x, [cols], w, b, grad)
    ours = gradients(fusedops.layer_norm, x, [cols], w, b, grad)
    assert relative_error(ours[1], exact[1]) < 2.5e-3
    assert relative_error(ours[2], exact[2]) < 2.5e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_float32_parameters_get_float32_gradients(dtype):
    x, grad = torch.randn(100, 65).to(dtype), torch.randn(100, 65).to(dtype)
    w, b = torch.randn(65), torch.randn(65)
    exact = exact_gradients(x, [65], w, b, grad)
    ours = gradients(fusedops.layer_norm, x, [65], w, b, grad)
    assert ours[1].dtype == ours[2].dtype == torch.float32
    assert relative_error(ours[1], exact[1]) < 1e-5
    assert relative_error(ours[2], exact[2]) < 1e-5


@pytest.mark.parametrize("mask", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (0, 1, 1), (1, 0, 1)])
def test_only_the_gradients_that_are_wanted_are_computed_and_they_are_the_same(mask):
    op = torch.ops.fusedops.layer_norm_backward
    x, grad = torch.randn(70, 50), torch.randn(70, 50)
    w, b = torch.randn(50), torch.randn(50)
    _, mean, rstd = torch.ops.fusedops.layer_norm(x, [50], w, b, 1e-5)
    full = op(grad, x, [50], mean, rstd, w, b, [True] * 3)
    some = op(grad, x, [50], mean, rstd, w, b, [bool(wanted) for wanted in mask])
    for wanted, part, whole in zip(mask, some, full, strict=True):
        assert same_bits(part, whole) if wanted else part.numel() == 0


def test_a_frozen_weight_gets_no_gradient():
    x, w = torch.randn(4, 8, requires_grad=True), torch.randn(8)
    fusedops.layer_norm(x, [8], w).sum().backward()
    assert w.grad is None and x.grad is not None


def test_no_rows_give_zero_parameter_gradients():
    w, b = torch.ones(8, requires_grad=True), torch.ones(8, requires_grad=True)
    x = torch.randn(0, 8, requires_grad=True)
    fusedops.layer_norm(x, [8], w, b).sum().backward()
    assert x.grad.shape == (0, 8)
    assert w.grad.tolist() == b.grad.tolist() == [0.0] * 8


def test_mean_and_rstd_carry_no_gradient():
    x = torch.randn(3, 8, requires_grad=True)
    output, mean, rstd = torch.ops.fusedops.layer_norm(x, [8], None, None, 1e-5)
    assert output.requires_grad and not mean.requires_grad and not rstd.requires_grad
