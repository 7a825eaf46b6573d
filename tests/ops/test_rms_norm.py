"""rms_norm in its four variants: values, derivatives, and the tensors kept for the backward."""

import bounds
import pytest
import torch
import torch.nn.functional as F
from oracle import DTYPES, same_bits, ulp_error
from torch.autograd import gradcheck, gradgradcheck

import fusedops
from fusedops import reference

EPS = 1e-6
COLS = [1, 2, 7, 8, 9, 31, 32, 33, 64, 127, 768, 1023, 1025, 8191, 8193, 65537]


def normalized(x):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)


def llama(x, w):
    return w * normalized(x).to(x.dtype)


def t5(x, w):
    value = normalized(x)
    return w * (value.to(w.dtype) if w.dtype in (torch.float16, torch.bfloat16) else value)


def gemma(x, w):
    return (normalized(x) * (1.0 + w.to(normalized(x).dtype))).to(x.dtype)


def plain(x, w):
    return F.rms_norm(x, x.shape[-1:], w, EPS)


VARIANTS = {"torch": plain, "llama": llama, "t5": t5, "gemma": gemma}


def weight_in_float64(variant, w):
    return w.double() + (variant == "gemma")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cols", COLS)
def test_errors_are_within_their_bound_and_typical(variant, dtype, cols):
    torch.manual_seed(cols)
    x, w = torch.randn(max(4, 100_000 // cols), cols).to(dtype), torch.randn(cols).to(dtype)
    ours = fusedops.rms_norm(x, [cols], w, EPS, variant=variant)
    wanted = bounds.norm(
        "rms_norm",
        x,
        weight_in_float64(variant, w),
        eps=EPS,
        rounds_normalized=variant in ("llama", "t5"),
    )
    bounds.assert_typical(ours, wanted)


@pytest.mark.parametrize("variant", ["llama", "t5"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_normalised_value_is_rounded_before_the_weight(variant, dtype):
    """A weight just above 1 tells the roundings apart. At most one element in a thousand differs,
    where float32 sums in another order round to the other side."""
    x, w = torch.randn(500, 256).to(dtype), (1 + torch.rand(256)).to(dtype)
    ours = fusedops.rms_norm(x, [256], w, EPS, variant=variant)
    theirs = VARIANTS[variant](x, w)
    assert (ours != theirs).double().mean() < 1e-3
    assert (ours != fusedops.rms_norm(x, [256], w, EPS)).double().mean() > 0.05


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("w_dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("x_dtype", DTYPES.values(), ids=DTYPES)
def test_every_mix_of_dtypes_gives_the_models_dtype(variant, x_dtype, w_dtype):
    x, w = torch.randn(5, 33).to(x_dtype), torch.randn(33).to(w_dtype)
    ours = fusedops.rms_norm(x, [33], w, EPS, variant=variant)
    # torch gives the input's dtype, with a warning where the weight's is another.
    theirs = (gemma if variant == "torch" else VARIANTS[variant])(x, w)
    assert ours.dtype == theirs.dtype
    exact = reference.rms_norm(x, [33], weight_in_float64(variant, w), EPS)
    coarsest = max((x_dtype, w_dtype, ours.dtype), key=lambda dtype: torch.finfo(dtype).eps)
    tolerance = 4 * torch.finfo(coarsest).eps if coarsest != torch.float64 else 1e-14
    torch.testing.assert_close(ours.double(), exact, rtol=tolerance, atol=tolerance)


def test_eps_is_by_default_torchs():
    for dtype in DTYPES.values():
        x = (torch.randn(3, 40) * 1e-4).to(dtype)
        tolerance = 4 * torch.finfo(dtype).eps
        actual, expected = fusedops.rms_norm(x, [40]), F.rms_norm(x, [40])
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=0)


def test_several_normalized_dimensions():
    x, w = torch.randn(6, 3, 4, 5), torch.randn(4, 5)
    exact = reference.rms_norm(x, [4, 5], w, EPS)
    assert ulp_error(fusedops.rms_norm(x, [4, 5], w, EPS), exact, floor=1.0) <= 2.0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_is_what_torch_gives(value):
    x = torch.randn(3, 50)
    x[1, 2] = value
    torch.testing.assert_close(
        fusedops.rms_norm(x, [50]), F.rms_norm(x, [50]), equal_nan=True, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("scale", [1e-20, 1e-6, 1e4, 1e15, 1e30])
@pytest.mark.parametrize("cols", [40, 5000])
def test_rows_of_any_size_are_within_their_bound(scale, cols):
    x = torch.randn(8, cols) * scale
    ours = fusedops.rms_norm(x, [cols], None, EPS)
    bounds.assert_typical(ours, bounds.norm("rms_norm", x, eps=EPS))


@pytest.mark.parametrize("cols", [40, 5000])
def test_rows_whose_squares_overflow_are_right_where_eagers_are_zero(cols):
    x = torch.randn(8, cols) * 1e30
    assert F.rms_norm(x, [cols]).abs().max() == 0
    assert ulp_error(fusedops.rms_norm(x, [cols]), reference.rms_norm(x, [cols]), 1.0) <= 3.0


def test_a_row_is_the_same_alone_and_in_any_batch():
    x, w = torch.randn(64, 1000), torch.randn(1000)
    whole = fusedops.rms_norm(x, [1000], w)
    assert same_bits(whole[7:8], fusedops.rms_norm(x[7:8], [1000], w))


# --- derivatives --------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", [[5], [4, 5]])
@pytest.mark.parametrize("affine", [False, True])
def test_gradcheck_and_gradgradcheck(variant, shape, affine):
    inputs = [torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)]
    inputs += [torch.randn(shape, dtype=torch.float64, requires_grad=True)] * affine

    def norm(x, w=None):
        return fusedops.rms_norm(x, shape, w, 1e-3, variant=variant)

    assert gradcheck(norm, inputs)
    assert gradgradcheck(norm, inputs)


def test_third_order_raises_instead_of_being_wrong():
    x = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(fusedops.rms_norm(x, [5]).pow(3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.pow(2).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="rms_norm has derivatives of first and second"):
        torch.autograd.grad(second.sum(), x)


def gradients(norm, x, w, grad):
    leaves = [t.detach().clone().requires_grad_() for t in (x, w)]
    norm(*leaves).backward(grad)
    return [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize(
    "rows, cols", [(1, 1), (1, 40), (3, 7), (64, 33), (65, 128), (300, 100), (9000, 16), (3, 5000)]
)
def test_gradients_are_within_their_bounds_and_typical(variant, dtype, rows, cols):
    torch.manual_seed(rows)
    x, grad = torch.randn(rows, cols).to(dtype), torch.randn(rows, cols).to(dtype)
    w = torch.randn(cols).to(dtype)

    ours = gradients(lambda x, w: fusedops.rms_norm(x, [cols], w, EPS, variant=variant), x, w, grad)
    wanted = bounds.norm_gradients("rms_norm", x, weight_in_float64(variant, w), grad, EPS)
    for actual, bound in zip(ours, wanted[:2], strict=True):
        assert actual.dtype == dtype
        bounds.assert_typical(actual, bound.rounded_to(dtype))


def test_a_frozen_weight_gets_no_gradient_and_no_rows_give_zeros():
    x, w = torch.randn(4, 8, requires_grad=True), torch.randn(8)
    fusedops.rms_norm(x, [8], w).sum().backward()
    assert w.grad is None and x.grad is not None
    w = torch.ones(8, requires_grad=True)
    fusedops.rms_norm(torch.randn(0, 8), [8], w).sum().backward()
    assert w.grad.tolist() == [0.0] * 8


def test_only_input_weight_and_rstd_are_kept_for_the_backward():
    x, w = torch.randn(16, 64, requires_grad=True), torch.randn(64, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        fusedops.rms_norm(x, [64], w)
    assert sum(t.numel() for t in kept) == x.numel() + w.numel() + 16


@pytest.mark.parametrize("variant", ["llama", "t5"])
def test_a_weight_of_another_dtype_gets_the_same_gradient_on_any_number_of_threads(variant):
    x = torch.randn(200_000, 1, requires_grad=True)
    weight = torch.randn(1, dtype=torch.bfloat16).float().bfloat16().requires_grad_()

    def gradients(threads):
        torch.set_num_threads(threads)
        y = fusedops.rms_norm(x, [1], weight, EPS, variant=variant)
        return torch.autograd.grad(y, (x, weight), torch.ones_like(y))

    alone, *shared = [gradients(threads) for threads in (1, 2, 3)]
    for found in shared:
        assert all(map(same_bits, found, alone))


@pytest.mark.parametrize("variant", ["llama", "t5"])
def test_a_weight_of_another_dtype_has_derivatives_of_both_orders(variant):
    """In float64 but for the input, which float32 holds exactly."""
    x = torch.randn(4, 3).double().requires_grad_()
    weight = torch.randn(3, requires_grad=True)

    def of_input(x):
        return fusedops.rms_norm(x, [3], weight.detach(), 1e-5, variant=variant)

    assert gradcheck(of_input, x) and gradgradcheck(of_input, x)
    y = fusedops.rms_norm(x, [3], weight, 1e-5, variant=variant)
    (once,) = torch.autograd.grad(y.square().sum(), weight, create_graph=True)
    by_weight, by_input = torch.autograd.grad(once.sum(), (weight, x))

    def reference(w, x):
        n = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
        return (2 * w * n * n).sum(0).sum()

    wide = weight.detach().double().requires_grad_()
    expected = torch.autograd.grad(reference(wide, x), (wide, x))
    torch.testing.assert_close(
        once.double(), torch.autograd.grad(reference(wide, x), wide)[0] * wide
    )
    torch.testing.assert_close((by_weight.double(), by_input), expected)


@pytest.mark.parametrize("norm", ["layer", "std", "rms"])
def test_a_norm_over_every_dimension_has_second_derivatives(norm):
    """There is one row, and no dimension over which to sum the weight's gradient."""
    x, w, b = (torch.randn(2, 3, dtype=torch.double, requires_grad=True) for _ in range(3))
    parameters = (w,) if norm == "rms" else (w, b)
    function = getattr(fusedops, f"{norm}_norm")
    assert gradgradcheck(lambda x, *p: function(x, [2, 3], *p), (x, *parameters))


def test_a_weight_of_another_dtype_has_second_derivatives_for_a_single_row():
    x, w = torch.randn(3).double().requires_grad_(), torch.randn(3, requires_grad=True)
    y = fusedops.rms_norm(x, [3], w, 1e-5, variant="llama")
    (by_weight,) = torch.autograd.grad(y.square().sum(), w, create_graph=True)
    (twice,) = torch.autograd.grad(by_weight.sum(), w)
    assert by_weight.shape == twice.shape == (3,)
