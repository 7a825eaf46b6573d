"""spatial_layer_norm and spatial_rms_norm, the norms over any one dimension: values, derivatives,
layouts, and the bits of results."""

import bounds
import pytest
import torch
from oracle import DTYPES, assert_same_on_threads, same_bits
from test_norm import INPUTS, SYSTEMATIC
from torch.autograd import gradcheck, gradgradcheck

import fusedops
from fusedops import reference

ops = torch.ops.fusedops
EPS = 1e-6
KINDS = ["layer_norm", "rms_norm"]
#: Shapes and dimensions: images, sequences, the first dimension, few and many inner columns, one
#: inner column, and a dimension so long that a segment has the fewest columns.
SHAPES = {
    "image": ((2, 96, 14, 14), 1),
    "small image": ((5, 33, 7, 7), 1),
    "one channel": ((3, 1, 4, 5), 1),
    "sequence": ((3, 40, 50), 1),
    "two positions": ((7, 300, 2), -2),
    "first dimension": ((17, 1000), 0),
    "last dimension": ((4, 5, 60), 2),
    "sizes of one": ((6, 40, 1, 1), 1),
    "long": ((1, 3000, 70), 1),
    "wide": ((1, 8, 3001), 1),
    "many positions": ((10, 12, 2000), 1),
}
every_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
every_kind = pytest.mark.parametrize("kind", KINDS)
every_shape = pytest.mark.parametrize("shape, dim", SHAPES.values(), ids=SHAPES)


def norm(kind, x, dim, w=None, b=None, eps=EPS):
    if kind == "layer_norm":
        return fusedops.spatial_layer_norm(x, dim, w, b, eps)
    return fusedops.spatial_rms_norm(x, dim, w, eps)


def draw(shape, dim, dtype):
    """An input, a weight, a bias and a gradient."""
    torch.manual_seed(len(shape))
    sizes = (shape, shape[dim], shape[dim], shape)
    return [torch.randn(size, dtype=torch.float64).to(dtype) for size in sizes]


def as_rows(x, dim):
    """A row for each position, as bounds.py wants them."""
    return x.detach().movedim(dim, -1).reshape(-1, x.shape[dim])


def wanted(kind, x, dim, w=1.0, b=0.0):
    return bounds.norm(kind, as_rows(x, dim), w, b if kind == "layer_norm" else 0.0, EPS)


# --- values ---------------------------------------------------------------------------------------


@every_kind
@every_dtype
@every_shape
def test_errors_are_within_their_bound_and_typical(kind, dtype, shape, dim):
    x, w, b, _ = draw(shape, dim, dtype)
    y = norm(kind, x, dim, w, b)
    assert y.dtype == dtype and y.shape == x.shape and y.is_contiguous()
    bounds.assert_typical(as_rows(y, dim), wanted(kind, x, dim, w, b))


@every_kind
@every_dtype
@pytest.mark.parametrize("name", INPUTS)
def test_errors_are_within_their_bound_on_hard_inputs(kind, dtype, name):
    if name == "large" and dtype == torch.float16:
        name = "trend"  # 1e15 is not a float16
    x = INPUTS[name](torch.randn(500, 96)).to(dtype).view(2, 250, 96).transpose(1, 2).contiguous()
    hold = bounds.assert_within if name in SYSTEMATIC else bounds.assert_typical
    hold(as_rows(norm(kind, x, 1), 1), wanted(kind, x, 1))


@every_kind
@pytest.mark.parametrize("dtype, exponent", [(torch.float32, 100), (torch.float64, 960)])
@pytest.mark.parametrize("sign", [-1, 1])
def test_squares_may_leave_the_range_of_the_dtype(kind, dtype, exponent, sign):
    x = torch.randn(2, 40, 33, dtype=dtype)
    x[:, :, 5] = 0  # and a column of zeros beside them
    scale = 2.0 ** (sign * exponent)
    y = norm(kind, x * scale, 1, eps=0.0)
    others = torch.arange(33) != 5
    exact = norm(kind, x, 1, eps=0.0)
    torch.testing.assert_close(y[..., others], exact[..., others], rtol=1e-6, atol=1e-7)


