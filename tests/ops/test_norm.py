"""layer_norm, rms_norm in its variants, std_norm and l2_norm: values, derivatives, and the tensors
kept for the backward. A claim that holds for several norms is made once, for all of them."""

from functools import partial
from itertools import product
from typing import NamedTuple

import bounds
import pytest
import torch
import torch.nn.functional as F
from norm_kinds import KINDS
from oracle import DTYPES, annotated_norm, assert_same_on_threads, same_bits
from torch.autograd import gradcheck, gradgradcheck

import fusedops
from fusedops import reference

ops = torch.ops.fusedops
COLS = [
    *[1, 2, 3, 7, 8, 9, 16, 17, 31, 32, 33, 64, 65, 127, 768, 1023, 1024, 1025],
    *[8191, 8192, 8193, 65537],
]

INPUTS = {
    "normal": lambda x: x,
    "large mean": lambda x: x + 1e4,
    "tiny variance": lambda x: x * 1e-6,
    "tiny variance about one": lambda x: x * 1e-3 + 1,
    "constant": lambda x: torch.full_like(x, 0.7),
    "outlier first": lambda x: torch.cat([torch.full_like(x[:, :1], 300.0), x[:, 1:]], 1),
    "trend": lambda x: x + torch.linspace(-300, 300, x.shape[1]),
    "large": lambda x: x * 1e15,
}
#: Kinds of rows whose rounding errors are not random.
SYSTEMATIC = {"constant", "trend", "outlier first"}


def normalized(x, eps):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)


def llama(x, w, eps):
    return w * normalized(x, eps).to(x.dtype)


def t5(x, w, eps):
    value = normalized(x, eps)
    return w * (value.to(w.dtype) if w.dtype in (torch.float16, torch.bfloat16) else value)


def gemma(x, w, eps):
    value = normalized(x, eps)
    return (value * (1.0 + w.to(value.dtype))).to(x.dtype)


#: The norms of the last dimension as torch and models compute them.
EAGER = {
    "layer": lambda x, w=None, b=None, eps=1e-5: F.layer_norm(x, x.shape[-1:], w, b, eps),
    "rms": lambda x, w=None, eps=None: F.rms_norm(x, x.shape[-1:], w, eps),
    "std": annotated_norm,
    "l2": lambda x, w=1.0, eps=1e-12: F.normalize(x, dim=-1, eps=eps) * w,
    "llama": llama,
    "t5": t5,
    "gemma": gemma,
}
#: The default eps, where it is the same for every dtype.
EPS = {"layer": 1e-5, "std": 1e-6, "l2": 1e-12}


def random(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=torch.float64).to(dtype)


def is_on_gpu():
    """Whether the tests run with a GPU's tensors (tests/cuda)."""
    return torch.get_default_device().type == "cuda"


class Norm(NamedTuple):
    """A norm of this package as a function of rows and parameters, and its error bounds."""

    kind: str
    variant: str = ""

    @property
    def name(self):
        return f"{self.kind}_norm"

    @property
    def has_mean(self):
        return KINDS[self.kind].has_mean

    def __call__(self, x, *parameters, dims=1, **options):
        options |= {"variant": self.variant} if self.variant else {}
        return getattr(fusedops, self.name)(x, x.shape[-dims:], *parameters, **options)

    def eager(self, x, *parameters, **options):
        return EAGER[self.variant or self.kind](x, *parameters, **options)

    def exact(self, x, **options):
        return getattr(reference, self.name)(x, x.shape[-1:], **options)

    def statistics(self, x, eps):
        """The mean, where the norm has one, and the reciprocal of the scale."""
        _, *statistics = getattr(ops, self.name)(x, x.shape[-1:], *[None] * self.count, eps)
        return statistics

    @property
    def count(self):
        """How many parameters there are: a weight and, beside a mean, a bias."""
        return 1 + self.has_mean

    def parameters(self, *shape, dtype=torch.float32):
        return [random(*shape, dtype=dtype) for _ in range(self.count)]

    def eps(self, dtype):
        return EPS.get(self.kind, torch.finfo(bounds.compute_dtype(dtype)).eps)

    def bound(self, x, weight=1.0, bias=0.0, eps=None):
        eps = self.eps(x.dtype) if eps is None else eps
        rounds = self.variant in ("llama", "t5")
        return bounds.norm(
            self.name, x, self.offset(weight), bias, eps=eps, rounds_normalized=rounds
        )

    def gradient_bounds(self, x, weight, grad, eps=None):
        eps = self.eps(x.dtype) if eps is None else eps
        return bounds.norm_gradients(self.name, x, self.offset(weight), grad, eps)

    def offset(self, weight):
        return 1.0 + weight.double() if self.variant == "gemma" else weight


