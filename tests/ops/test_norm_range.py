"""Norms of rows whose squares overflow or underflow, of constant rows and of rows of few columns
have values and gradients as exact as the arithmetic allows."""

import numpy as np
import pytest
import torch
from norm_kinds import KINDS, kind_of
from oracle import DTYPES

import fusedops

ops = torch.ops.fusedops

NORMS = [f"{kind}_norm" for kind in KINDS]
#: Magnitudes whose squares leave the range of the dtype, and whose reciprocals do not. They are
#: powers of two: what is rounded is rounded as in ordinary rows.
SCALES = {
    torch.float32: [2.0**-100, 2.0**-73, 2.0**73, 2.0**100],
    torch.float64: [2.0**-960, 2.0**-560, 2.0**560, 2.0**960],
}
LENGTHS = [2, 3, 40, 700, 70_001]


def in_80_bits(op, x, grad, eps, weight_offset=0.0):
    """The norm and its gradient, as defined."""
    x, grad = (t.double().numpy().astype(np.longdouble) for t in (x, grad))
    grad = grad * (1 + weight_offset)
    cols = x.shape[-1]
    kind = kind_of(op)
    centered = x - x.mean(-1, keepdims=True) * kind.has_mean
    scale = kind.scale(np.square(centered).sum(-1, keepdims=True), cols, eps)
    n = centered / scale
    along = (grad * n).sum(-1, keepdims=True) * kind.factor(scale, eps) / kind.count(cols)
    to_input = (grad - grad.mean(-1, keepdims=True) * kind.has_mean - n * along) / scale
    return n * (1 + weight_offset), to_input, 1 / scale


def norm_and_gradient(op, x, grad, eps):
    leaf = x.detach().clone().requires_grad_()
    y = getattr(fusedops, op)(leaf, [x.shape[-1]], eps=eps)
    return y.detach(), torch.autograd.grad(y, leaf, grad)[0]


@pytest.mark.parametrize("op", NORMS)
@pytest.mark.parametrize("dtype", SCALES, ids=str)
@pytest.mark.parametrize("cols", LENGTHS)
def test_rows_of_any_magnitude_are_normalised_as_exactly_as_others(op, dtype, cols):
    rows = 200 if cols < 1000 else 2
    ordinary, grad = torch.randn(2, rows, cols, dtype=dtype)
    errors = []
    for scale in (1.0, *SCALES[dtype]):
        x = ordinary * scale
        y, to_input = norm_and_gradient(op, x, grad, 0.0)
        exact, exact_grad, rstd = in_80_bits(op, x, grad, 0.0)
        largest = np.abs(exact_grad).max(-1, keepdims=True) + np.abs(grad.numpy()).max() * rstd
        errors.append(
            [
                np.abs(y.numpy() - exact).max() / torch.finfo(dtype).eps,
                (np.abs(to_input.numpy() - exact_grad) / largest).max() / torch.finfo(dtype).eps,
            ]
        )
    for of_output, of_gradient in errors[1:]:
        assert of_output <= errors[0][0] + 1 and of_gradient <= errors[0][1] + 1


@pytest.mark.parametrize("op", NORMS)
@pytest.mark.parametrize("add", [False, True])
def test_tiny_rows_beside_ordinary_ones_in_a_sum_and_alone_are_normalised(op, add):
    x = torch.randn(9, 50)
    x[::2] *= 1e-28
    if add and op in ("layer_norm", "rms_norm"):
        y, _ = getattr(fusedops, f"add_{op}")(x, torch.zeros_like(x), [50], eps=0.0)
    else:
        y = getattr(fusedops, op)(x, [50], eps=0.0)
    exact, _, _ = in_80_bits(op, x, x, 0.0)
    np.testing.assert_allclose(y.numpy(), exact.astype(np.float64), rtol=0, atol=2e-6)