def test_a_column_whose_rstd_is_no_float_becomes_infinite():
    x = torch.full((1, 40, 33), 1e-40)
    x[:, ::2] *= -1
    assert torch.equal(norm("rms_norm", x, 1, eps=0.0), x.sign() * torch.inf)


@every_kind
def test_gradients_of_tiny_columns_beside_others_do_not_underflow(kind):
    x, grad = torch.randn(2, 1, 40, 33)
    scale = torch.where(torch.arange(33) % 3 == 0, 2.0**-80, 1.0)
    ours, plain = ((x * s).requires_grad_() for s in (scale, 1.0))
    for leaf in (ours, plain):
        norm(kind, leaf, 1, eps=0.0).backward(grad)
    torch.testing.assert_close(ours.grad * scale, plain.grad, rtol=1e-5, atol=1e-5)


@every_kind
@every_dtype
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_column_that_is_not_finite_becomes_nan_and_no_other_does(kind, dtype, value):
    x = torch.randn(2, 8, 37).to(dtype)
    x[1, 2, 3] = value
    is_nan = norm(kind, x, 1).isnan()
    assert is_nan[1, 2, 3]
    assert not is_nan.any(1)[0].any() and is_nan.any(1).sum() == 1
    if kind == "layer_norm":
        assert is_nan[1, :, 3].all()