#: Every norm, and every variant of rms_norm.
NORMS = {f"{kind}_norm": Norm(kind) for kind in KINDS}
VARIANTS = {variant: Norm("rms", variant) for variant in ("llama", "t5", "gemma")}
CENTERED = {name: norm for name, norm in NORMS.items() if norm.has_mean}
every_kind = pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
every_variant = pytest.mark.parametrize("norm", (NORMS | VARIANTS).values(), ids=NORMS | VARIANTS)
every_centered = pytest.mark.parametrize("norm", CENTERED.values(), ids=CENTERED)
every_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)


# --- values ---------------------------------------------------------------------------------------


@every_variant
@every_dtype
@pytest.mark.parametrize("cols", COLS)
def test_errors_are_within_their_bound_and_typical(norm, dtype, cols):
    torch.manual_seed(cols)
    x = random(max(4, 100_000 // cols), cols, dtype=dtype)
    parameters = norm.parameters(cols, dtype=dtype)
    bounds.assert_typical(norm(x, *parameters), norm.bound(x, *parameters))


@every_kind
@every_dtype
@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("cols", [40, 1000, 20000])
def test_errors_are_within_their_bound_on_hard_inputs(norm, dtype, name, cols):
    if name == "large" and dtype == torch.float16:
        name = "trend"  # 1e15 is not a float16
    x = INPUTS[name](torch.randn(100_000 // cols, cols)).to(dtype)
    hold = bounds.assert_within if name in SYSTEMATIC else bounds.assert_typical
    hold(norm(x), norm.bound(x))


@every_kind
@every_dtype
def test_every_combination_of_parameters_over_several_dimensions(norm, dtype):
    x, every = random(300, 3, 40, dtype=dtype), norm.parameters(3, 40, dtype=dtype)
    for given in product([False, True], repeat=norm.count):
        parameters = [p if own else None for p, own in zip(every, given, strict=True)]
        defaults = zip(parameters, (1.0, 0.0), strict=False)
        flat = [default if p is None else p.flatten() for p, default in defaults]
        ours = norm(x, *parameters, dims=2)
        bounds.assert_typical(ours.flatten(1), norm.bound(x.flatten(1), *flat))


@every_kind
@every_dtype
@pytest.mark.parametrize("cols", [31, 64, 100, 70_000])
def test_parameters_of_any_dtype_keep_their_digits(norm, dtype, cols):
    x = random(6, cols, dtype=dtype)
    for dtypes in product(DTYPES.values(), repeat=norm.count):
        parameters = [torch.randn(cols).to(dtype) for dtype in dtypes]
        ours = norm(x, *parameters)
        assert ours.dtype == dtype
        bounds.assert_typical(ours, norm.bound(x, *parameters))


@every_kind
@pytest.mark.parametrize("eps", [0.0, 1e-12, 1e-8, 1e-6, 1e-3, 1.0])
@pytest.mark.parametrize("cols", [5, 300])
@pytest.mark.parametrize("mean", [0.0, 1.0])
def test_eps_counts_beside_values_of_any_size(norm, eps, cols, mean):
    sizes = (1.0, 1e-3, 1e-4, 1e-6, 1e-9, 1e-15, 1e-25)
    # A GPU squares in float32, where squares of less than 1e-22 are 0.
    for size in sizes[:-1] if is_on_gpu() else sizes:
        x = (random(32, cols, dtype=torch.float64) * size + mean).float()
        bounds.assert_typical(norm(x, eps=eps), norm.bound(x, eps=eps))


@every_kind
@every_dtype
def test_statistics_are_float32_or_better_and_right(norm, dtype):
    x = random(2, 3, 500, dtype=dtype)
    exact, statistics = x.double(), norm.statistics(x, 1e-2)
    mean = exact.mean(-1, keepdim=True) if norm.has_mean else 0.0
    squares = (exact - mean).square().sum(-1, keepdim=True)
    rstd = 1 / torch.from_numpy(KINDS[norm.kind].scale(squares.cpu().numpy(), 500, 1e-2))
    for statistic in statistics:
        assert statistic.dtype == torch.promote_types(dtype, torch.float32)
        assert statistic.shape == (2, 3, 1)
    torch.testing.assert_close(statistics[-1].cpu().double(), rstd, rtol=2.5e-7, atol=0)  # 2 ulp
    if norm.has_mean:
        torch.testing.assert_close(statistics[0].double(), mean, rtol=0, atol=1e-6)


@every_kind
@pytest.mark.parametrize("scale", [1e30, 1e38])
@pytest.mark.parametrize("cols", [40, 5000])
def test_rows_whose_squares_overflow_are_right_where_eagers_are_not(norm, scale, cols):
    x = torch.rand(8, cols) * scale
    x = x / cols if norm.kind == "l2" else x  # The norm itself is a float.
    wanted = norm.bound(x)
    bounds.assert_within(norm(x), wanted)
    if norm.kind != "std":  # torch.std squares in float64 where rows are short.
        with pytest.raises(AssertionError):
            bounds.assert_within(norm.eager(x), wanted)


@every_centered
@pytest.mark.parametrize("cols", [5, 100])
@pytest.mark.parametrize("eps", [1e-5, 1e-25])  # the second is smaller than squares of a float
def test_a_constant_row_of_large_numbers_is_zero_as_in_float64(norm, cols, eps):
    x = torch.tensor([1e10, 3e38])[:, None].expand(2, cols)
    assert not norm(x, eps=eps).any() and not norm.exact(x, eps=eps).any()


@every_kind
@every_dtype
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("cols", [5, 100, 100_000])
def test_a_row_that_is_not_finite_is_eagers_and_spoils_no_other(norm, dtype, value, cols):
    x = random(3, cols, dtype=dtype)
    x[1, 2] = value
    # In float64, torch.std of 100,000 columns is itself 8e-15 off.
    y, tolerance = norm(x), max(2 * torch.finfo(dtype).eps, 2e-14)
    # On a CPU: eager's rms_norm on a GPU makes a row with an infinity NaN.
    eager = norm.eager(x.double().cpu(), eps=norm.eps(dtype)).to(x.device)
    torch.testing.assert_close(y.double(), eager, rtol=tolerance, atol=tolerance, equal_nan=True)
    is_all_nan = norm.has_mean or value != value
    assert y[1].isnan().sum() == (cols if is_all_nan else 1)


@pytest.mark.filterwarnings("ignore:std.*degrees of freedom")  # eager's std of no elements
@every_variant
@pytest.mark.parametrize("shape", [(2, 0, 8), (3, 0), (0, 0)])
def test_without_elements_output_and_gradients_are_eagers(norm, shape):
    ours, eager = partial(norm, eps=EPS["layer"]), partial(norm.eager, eps=EPS["layer"])
    given = torch.randn(shape), *norm.parameters(shape[-1])
    results = ([of(*given), *gradients(of, given, given[0])] for of in (ours, eager))
    torch.testing.assert_close(*results, rtol=0, atol=0)


@every_kind
def test_statistics_of_rows_without_elements_are_torchs(norm):
    """A mean is 0, and rstd NaN, as of torch.native_layer_norm; an l2 norm is eps."""
    *means, rstd = norm.statistics(torch.empty(3, 0), 0.25)
    assert not any(mean.any() for mean in means)
    assert (rstd == 4).all() if norm.kind == "l2" else rstd.isnan().all()


def test_an_offset_of_a_weight_that_is_not_given_changes_nothing():
    x, grad = torch.randn(2, 5, 40)
    with_offset, without = (ops.rms_norm(x, [40], None, 1e-6, offset) for offset in (1.0, 0.0))
    assert all(map(same_bits, with_offset, without))
    given = grad, x, [40], without[1], None, [True, False]
    with_offset, without = (ops.rms_norm_backward(*given, offset)[0] for offset in (1.0, 0.0))
    assert same_bits(with_offset, without)


@every_kind
@pytest.mark.parametrize("cols", [31, 1000, 70_000])
def test_any_layout_and_any_batch_give_a_row_the_same_bits(norm, cols):
    x, parameters = torch.randn(3, 2 * cols), norm.parameters(cols)
    whole = norm(x[:, :cols], *parameters)
    assert same_bits(whole, norm(x[:, :cols].contiguous(), *parameters))
    assert same_bits(whole, norm(x.T.contiguous().T[:, :cols], *parameters))
    for row in range(3):
        assert same_bits(whole[row], norm(x[row, :cols], *parameters))


# --- derivatives ----------------------------------------------------------------------------------


@every_variant
@pytest.mark.parametrize("dims", [1, 2, 3])  # the last leaves one row
@pytest.mark.parametrize("given", ["", "weight", "bias", "weight bias"])
@pytest.mark.parametrize("eps", [1e-12, 2.0, 1e3])  # all norms are above, some, none
def test_gradcheck_and_gradgradcheck(norm, dims, given, eps):
    x = torch.randn(2, 2, 3, dtype=torch.float64)
    names = [name for name in given.split() if norm.has_mean or name == "weight"]
    parameters = norm.parameters(*x.shape[-dims:], dtype=torch.float64)[: len(names)]

    def function(x, *parameters):
        return norm(x, dims=dims, eps=eps, **dict(zip(names, parameters, strict=True)))

    inputs = [t.requires_grad_() for t in (x, *parameters)]
    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs)


NORMS_OF_ROWS = {
    **{name: lambda x, of=norm: of(x) for name, norm in NORMS.items()},
    "add_layer_norm": lambda x: fusedops.add_layer_norm(x, x, [5])[0],
    "add_rms_norm": lambda x: fusedops.add_rms_norm(x, x, [5])[0],
    "spatial_layer_norm": lambda x: fusedops.spatial_layer_norm(x, 0),
    "spatial_rms_norm": lambda x: fusedops.spatial_rms_norm(x, 0),
}


@pytest.mark.parametrize("name", NORMS_OF_ROWS)
def test_third_order_raises_instead_of_being_wrong(name):
    x = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(NORMS_OF_ROWS[name](x).pow(3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.pow(2).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match=f"{name} has derivatives of first and sec"):
        torch.autograd.grad(second.sum(), x)


def gradients(function, tensors, grad, **options):
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    function(*leaves, **options).backward(grad)
    return [leaf.grad for leaf in leaves]


def assert_typical_gradients(norm, tensors, grad, **options):
    ours = gradients(norm, tensors, grad, **options)
    wanted = norm.gradient_bounds(*tensors[:2], grad, **options)
    for actual, of, bound in zip(ours, tensors, wanted[: len(tensors)], strict=True):
        assert actual.dtype == of.dtype
        bounds.assert_typical(actual, bound.rounded_to(of.dtype))


@every_variant
@every_dtype
@pytest.mark.parametrize(
    "rows, cols",
    [
        *[(1, 1), (1, 40), (3, 7), (5, 31), (50, 3), (64, 33), (65, 128), (300, 100)],
        *[(70, 1023), (70, 1025), (3, 5000), (3, 100_003)],
        (9000, 16),  # Eager's gradients of bfloat16 parameters are off by percents.
    ],
)
def test_gradients_are_within_their_bounds_and_typical(norm, dtype, rows, cols):
    torch.manual_seed(rows)
    x, grad = random(2, rows, cols, dtype=dtype)
    x[::3] *= 1e-3  # below eps
    assert_typical_gradients(norm, [x, *norm.parameters(cols, dtype=dtype)], grad, eps=0.1)


def test_parameters_get_the_gradients_of_more_long_rows_than_are_added_up_at_a_time():
    x, grad = random(2, 65, 65537)  # the CPU adds up 64 rows
    norm = NORMS["layer_norm"]
    assert_typical_gradients(norm, [x, *norm.parameters(65537)], grad)


@every_kind
@every_dtype
@pytest.mark.parametrize("name", ["large mean", "tiny variance", "tiny variance about one"])
@pytest.mark.parametrize("rows, cols", [(50, 300), (3, 100_003)])
def test_gradients_are_within_their_bounds_on_hard_inputs(norm, dtype, name, rows, cols):
    if name == "large mean" and dtype.itemsize == 2:
        name = "trend"  # nothing of the rest is left beside 1e4
    x = INPUTS[name](random(rows, cols, dtype=torch.float64)).to(dtype)
    grad = random(rows, cols, dtype=dtype)
    assert_typical_gradients(norm, [x, *norm.parameters(cols, dtype=dtype)], grad)


@every_kind
@pytest.mark.parametrize("deviation", [1e-5, 1e-6, 1e-8, 1e-10, 1e-14])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_lose_no_digits_where_eps_is_as_large_as_the_scale(norm, dtype, deviation):
    x, grad = random(2, 50, 300, dtype=dtype)
    assert_typical_gradients(norm, [x * deviation, *norm.parameters(300, dtype=dtype)], grad)


@every_kind
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_float32_parameters_get_float32_gradients(norm, dtype):
    x, grad = random(2, 100, 65, dtype=dtype)
    assert_typical_gradients(norm, [x, *norm.parameters(65)], grad)


@every_kind
def test_a_frozen_parameter_gets_no_gradient(norm):
    x, parameters = torch.randn(4, 8, requires_grad=True), norm.parameters(8)
    norm(x, *parameters).sum().backward()
    assert x.grad is not None and all(parameter.grad is None for parameter in parameters)


@every_kind
def test_statistics_carry_no_gradient(norm):
    assert not any(t.requires_grad for t in norm.statistics(torch.randn(3, 8).requires_grad_(), 1))


@every_kind
def test_only_input_parameters_and_statistics_are_kept_for_the_backward(norm):
    leaves = [t.requires_grad_() for t in (torch.randn(16, 64), *norm.parameters(64))]
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        norm(*leaves)
    assert sum(t.numel() for t in kept) == 16 * 64 + (64 + 16) * norm.count


# --- std_norm -------------------------------------------------------------------------------------


@every_dtype
def test_a_row_of_one_element_is_nan_in_std_norm_as_in_eager(dtype):
    x = torch.randn(3, 1, dtype=dtype, requires_grad=True)
    y = fusedops.std_norm(x, [1])
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert annotated_norm(x).isnan().all() and y.isnan().all() and gradient.isnan().all()


def test_second_derivatives_of_a_constant_row_of_std_norm_are_finite():
    x = torch.ones(2, 8, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(fusedops.std_norm(x, [8]).pow(2).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    assert second.isfinite().all()


# --- l2_norm --------------------------------------------------------------------------------------


@pytest.mark.parametrize("eps, is_nan", [(1e-12, False), (0.0, True)])
def test_a_row_of_zeros_has_the_l2_norm_of_eager(eps, is_nan):
    zeros = torch.zeros(2, 9)
    y = fusedops.l2_norm(zeros, [9], eps=eps)
    assert torch.equal(y.isnan(), F.normalize(zeros, dim=-1, eps=eps).isnan())
    assert y.isnan().all() if is_nan else torch.equal(y, zeros)


# --- rms_norm -------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [VARIANTS["llama"], VARIANTS["t5"]], ids=["llama", "t5"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_normalised_value_is_rounded_before_the_weight(norm, dtype):
    """A weight just above 1 tells the roundings apart. At most one element in a thousand differs,
    where float32 sums in another order round to the other side."""
    x, w = torch.randn(500, 256).to(dtype), (1 + torch.rand(256)).to(dtype)
    ours = norm(x, w, eps=1e-6)
    assert (ours != norm.eager(x, w, eps=1e-6)).double().mean() < 1e-3
    assert (ours != fusedops.rms_norm(x, [256], w, 1e-6)).double().mean() > 0.05


@pytest.mark.parametrize("norm", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("w_dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("x_dtype", DTYPES.values(), ids=DTYPES)
def test_every_mix_of_dtypes_gives_the_models_dtype(norm, x_dtype, w_dtype):
    x, w = torch.randn(5, 33).to(x_dtype), torch.randn(33).to(w_dtype)
    ours = norm(x, w, eps=1e-6)
    assert ours.dtype == norm.eager(x, w, eps=1e-6).dtype
    exact = reference.rms_norm(x, [33], norm.offset(w), 1e-6)
    coarsest = max((x_dtype, w_dtype, ours.dtype), key=lambda dtype: torch.finfo(dtype).eps)
    tolerance = 4 * torch.finfo(coarsest).eps if coarsest != torch.float64 else 1e-14
    torch.testing.assert_close(ours.double(), exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("variant", ["llama", "t5"])
def test_a_weight_of_another_dtype_gets_the_same_gradient_on_any_number_of_threads(variant):
    x = torch.randn(200_000, 1, requires_grad=True)
    weight = torch.randn(1).bfloat16().requires_grad_()

    def gradients():
        y = fusedops.rms_norm(x, [1], weight, 1e-6, variant=variant)
        return torch.autograd.grad(y, (x, weight), torch.ones_like(y))

    assert_same_on_threads(gradients)


@pytest.mark.parametrize("variant", ["llama", "t5"])
@pytest.mark.parametrize("shape", [(4, 3), (3,)])
def test_a_weight_of_another_dtype_has_derivatives_of_both_orders(variant, shape):
    """In float64 but for the input, which float32 holds exactly."""
    x = torch.randn(shape).double().requires_grad_()
    weight = torch.randn(3, requires_grad=True)

    def of_input(x):
        return fusedops.rms_norm(x, [3], weight.detach(), 1e-5, variant=variant)

    assert gradcheck(of_input, x) and gradgradcheck(of_input, x)
    y = fusedops.rms_norm(x, [3], weight, 1e-5, variant=variant)
    (once,) = torch.autograd.grad(y.square().sum(), weight, create_graph=True)
    by_weight, by_input = torch.autograd.grad(once.sum(), (weight, x))

    def reference(w, x):
        n = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
        return (2 * w * n * n).sum()

    wide = weight.detach().double().requires_grad_()
    expected = torch.autograd.grad(reference(wide, x), (wide, x))
    torch.testing.assert_close(
        once.double(), torch.autograd.grad(reference(wide, x), wide)[0] * wide
    )
    torch.testing.assert_close((by_weight.double(), by_input), expected)


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm", "add_layer_norm"])
def test_the_list_of_the_normalized_shape_may_change_before_the_backward(norm):
    x, shape = torch.randn(2, 4, 6, requires_grad=True), [4, 6]
    summands = (x, x.detach()) if norm.startswith("add") else (x,)
    y = getattr(fusedops, norm)(*summands, shape)
    shape[:] = [6]
    (y[0] if isinstance(y, tuple) else y)[0, 0, 0].backward()
    assert x.grad.count_nonzero() == 24


def test_a_bias_of_a_long_row_may_have_another_dtype_than_the_missing_weight():
    x, grad = torch.randn(1, 70_000).bfloat16(), torch.randn(1, 70_000).bfloat16()
    bias = torch.zeros(70_000)
    _, *statistics = ops.layer_norm(x, [70_000], None, bias, 1e-5)
    needed = [True, True, True]
    grads = ops.layer_norm_backward(grad, x, [70_000], *statistics, None, bias, needed)
    assert torch.equal(grads[2], grad[0].float())
