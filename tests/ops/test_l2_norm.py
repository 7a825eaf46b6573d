"""l2_norm, division by the Euclidean norm: values, derivatives, and the tensors kept for the
backward."""

import bounds
import pytest
import torch
import torch.nn.functional as F
from oracle import DTYPES, relative_error, same_bits
from test_layer_norm_values import INPUTS, SYSTEMATIC
from torch.autograd import gradcheck, gradgradcheck

import fusedops
from fusedops import reference

EPS = 1e-12
COLS = [1, 2, 3, 7, 8, 9, 31, 32, 33, 64, 127, 768, 1023, 1024, 1025, 8191, 8193, 65537]


def random(*shape, dtype):
    return torch.randn(*shape, dtype=torch.float64).to(dtype)


def of_eager(x, w=None, eps=EPS):
    normalized = F.normalize(x, dim=-1, eps=eps)
    return normalized if w is None else normalized * w


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cols", COLS)
def test_errors_are_within_their_bound_and_typical(dtype, cols):
    torch.manual_seed(cols)
    x = random(max(4, 100_000 // cols), cols, dtype=dtype)
    w = random(cols, dtype=dtype)
    bounds.assert_typical(fusedops.l2_norm(x, [cols], w), bounds.norm("l2_norm", x, w, eps=EPS))


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cols", [40, 1000, 20000])
def test_errors_are_within_their_bound_on_hard_inputs(dtype, kind, cols):
    if kind == "large" and dtype == torch.float16:
        kind = "trend"  # 1e15 is not a float16
    torch.manual_seed(0)
    x = INPUTS[kind](torch.randn(100_000 // cols, cols)).to(dtype)
    hold = bounds.assert_within if kind in SYSTEMATIC else bounds.assert_typical
    hold(fusedops.l2_norm(x, [cols]), bounds.norm("l2_norm", x, eps=EPS))


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-6, 1e-9, 1e-15, 1e-25])
@pytest.mark.parametrize("eps", [1e-3, 1e-6, 1e-12])
@pytest.mark.parametrize("cols", [5, 300])
def test_eps_is_the_least_divisor_whichever_is_larger(size, eps, cols):
    x = torch.randn(32, cols) * size
    ours = fusedops.l2_norm(x, [cols], eps=eps)
    bounds.assert_typical(ours, bounds.norm("l2_norm", x, eps=eps))


def test_a_row_of_zeros_is_zero_and_without_eps_nan_as_in_eager():
    for eps, is_nan in ((1e-12, False), (0.0, True)):
        y = fusedops.l2_norm(torch.zeros(2, 9), [9], eps=eps)
        assert torch.equal(y.isnan(), of_eager(torch.zeros(2, 9), eps=eps).isnan())
        assert y.isnan().all() if is_nan else torch.equal(y, torch.zeros(2, 9))


def test_several_normalized_dimensions_with_and_without_a_weight():
    x, w = torch.randn(6, 3, 4, 5), torch.randn(4, 5)
    for weight in (w, None):
        ours = fusedops.l2_norm(x, [4, 5], weight).flatten(2)
        flat = 1.0 if weight is None else weight.flatten()
        bounds.assert_typical(ours, bounds.norm("l2_norm", x.flatten(2), flat, eps=EPS))


def test_every_mix_of_dtypes_is_taken():
    for x_dtype in DTYPES.values():
        tolerance = 1e-14 if x_dtype == torch.float64 else 8 * torch.finfo(x_dtype).eps
        for w_dtype in DTYPES.values():
            x, w = torch.randn(3, 33).to(x_dtype), torch.randn(33).to(w_dtype)
            ours, right = (f(x, [33], w) for f in (fusedops.l2_norm, reference.l2_norm))
            assert ours.dtype == x_dtype
            torch.testing.assert_close(ours.double(), right, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cols", [5, 100])
def test_a_nan_spoils_its_row_alone(dtype, cols):
    x = torch.randn(3, cols).to(dtype)
    x[1, 2] = float("nan")
    y = fusedops.l2_norm(x, [cols])
    assert torch.equal(y.isnan(), of_eager(x).isnan()) and y[1].isnan().all()


@pytest.mark.parametrize("value", [float("inf"), float("-inf")])
@pytest.mark.parametrize("cols", [5, 100])
def test_an_infinity_makes_the_rest_of_its_row_zero_as_in_eager(value, cols):
    x = torch.randn(3, cols)
    x[1, 2] = value
    y, eager = fusedops.l2_norm(x, [cols]), of_eager(x)
    torch.testing.assert_close(y, eager, equal_nan=True)
    assert y[1, 2].isnan() and y[1].nansum() == 0


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_the_statistic_is_float32_or_better_and_right(dtype):
    x = torch.randn(2, 3, 500).to(dtype)
    _, rstd = torch.ops.fusedops.l2_norm(x, [500], None, 1e-2)
    assert rstd.dtype == torch.promote_types(dtype, torch.float32) and rstd.shape == (2, 3, 1)
    right = 1 / x.double().norm(dim=-1, keepdim=True)
    torch.testing.assert_close(rstd.double(), right, rtol=2.5e-7, atol=0)  # 2 ulp


@pytest.mark.parametrize("cols", [31, 1000, 70_000])
def test_any_layout_and_any_batch_give_a_row_the_same_bits(cols):
    x = torch.randn(7, 2 * cols)
    whole = fusedops.l2_norm(x[:, :cols], [cols])
    assert same_bits(whole, fusedops.l2_norm(x[:, :cols].contiguous(), [cols]))
    assert same_bits(whole, fusedops.l2_norm(x.T.contiguous().T[:, :cols], [cols]))
    for row in range(7):
        assert same_bits(whole[row], fusedops.l2_norm(x[row, :cols], [cols]))


# --- derivatives --------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [[5], [4, 5]])
@pytest.mark.parametrize("eps", [1e-12, 2.0, 1e3])  # all norms are above, some, none
def test_gradcheck_and_gradgradcheck(weighted, shape, eps):
    sizes = [[3, 4, 5], shape][: 1 + weighted]
    inputs = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes]

    def norm(x, w=None):
        return fusedops.l2_norm(x, shape, w, eps)

    assert gradcheck(norm, inputs)
    assert gradgradcheck(norm, inputs)


def test_second_derivatives_are_eagers_also_where_eps_is_the_divisor():
    x, w = torch.randn(6, 8).double(), torch.randn(8).double()
    x[::2] *= 1e-4
    found = []
    for norm in (lambda x, w: fusedops.l2_norm(x, [8], w, 1e-2), lambda x, w: of_eager(x, w, 1e-2)):
        leaves = [t.clone().requires_grad_() for t in (x, w)]
        first = torch.autograd.grad(norm(*leaves).sin().sum(), leaves, create_graph=True)
        found.append(torch.autograd.grad(sum(f.cos().sum() for f in first), leaves))
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


def test_third_order_raises_instead_of_being_wrong():
    x = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(fusedops.l2_norm(x, [5]).pow(3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.pow(2).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="l2_norm has derivatives of first and second"):
        torch.autograd.grad(second.sum(), x)


def gradients(norm, tensors, grad):
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    norm(*leaves).backward(grad)
    return [leaf.grad for leaf in leaves]


def test_the_formula_of_the_gradients_is_what_autograd_makes_of_eager():
    x, w, grad = (torch.randn(size).double() for size in ((9, 40), (40,), (9, 40)))
    for scale in (1.0, 1e-6, 1e-15):
        by_autograd = gradients(of_eager, (x * scale, w), grad)
        formulas = bounds.norm_gradients("l2_norm", x * scale, w, grad, EPS)
        for formula, found in zip(formulas, by_autograd, strict=False):  # there is no bias
            exact = torch.from_numpy(formula.exact.astype("float64"))
            assert relative_error(found, exact) <= 1e-14


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize(
    "rows, cols",
    [(50, 3), (1, 40), (3, 7), (5, 31), (64, 33), (65, 128), (9000, 16), (70, 1023), (70, 1025)],
)
def test_gradients_are_within_their_bounds_and_typical(dtype, rows, cols):
    torch.manual_seed(rows)
    x, grad = random(2, rows, cols, dtype=dtype)
    w = random(cols, dtype=dtype)
    x[::3] *= 1e-3  # below eps
    ours = gradients(lambda x, w: fusedops.l2_norm(x, [cols], w, 0.1), (x, w), grad)
    wanted = bounds.norm_gradients("l2_norm", x, w, grad, 0.1)
    for actual, of, bound in zip(ours, (x, w), wanted, strict=False):  # there is no bias
        assert actual.dtype == of.dtype
        bounds.assert_typical(actual, bound.rounded_to(of.dtype))


@pytest.mark.parametrize("mask", [(True, False), (False, True)])
def test_only_the_gradients_that_are_wanted_are_computed_and_they_are_the_same(mask):
    op = torch.ops.fusedops.l2_norm_backward
    x, grad = torch.randn(2, 70, 50)
    w = torch.randn(50)
    _, rstd = torch.ops.fusedops.l2_norm(x, [50], w, EPS)
    full, some = (op(grad, x, [50], rstd, w, wanted, EPS) for wanted in ([True, True], mask))
    for wanted, part, whole in zip(mask, some, full, strict=True):
        assert same_bits(part, whole) if wanted else part.numel() == 0


def test_only_input_weight_and_statistic_are_kept_for_the_backward():
    x, w = torch.randn(16, 64, requires_grad=True), torch.randn(64, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        fusedops.l2_norm(x, [64], w)
    assert sum(t.numel() for t in kept) == x.numel() + 64 + 16


def test_no_rows_give_an_empty_output_and_zero_gradients_of_the_weight():
    w = torch.ones(8, requires_grad=True)
    y = fusedops.l2_norm(torch.randn(2, 0, 8), [8], w)
    y.sum().backward()
    assert y.shape == (2, 0, 8) and w.grad.tolist() == [0.0] * 8


# --- compiled calls -----------------------------------------------------------------------------


def test_a_compiled_call_has_the_values_and_gradients_of_an_eager_one():
    def norm(x, w):
        return fusedops.l2_norm(x, [32], w)

    x, w, grad = torch.randn(5, 32), torch.randn(32), torch.randn(5, 32)
    compiled = torch.compile(norm, backend="aot_eager", fullgraph=True)
    assert same_bits(compiled(x, w), norm(x, w))
    pairs = zip(gradients(compiled, (x, w), grad), gradients(norm, (x, w), grad), strict=True)
    assert all(same_bits(ours, eager) for ours, eager in pairs)


def test_opcheck_holds():
    x, w = torch.randn(4, 6, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    torch.library.opcheck(torch.ops.fusedops.l2_norm.default, (x, [8], w, 1e-6))
    _, rstd = torch.ops.fusedops.l2_norm(x.detach(), [8], None, 1e-6)
    arguments = (torch.randn_like(x), x, [8], rstd, w, [True, True], 1e-6)
    torch.library.opcheck(torch.ops.fusedops.l2_norm_backward.default, arguments)


def test_vmap_over_the_rows_is_one_call_for_all_of_them():
    x = torch.randn(3, 4, 8)
    mapped = torch.vmap(lambda x: fusedops.l2_norm(x, [8]))(x)
    assert same_bits(mapped, fusedops.l2_norm(x, [8]))