@pytest.mark.parametrize("x_dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("w_dtype", DTYPES.values(), ids=DTYPES)
def test_every_mix_of_dtypes_is_taken(x_dtype, w_dtype):
    tolerance = 1e-14 if x_dtype == torch.float64 else 8 * torch.finfo(x_dtype).eps
    x, w, b = torch.randn(3, 9, 33).to(x_dtype), torch.randn(9).to(w_dtype), torch.randn(9)
    x, w, b = (t.requires_grad_() for t in (x, w, b))
    ours, right = (of.spatial_layer_norm(x, 1, w, b) for of in (fusedops, reference))
    assert ours.dtype == x_dtype
    torch.testing.assert_close(ours.double(), right, rtol=tolerance, atol=tolerance)
    gradients = torch.autograd.grad(ours.sum(), (x, w, b))
    assert [g.dtype for g in gradients] == [x_dtype, w_dtype, torch.float32]


@every_dtype
@every_shape
def test_statistics_are_float32_or_better_and_right(dtype, shape, dim):
    x = draw(shape, dim, dtype)[0]
    _, mean, rstd = ops.spatial_layer_norm(x, dim, None, None, 1e-2)
    _, root = ops.spatial_rms_norm(x, dim, None, 1e-2)
    right = x.double()
    expected = {
        mean: right.mean(dim, True),
        rstd: (right.var(dim, correction=0, keepdim=True) + 1e-2).rsqrt(),
        root: (right.square().mean(dim, True) + 1e-2).rsqrt(),
    }
    for statistic, exact in expected.items():
        assert statistic.dtype == torch.promote_types(dtype, torch.float32)
        assert statistic.shape == exact.shape and statistic.is_contiguous()
        torch.testing.assert_close(statistic.double(), exact, rtol=2.5e-7, atol=1e-6)


@pytest.mark.parametrize(
    "shape, dim", [((0, 4, 5), 1), ((2, 4, 0), 1), ((2, 0, 5), 1), ((3, 0), -1), ((), 0)]
)
def test_tensors_without_elements_and_without_dimensions(shape, dim):
    size = shape[dim] if shape else 1
    x, w = torch.randn(shape, requires_grad=True), torch.randn(size, requires_grad=True)
    y = fusedops.spatial_layer_norm(x, dim, w)
    to_x, to_w = torch.autograd.grad(y.sum(), (x, w))
    assert y.shape == to_x.shape == shape
    assert torch.equal(to_w, torch.zeros(size))


# --- layouts and bits -----------------------------------------------------------------------------


@every_kind
@every_dtype
def test_channels_last_is_computed_where_it_lies_and_has_the_bits_of_rows(kind, dtype):
    x, w, b, grad = draw((2, 24, 6, 7), 1, dtype)
    x, grad = (t.contiguous(memory_format=torch.channels_last) for t in (x, grad))
    leaves = [t.requires_grad_() for t in (x, w, b)][: 3 if kind == "layer_norm" else 2]
    y = norm(kind, x, 1, *leaves[1:])
    by_rows = getattr(fusedops, kind)(x.permute(0, 2, 3, 1), [24], *leaves[1:], eps=EPS)
    assert y.stride() == x.stride() and same_bits(y, by_rows.permute(0, 3, 1, 2))
    ours = torch.autograd.grad(y, leaves, grad)
    rows = torch.autograd.grad(by_rows, leaves, grad.permute(0, 2, 3, 1))
    assert ours[0].stride() == x.stride()
    assert all(same_bits(a, b) for a, b in zip(ours, rows, strict=True))


@every_kind
def test_a_gradient_in_another_layout_gives_the_same_values(kind):
    x, w, _, grad = draw((2, 24, 6, 7), 1, torch.float32)
    results = []
    for of_x in (torch.contiguous_format, torch.channels_last):
        for of_grad in (torch.contiguous_format, torch.channels_last):
            leaves = [x.contiguous(memory_format=of_x).requires_grad_(), w.requires_grad_()]
            y = norm(kind, leaves[0], 1, leaves[1])
            results.append(torch.autograd.grad(y, leaves, grad.contiguous(memory_format=of_grad)))
    for result in results:
        torch.testing.assert_close(result, results[0], rtol=1e-5, atol=1e-5)


@every_kind
def test_strided_inputs_have_the_bits_of_contiguous_ones(kind):
    wide = torch.randn(3, 10, 6, 14)
    views = {
        "every second channel": (wide[:, ::2], 1),
        "some images": (wide[::2], 1),
        "a part of each row": (wide[..., 3:9], 1),
        "transposed": (wide.transpose(1, 2), 1),
        "expanded": (wide[:1].expand(4, 10, 6, 14), 1),
    }
    for x, dim in views.values():
        assert same_bits(norm(kind, x, dim), norm(kind, x.contiguous(), dim))


@every_kind
@every_dtype
@pytest.mark.parametrize("inner", [2, 37, 1500])
def test_an_image_has_the_same_bits_in_any_batch(kind, dtype, inner):
    x, w, b, _ = draw((5, 20, inner), 1, dtype)
    whole = norm(kind, x, 1, w, b)
    for i in range(5):
        assert same_bits(whole[i : i + 1], norm(kind, x[i : i + 1], 1, w, b))


@every_kind
def test_a_position_has_the_same_bits_beside_any_others(kind):
    x = torch.randn(2, 20, 1500)
    whole = norm(kind, x, 1)
    for cols in (slice(0, 40), slice(3, 36), slice(1400, 1500), slice(511, 513)):
        assert same_bits(whole[..., cols], norm(kind, x[..., cols].contiguous(), 1))


@every_kind
@every_dtype
def test_the_number_of_threads_changes_no_bit(kind, dtype):
    x, w, b, grad = draw((9, 70, 31, 33), 1, dtype)
    leaves = [t.requires_grad_() for t in (x, w, b)][: 3 if kind == "layer_norm" else 2]

    def results():
        y = norm(kind, x, 1, *leaves[1:])
        return [y, *torch.autograd.grad(y, leaves, grad)]

    assert_same_on_threads(results)


def test_gradients_have_the_same_bits_whichever_are_wanted():
    x, w, b, grad = draw((2, 20, 33), 1, torch.float32)
    _, mean, rstd = ops.spatial_layer_norm(x, 1, w, b, EPS)
    every = ops.spatial_layer_norm_backward(grad, x, 1, mean, rstd, w, b, [True] * 3)
    for mask in ([True, False, False], [False, True, False], [False, False, True]):
        some = ops.spatial_layer_norm_backward(grad, x, 1, mean, rstd, w, b, mask)
        for is_wanted, ours, right in zip(mask, some, every, strict=True):
            assert same_bits(ours, right) if is_wanted else ours.shape == (0,)


# --- derivatives ----------------------------------------------------------------------------------


@every_kind
@every_dtype
@every_shape
def test_gradients_are_within_their_bounds_and_typical(kind, dtype, shape, dim):
    x, w, b, grad = draw(shape, dim, dtype)
    leaves = [t.requires_grad_() for t in (x, w, b)][: 3 if kind == "layer_norm" else 2]
    ours = torch.autograd.grad(norm(kind, x, dim, *leaves[1:]), leaves, grad)
    right = bounds.norm_gradients(kind, as_rows(x, dim), w, as_rows(grad, dim), EPS)
    bounds.assert_typical(as_rows(ours[0], dim), right.input.rounded_to(dtype))
    for actual, bound in zip(ours[1:], (right.weight, right.bias), strict=False):
        bounds.assert_typical(actual, bound.rounded_to(dtype))


@every_kind
@pytest.mark.parametrize("parameters", range(3))
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gradcheck_and_gradgradcheck(kind, parameters, dim):
    shape = (3, 4, 5)
    if kind == "rms_norm" and parameters == 2:
        parameters = 1
    sizes = [shape, shape[dim], shape[dim]][: 1 + parameters]
    inputs = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes]
    assert gradcheck(lambda x, *p: norm(kind, x, dim, *p), inputs)
    assert gradgradcheck(lambda x, *p: norm(kind, x, dim, *p), inputs)