@pytest.mark.parametrize("op", NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.0, 0.7, 1e3, 1e-30, -1e30])
@pytest.mark.parametrize("cols", [40, 1000])
def test_constant_rows_come_out_as_the_definition_says(op, dtype, value, cols):
    x, grad = torch.full((3, cols), value, dtype=dtype), torch.randn(3, cols, dtype=dtype)
    y, to_input = norm_and_gradient(op, x, grad, 1e-6)
    exact, exact_grad, rstd = in_80_bits(op, x, grad, 1e-6)
    np.testing.assert_allclose(y.numpy(), exact.astype(np.float64), rtol=1e-6)
    rtol = 0 if kind_of(op).has_mean else 1e-6
    off = np.abs(to_input.numpy() - exact_grad)
    assert (off <= rstd * 1e-6 + rtol * np.abs(exact_grad)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("eps", [0.0, 1e-12, 1e-6, 1e-5])
def test_rms_norm_of_one_column_is_off_by_few_roundings(dtype, eps):
    """The roundings of the square, of the sum with eps and of the root move the result by a quarter
    of an ulp, those of the reciprocal and of the product by half an ulp: twice as much where the
    result is just below a power of two. A fused multiply-add leaves most of them out."""
    x = torch.randn(100_000, 1, dtype=dtype)
    exact, _, _ = in_80_bits("rms_norm", x, x, eps)
    y = fusedops.rms_norm(x, [1], eps=eps)
    spacing = np.spacing(np.abs(exact).astype(y.numpy().dtype)).astype(np.longdouble)
    assert (np.abs(y.numpy() - exact) / spacing).max() <= 3.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weight_offset", [0.0, 1.0])
@pytest.mark.parametrize("cols", [1, 2, 3])
def test_gradients_of_rms_norm_that_cancel_are_right(dtype, weight_offset, cols):
    """The gradient of one column cancels down to the factor eps / (x^2 + eps)."""
    x, grad = torch.randn(2, 50_000, cols, dtype=dtype)
    w = torch.zeros(cols, dtype=dtype) + (1 - weight_offset)
    rstd = ops.rms_norm(x, [cols], w, 1e-6, weight_offset)[1]
    mask = [True, False]
    actual = ops.rms_norm_backward(grad, x, [cols], rstd, w, mask, weight_offset)[0]
    _, exact, rstd = in_80_bits("rms_norm", x, grad, 1e-6)
    unit = np.abs(grad.numpy()).max(-1, keepdims=True) * rstd * torch.finfo(dtype).eps
    assert (np.abs(actual.numpy() - exact) / unit).max() < 7


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cols", [2, 3, 5])
@pytest.mark.parametrize("eps", [1e-12, 1e-5])
def test_gradients_of_few_columns_far_from_zero_keep_to_the_bound(dtype, cols, eps):
    """The bound is that of norm_backward.h, with a float mean and the rounding of the result."""
    info = torch.finfo(dtype)
    unit = 2.0**-52 if dtype == torch.float64 else 2.0**-23
    for shift in (0.0, 1.0, 100.0, 1e4):
        for spread in (1e-3, 1.0):
            x = (shift + spread * torch.randn(500, cols)).to(dtype)
            residual = (0.1 * spread * torch.randn(500, cols)).to(dtype)
            grad = torch.randn(500, cols).to(dtype)
            leaf = x.requires_grad_()
            y, sum = fusedops.add_layer_norm(leaf, residual, [cols], eps=eps)
            (actual,) = torch.autograd.grad(y, leaf, grad)
            rounded = sum.detach()
            _, exact, rstd = in_80_bits("layer_norm", rounded, grad, eps)
            largest = np.abs(grad.double().numpy()).max(-1, keepdims=True) * rstd
            mean = np.abs(rounded.double().mean(-1, keepdim=True).numpy())
            bound = unit * (5 + 2 * mean * rstd) * (1 + mean * rstd * unit) * largest
            bound = bound + info.eps * np.abs(exact) + info.smallest_normal
            actual = actual.double().numpy()
            within = (np.abs(actual - exact) <= bound) | (np.abs(exact) > info.max)
            assert within.all(), (shift, spread)


def backward(op, grad, x, weight, mean, rstd):
    """The gradients of the input and of the weight."""
    if op == "rms_norm":
        return ops.rms_norm_backward(grad, x, x.shape[-1:], rstd, weight, [True] * 2)
    mask = [True, True, False]
    return ops.layer_norm_backward(grad, x, x.shape[-1:], mean, rstd, weight, None, mask)[:2]


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("cols", [9, 24, 200, 70_001])
def test_gradients_of_tiny_rows_have_the_bits_of_ordinary_ones(op, dtype, cols):
    """Products of their gradients and their values lie below the least denormal."""
    rows = 70 if cols < 1000 else 3
    x, grad = torch.randn(2, rows, cols).to(dtype)
    weight = torch.linspace(0.5, 1.5, cols).to(dtype)
    _, mean, rstd = ops.layer_norm(x, [cols], None, None, 0.0)
    ordinary, _ = backward(op, grad, x, weight, mean, rstd)
    tiny = (x * 2.0**-80, weight, mean * 2.0**-80, rstd * 2.0**80)
    to_input, to_weight = backward(op, grad * 2.0**-75, *tiny)
    assert torch.equal(to_input, ordinary * 2.0**5)

    magnitudes = torch.tensor([1.0, 2.0**-80]).repeat(rows)[:rows, None]
    mixed = (x * magnitudes.to(dtype), weight, mean * magnitudes, rstd / magnitudes)
    alone = torch.where(magnitudes == 1, ordinary, to_input)
    grads = torch.where(magnitudes == 1, grad, grad * 2.0**-75)
    assert torch.equal(backward(op, grads, *mixed)[0], alone)

    _, of_ordinary = backward(op, grad, x, weight, mean, rstd)
    terms = grad.float() * (x.float() - (mean if op == "layer_norm" else 0)) * rstd
    off = (to_weight.float() * 2.0**75 - of_ordinary.float()).abs()
    each = rows * torch.finfo(torch.float32).eps / 2 + torch.finfo(dtype).eps / 2
    assert (off <= 2 * each * terms.abs().sum(0)).all()
