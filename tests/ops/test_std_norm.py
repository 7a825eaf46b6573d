"""std_norm, the Annotated Transformer's LayerNorm: values, derivatives, and the tensors kept for
the backward."""

import bounds
import pytest
import torch
from oracle import (
    DTYPES,
    annotated_norm,
    relative_error,
    same_bits,
    ulp_error,
)
from test_layer_norm_values import INPUTS, SYSTEMATIC
from torch.autograd import gradcheck, gradgradcheck

import fusedops
from fusedops import reference

EPS = 1e-6
COLS = [2, 3, 7, 8, 9, 31, 32, 33, 64, 127, 768, 1023, 1024, 1025, 8191, 8193, 65537]


def random(*shape, dtype):
    return torch.randn(*shape, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cols", COLS)
def test_errors_are_within_their_bound_and_typical(dtype, cols):
    torch.manual_seed(cols)
    x = random(max(4, 100_000 // cols), cols, dtype=dtype)
    w, b = random(2, cols, dtype=dtype)
    ours = fusedops.std_norm(x, [cols], w, b)
    bounds.assert_typical(ours, bounds.norm("std_norm", x, w, b, EPS))


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cols", [40, 1000, 20000])
def test_errors_are_within_their_bound_on_hard_inputs(dtype, kind, cols):
    if kind == "large" and dtype == torch.float16:
        kind = "trend"  # 1e15 is not a float16
    torch.manual_seed(0)
    x = INPUTS[kind](torch.randn(100_000 // cols, cols)).to(dtype)
    hold = bounds.assert_within if kind in SYSTEMATIC else bounds.assert_typical
    hold(fusedops.std_norm(x, [cols]), bounds.norm("std_norm", x, eps=EPS))


@pytest.mark.parametrize("offset", [1e3, 1e4, 1e5])
def test_a_large_mean_costs_no_digits(offset):
    x = torch.randn(8, 4096) + offset
    error = ulp_error(fusedops.std_norm(x, [4096]), reference.std_norm(x, [4096]), floor=1.0)
    assert error <= 5.0  # eager: 2e2, 3e3 and 3e4


@pytest.mark.parametrize("deviation", [1e-3, 1e-6, 1e-9, 1e-15, 1e-25])
@pytest.mark.parametrize("eps", [1e-6, 1e-12])
def test_eps_is_added_to_the_standard_deviation_whichever_is_larger(deviation, eps):
    x = torch.randn(32, 300) * deviation
    ours = fusedops.std_norm(x, [300], eps=eps)
    bounds.assert_typical(ours, bounds.norm("std_norm", x, eps=eps))


def test_std_norm_differs_from_layer_norm():
    x = torch.randn(4, 5)
    ratio = fusedops.std_norm(x, [5], eps=0.0) / fusedops.layer_norm(x, [5], eps=0.0)
    torch.testing.assert_close(ratio, torch.full_like(x, (4 / 5) ** 0.5))


def test_several_normalized_dimensions_and_parameters_that_are_left_out():
    x, w, b = torch.randn(6, 3, 4, 5), torch.randn(4, 5), torch.randn(4, 5)
    for parameters in ((w, b), (w, None), (None, b), (None, None)):
        ours = fusedops.std_norm(x, [4, 5], *parameters).flatten(2)
        w, b = (
            default if p is None else p.flatten()
            for p, default in zip(parameters, (1.0, 0.0), strict=True)
        )
        bounds.assert_typical(ours, bounds.norm("std_norm", x.flatten(2), w, b, EPS))


def test_every_mix_of_dtypes_is_taken():
    for x_dtype in DTYPES.values():
        tolerance = 1e-14 if x_dtype == torch.float64 else 8 * torch.finfo(x_dtype).eps
        for w_dtype in DTYPES.values():
            x, w, b = torch.randn(3, 33).to(x_dtype), torch.randn(33).to(w_dtype), torch.randn(33)
            ours, right = (f(x, [33], w, b) for f in (fusedops.std_norm, reference.std_norm))
            assert ours.dtype == x_dtype
            torch.testing.assert_close(ours.double(), right, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_a_row_of_one_element_is_nan_as_in_eager(dtype):
    x = torch.randn(3, 1, dtype=dtype, requires_grad=True)
    y = fusedops.std_norm(x, [1])
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert annotated_norm(x).isnan().all() and y.isnan().all() and gradient.isnan().all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cols", [5, 100])
def test_a_row_that_is_not_finite_becomes_nan_and_no_other_does(dtype, value, cols):
    x = torch.randn(3, cols).to(dtype)
    x[1, 2] = value
    y = fusedops.std_norm(x, [cols])
    assert y[1].isnan().all()
    assert torch.equal(y.isnan(), annotated_norm(x).isnan())


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_statistics_are_float32_or_better_and_right(dtype):
    x = torch.randn(2, 3, 500).to(dtype)
    _, mean, rstd = torch.ops.fusedops.std_norm(x, [500], None, None, 1e-2)
    assert mean.dtype == rstd.dtype == torch.promote_types(dtype, torch.float32)
    assert mean.shape == rstd.shape == (2, 3, 1)
    right = 1 / (x.double().std(-1, keepdim=True) + 1e-2)
    torch.testing.assert_close(mean.double(), x.double().mean(-1, True), rtol=0, atol=1e-6)
    torch.testing.assert_close(rstd.double(), right, rtol=2.5e-7, atol=0)  # 2 ulp


@pytest.mark.parametrize("cols", [31, 1000, 70_000])
def test_any_layout_and_any_batch_give_a_row_the_same_bits(cols):
    x = torch.randn(7, 2 * cols)
    whole = fusedops.std_norm(x[:, :cols], [cols])
    assert same_bits(whole, fusedops.std_norm(x[:, :cols].contiguous(), [cols]))
    assert same_bits(whole, fusedops.std_norm(x.T.contiguous().T[:, :cols], [cols]))
    for row in range(7):
        assert same_bits(whole[row], fusedops.std_norm(x[row, :cols], [cols]))


# --- derivatives --------------------------------------------------------------------------------


@pytest.mark.parametrize("parameters", range(3))
@pytest.mark.parametrize("shape", [[5], [4, 5]])
@pytest.mark.parametrize("eps", [1e-6, 1.0])
def test_gradcheck_and_gradgradcheck(parameters, shape, eps):
    sizes = [[3, 4, 5], shape, shape][: 1 + parameters]
    inputs = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes]

    def norm(x, w=None, b=None):
        return fusedops.std_norm(x, shape, w, b, eps)

    assert gradcheck(norm, inputs)
    assert gradgradcheck(norm, inputs)


def test_third_order_raises_instead_of_being_wrong():
    x = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(fusedops.std_norm(x, [5]).pow(3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.pow(2).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="std_norm has derivatives of first and second"):
        torch.autograd.grad(second.sum(), x)


def gradients(norm, tensors, grad):
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    norm(*leaves).backward(grad)
    return [leaf.grad for leaf in leaves]


def test_the_formula_of_the_gradients_is_what_autograd_makes_of_the_models_lines():
    x, w, b, grad = (torch.randn(size).double() for size in ((9, 40), (40,), (40,), (9, 40)))
    for scale in (1.0, 1e-6, 1e-9):
        by_autograd = gradients(annotated_norm, (x * scale, w, b), grad)
        formulas = bounds.norm_gradients("std_norm", x * scale, w, grad, EPS)
        for formula, found in zip(formulas, by_autograd, strict=True):
            exact = torch.from_numpy(formula.exact.astype("float64"))
            assert relative_error(found.cpu(), exact) <= 1e-14


def assert_typical_gradients(tensors, grad):
    shape = tensors[0].shape[-1:]
    ours = gradients(
        lambda *leaves: fusedops.std_norm(leaves[0], shape, *leaves[1:]), tensors, grad
    )
    wanted = bounds.norm_gradients("std_norm", *tensors[:2], grad, EPS)
    for actual, of, bound in zip(ours, tensors, wanted, strict=True):
        assert actual.dtype == of.dtype
        bounds.assert_typical(actual, bound.rounded_to(of.dtype))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize(
    "rows, cols",
    [(50, 3), (1, 40), (3, 7), (5, 31), (64, 33), (65, 128), (9000, 16), (70, 1023), (70, 1025)],
)
def test_gradients_are_within_their_bounds_and_typical(dtype, rows, cols):
    torch.manual_seed(rows)
    x, grad = random(2, rows, cols, dtype=dtype)
    w, b = random(2, cols, dtype=dtype)
    assert_typical_gradients((x, w, b), grad)


@pytest.mark.parametrize("kind", ["large mean", "tiny variance", "tiny variance about one"])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_gradients_are_within_their_bounds_on_hard_inputs(dtype, kind):
    if kind == "large mean" and dtype.itemsize == 2:
        kind = "trend"  # nothing of the rest is left beside 1e4
    torch.manual_seed(0)
    x, grad = INPUTS[kind](random(50, 300, dtype=torch.float64)), random(50, 300, dtype=dtype)
    assert_typical_gradients((x.to(dtype), *random(2, 300, dtype=dtype)), grad)


@pytest.mark.parametrize("deviation", [1e-5, 1e-6, 1e-8, 1e-10, 1e-14])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_lose_no_digits_where_eps_is_as_large_as_the_standard_deviation(dtype, deviation):
    torch.manual_seed(0)
    x, grad = random(2, 50, 300, dtype=dtype)
    assert_typical_gradients((x * deviation, *random(2, 300, dtype=dtype)), grad)


@pytest.mark.parametrize("value", [0.0, 0.7, 1e3])
@pytest.mark.parametrize("cols", [40, 1000])
def test_the_gradient_of_a_constant_row_is_eagers(value, cols):
    x, grad = torch.full((3, cols), value, dtype=torch.float64), torch.randn(3, cols).double()
    for dtype in (torch.float64, torch.float32):
        ours, theirs = (
            gradients(norm, [x.to(to)], grad.to(dtype).to(to))[0]
            for norm, to in (
                (lambda x: fusedops.std_norm(x, [cols]), dtype),
                (lambda x: reference.std_norm(x, [cols]), torch.float64),
            )
        )
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=1e6 * 1e-6)


def test_second_derivatives_of_a_constant_row_are_finite():
    x = torch.ones(2, 8, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(fusedops.std_norm(x, [8]).pow(2).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    assert second.isfinite().all()


@pytest.mark.parametrize("mask", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (0, 1, 1), (1, 0, 1)])
def test_only_the_gradients_that_are_wanted_are_computed_and_they_are_the_same(mask):
    op = torch.ops.fusedops.std_norm_backward
    x, grad = torch.randn(2, 70, 50)
    w, b = torch.randn(2, 50)
    _, mean, rstd = torch.ops.fusedops.std_norm(x, [50], w, b, EPS)
    full = op(grad, x, [50], mean, rstd, w, b, [True] * 3, EPS)
    some = op(grad, x, [50], mean, rstd, w, b, [bool(wanted) for wanted in mask], EPS)
    for wanted, part, whole in zip(mask, some, full, strict=True):
        assert same_bits(part, whole) if wanted else part.numel() == 0


def test_only_input_parameters_and_statistics_are_kept_for_the_backward():
    x, w, b = (torch.randn(size, requires_grad=True) for size in ((16, 64), (64,), (64,)))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        fusedops.std_norm(x, [64], w, b)
    assert sum(t.numel() for t in kept) == x.numel() + 2 * 64 + 2 * 16


def test_no_rows_give_an_empty_output_and_zero_parameter_gradients():
    w, b = torch.ones(8, requires_grad=True), torch.ones(8, requires_grad=True)
    y = fusedops.std_norm(torch.randn(2, 0, 8), [8], w, b)
    y.sum().backward()
    assert y.shape == (2, 0, 8)
    assert w.grad.tolist() == b.grad.tolist() == [0.0] * 8