@every_kind
def test_a_tensor_without_dimensions_has_second_derivatives_beside_a_weight(kind):
    inputs = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in ((), 1)]
    assert gradgradcheck(lambda x, w: norm(kind, x, 0, w, eps=0.01), inputs)


# --- modules ----------------------------------------------------------------------------------


def channels_first(x, module):
    """The norm as ConvNeXt writes it out."""
    mean = x.mean(1, keepdim=True)
    x = (x - mean) / torch.sqrt((x - mean).pow(2).mean(1, keepdim=True) + module.eps)
    return module.weight[:, None, None] * x + module.bias[:, None, None]


def test_the_modules_compute_the_ops():
    x = torch.randn(2, 6, 4, 5)
    module = fusedops.nn.LayerNorm2d(6)
    assert module.eps == 1e-6 and [*module.state_dict()] == ["weight", "bias"]
    module.load_state_dict({"weight": torch.randn(6), "bias": torch.randn(6)})
    torch.testing.assert_close(module(x), channels_first(x, module))
    module = fusedops.nn.RMSNorm2d(6, eps=1e-3)
    assert [*module.state_dict()] == ["weight"]
    expected = reference.spatial_rms_norm(x, 1, None, 1e-3).float()
    torch.testing.assert_close(module(x), expected)


def test_the_modules_options():
    assert [*fusedops.nn.LayerNorm2d(6, bias=False).state_dict()] == ["weight"]
    plain = fusedops.nn.LayerNorm2d(6, elementwise_affine=False)
    assert [*plain.state_dict()] == [] and repr(plain).endswith("elementwise_affine=False)")
    assert fusedops.nn.LayerNorm2d(6, dtype=torch.bfloat16).weight.dtype == torch.bfloat16
    for wrong in ("6", [2, 3], 1.5):
        with pytest.raises(TypeError, match="num_channels"):
            fusedops.nn.RMSNorm2d(wrong)
