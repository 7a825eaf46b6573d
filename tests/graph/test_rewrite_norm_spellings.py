"""Decomposed norms in the orders and spellings that models have for their statistics, quotients and
factors: each is one op, with eager's values, gradients, dtype and strides at every entry."""

import inspect
import re

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_becomes, assert_one_graph, rewritten_alike
from exhaustive import beyond
from norm_forms import CHANNELS, EPS, ROWS, N, centred, draw, draw_images, squares
from norm_forms import mean as _mean


def _std_mean(x, w):
    std, mean = torch.std_mean(x, -1, keepdim=True)
    return w * (x - mean) / (std + EPS)


def _normalised(x):
    return centred(x) / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + EPS)


def _over_two_dims(x):
    mean, variance = x.mean((1, 2), True), x.var((1, 2), correction=0, keepdim=True)
    return (x - mean) / torch.sqrt(variance + EPS)


def _expanded(statistic, x):
    return statistic.unsqueeze(-1).expand_as(x)


def _first_transformer(x, w):
    mean, std = _expanded(x.mean(-1), x), _expanded(x.std(-1), x)
    return (x - mean) / (std + EPS) * w + w


def _means_of_means(x):
    mean = x.mean(1, keepdim=True).mean(2, keepdim=True)
    variance = (x - mean).square().mean(-1).mean(-1)
    return (x - mean) / torch.sqrt(variance[:, None, None] + EPS)


def _by_a_view(x, std):
    rows = x.reshape(x.shape[0], -1)
    return (x - rows.mean(1).view(-1, 1, 1)) / std(rows).view(-1, 1, 1)


def _weight_of_channels_first(x, w):
    mean = x.mean((1, 2), True)
    variance = (x - mean).square().mean((1, 2), True)
    return w[:5, None] * (x - mean) / torch.pow(variance + EPS, 0.5) + w[None, :5, None]


def _by_where(x):
    norm = x.norm(dim=-1, keepdim=True)
    return x / torch.where(norm > EPS, norm, torch.full_like(norm, EPS))


def _by_where_reversed(x):
    norm = x.norm(dim=-1)
    return x / torch.where(norm <= EPS, EPS, norm)[..., None]


def _by_masked_fill(x):
    norm = x.norm(dim=-1, keepdim=True)
    return x / norm.masked_fill(norm < EPS, EPS)


RMS = {
    "a number first": lambda x, w: (x * 2.0) * torch.rsqrt(squares(x) + EPS) * w,
    "sum / size": lambda x, w: w * x * torch.rsqrt((x**2).sum(-1, True) / x.shape[-1] + EPS),
    "sum * (1 / N)": lambda x, w: w * x * torch.rsqrt((x**2).sum(-1, True) * (1 / N) + EPS),
    "[..., None]": lambda x, w: w * x * torch.rsqrt(x.pow(2).mean(-1) + EPS)[..., None],
    "[:, :, None]": lambda x, w: w * (x / torch.sqrt(x.pow(2).mean(dim=2)[:, :, None] + EPS)),
    "view": lambda x, w: w * (x / torch.sqrt(x.pow(2).mean(2) + EPS).view(x.shape[0], 5, 1)),
    "einsum": lambda x, w: (
        x / torch.sqrt(torch.einsum("...d,...d->...", x, x)[..., None] / N + EPS)
    ),
    "names of NumPy": lambda x, w: (
        w * torch.mul(x1=x, x2=torch.rsqrt(torch.mean(a=x**2, axis=-1, keepdims=True) + EPS))
    ),
    "weight of more dimensions": lambda x, w: x * torch.rsqrt(squares(x) + EPS) * w.view(1, 1, -1),
    "two dimensions": lambda x, w: x * torch.rsqrt(x.pow(2).mean([-2, -1], keepdim=True) + EPS),
    "a vector": lambda x, w: w * w.pow(2).mean().add(EPS).rsqrt(),
    "absolute values": lambda x, w: x * torch.rsqrt(x.abs().pow(2).mean(-1, True) + EPS) * w,
    "torch.rms_norm": lambda x, w: torch.rms_norm(x, (N,), w, EPS),
}
L2 = {
    "normalize, weight + 1": lambda x, w: F.normalize(x, p=2.0, dim=2, eps=1e-6) * (w + 1),
    "clamped norm": lambda x, w: x / x.norm(dim=-1, keepdim=True).clamp(min=1e-5),
    "factor first": lambda x, w: w[0] * x / torch.norm(x, dim=-1, keepdim=True).clamp(min=1e-5),
    "factor over norm": lambda x, w: x * (w[0] / torch.norm(x, 2, -1, True).clamp(min=1e-5)),
    "scaled norm": lambda x, w: x / (x.norm(dim=-1, keepdim=True) * N**-0.5).clamp(min=1e-5) * w,
    "vector_norm": lambda x, w: x / torch.linalg.vector_norm(x, dim=-1, keepdim=True),
    "linalg.norm": lambda x, w: x / torch.linalg.norm(x, dim=-1, keepdim=True),
    "maximum": lambda x, w: x / torch.maximum(_l2(x), torch.tensor(1e-5, dtype=x.dtype)),
    "rsqrt of the sum": lambda x, w: x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True)),
    "rsqrt, clamped": lambda x, w: x * torch.rsqrt(x.pow(2).sum(-1, True).clamp(min=1e-8)) * w,
    "clamp_min": lambda x, w: x * torch.rsqrt(torch.clamp_min((x * x).sum(-1, True), 1e-12)),
    "clamped mean": lambda x, w: x * torch.rsqrt(squares(x).clamp(min=1e-8)) * w,
    "a vector": lambda x, w: w / w.norm(),
    "another dimension": lambda x, w: F.normalize(x, dim=0),
    "normalize's default dimension": lambda x, w: F.normalize(x),
    "where": lambda x, w: _by_where(x),
    "where, reversed": lambda x, w: _by_where_reversed(x) * w,
    "masked_fill": lambda x, w: _by_masked_fill(x),
    "max": lambda x, w: x / _l2(x).max(torch.tensor(EPS, dtype=x.dtype)),
    "of centred rows": lambda x, w: F.normalize(centred(x), dim=-1) * N**0.5 * w,
    "a variance with a limit": lambda x, w: (
        centred(x) * x.var(-1, unbiased=False, keepdim=True).clamp(min=EPS).rsqrt() * w
    ),
    "an unbiased deviation with a limit": lambda x, w: (
        centred(x) / x.std(-1, keepdim=True).clamp(min=EPS)
    ),
}
LAYER = {
    "dimension by its number": lambda x, w: (
        centred(x) / torch.sqrt(centred(x).square().mean(dim=x.dim() - 1, keepdim=True) + EPS)
    ),
    "mean as sum * (1 / N)": lambda x, w: (
        (x - x.sum(-1, True) * (1 / N)) / torch.sqrt(x.var(-1, False, True) + EPS) * w
    ),
    "negated mean": lambda x, w: (
        (x + (-_mean(x))) / torch.sqrt((x + (-_mean(x))).pow(2).mean(-1, True) + EPS) * w
    ),
    "unbiased, made biased": lambda x, w: (
        centred(x) / torch.sqrt(x.var(-1, keepdim=True) * (N - 1) / N + EPS) * w
    ),
    "unbiased, of sums": lambda x, w: (
        centred(x) * torch.rsqrt(centred(x).pow(2).sum(-1, True) / (N - 1) + EPS)
    ),
    "any divisor": lambda x, w: centred(x) / (x.var(-1, correction=3, keepdim=True) + EPS).sqrt(),
    "scaled variance": lambda x, w: (
        centred(x) * torch.rsqrt(2 * x.var(-1, unbiased=False, keepdim=True) + EPS) * w + w
    ),
    "a weight of channels": lambda x, w: _over_two_dims(x) * w[:5, None] + w[:5, None],
    "a weight of channels first": _weight_of_channels_first,
    "centred in a statement of its own": lambda x, w: (
        centred(x) / torch.sqrt(centred(x).var(-1, unbiased=False, keepdim=True) + EPS) * w
    ),
    "expanded statistics": lambda x, w: (
        (x - _expanded(x.mean(-1), x)) * (_expanded(x.var(-1, correction=0), x) + EPS).rsqrt()
    ),
    "means of means": lambda x, w: _means_of_means(x) * w,
    "statistics of a view": lambda x, w: _by_a_view(x, lambda r: (r.var(1, False) + EPS).sqrt()),
    "of means": lambda x, w: _normalised(x.unflatten(-1, (2, -1)).mean(-1)),
    "addcmul": lambda x, w: torch.addcmul(w, w + 1, _normalised(x)),
    "addcmul, method": lambda x, w: w.addcmul(_normalised(x), w),
    "native_layer_norm": lambda x, w: torch.native_layer_norm(x, (N,), w, w, EPS)[0],
}
STD = {
    "std_mean": _std_mean,
    "of the first Transformers": _first_transformer,
    "centred in a statement of its own": lambda x, w: (
        centred(x) / (centred(x).std(-1, keepdim=True) + EPS) * w + w
    ),
    "statistics of a view": lambda x, w: _by_a_view(x, lambda r: r.std(1) + EPS) * w[:5, None],
    "root of a biased variance": lambda x, w: (
        w * centred(x) / (centred(x).square().mean(-1, keepdim=True).sqrt() + EPS)
    ),
}
OPS = {"rms_norm": RMS, "l2_norm": L2, "layer_norm": LAYER, "std_norm": STD}
FORMS = {f"{op}: {name}": form for op, forms in OPS.items() for name, form in forms.items()}
FORMS |= ROWS | CHANNELS


def _l2(x):
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True)


def _inputs(name, *batch):
    """What the function of that name takes."""
    tensors = (draw_images if name in CHANNELS else draw)(*batch, requires_grad=True)
    return tensors[: len(inspect.signature(FORMS[name]).parameters)]


@pytest.mark.parametrize("name", FORMS)
def test_every_spelling_is_one_op_that_agrees_with_eager(rewrite, name):
    op = name.partition(":")[0]
    rewritten = assert_becomes(rewrite, FORMS[name], _inputs(name), {op: 1})
    in_eagers_order = rf"(clone\(|permute\()*{op}\[0\]"
    assert all(re.match(in_eagers_order, result) for result in rewritten.results)
    unused = [value for value in rewritten.unused if "x" in value]
    assert unused in ([], ["getattr(x, dtype)"])  # and parameters that the norm does not have


#: Each statistic, quotient and product of layer_norm.
TYPICAL = [name for name in ROWS if "variance: " in name or "result: " in name]
TYPICAL += [name for name in CHANNELS if "variance: " in name or "weight first" in name]


@pytest.mark.parametrize("name", beyond(TYPICAL, ROWS | CHANNELS))
def test_one_graph_has_eagers_gradients_at_all_sizes(rewrite_dynamo, name):
    op, inputs = name.partition(":")[0], _inputs(name, 4)
    for dim in (0, 2, 3) if name in CHANNELS else (0,):
        torch._dynamo.mark_dynamic(inputs[0], dim)
    rewritten = rewrite_dynamo(FORMS[name], *inputs)
    assert_one_graph(rewritten, FORMS[name], [_inputs(name, batch) for batch in (4, 3, N)])
    assert rewritten.replaced == {op: 1}


def test_a_weight_with_further_dimensions_is_reshaped_and_not_expanded(rewrite):
    code = rewrite(RMS["weight of more dimensions"], *draw()[:2]).code
    assert "reshape" in code and "expand" not in code


# --- factors --------------------------------------------------------------------------------------


def _scaled(x, w):
    h = F.normalize(x.float(), dim=-1) * N**0.5
    return (h * (w.float() + 1)).to(x.dtype)


def _summed(x, w):
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).sum(-1, keepdim=True) + EPS) * 0.3 * w.float()).to(x.dtype)


def _of_channels(x, w):
    h = x.float()
    scale = torch.rsqrt(h.pow(2).sum(1, keepdim=True) + EPS)
    return (h * scale * 0.3 * w.float()[:, None, None]).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "form, op",
    [(_scaled, "l2_norm"), (_summed, "rms_norm"), (_of_channels, "spatial_rms_norm")],
)
def test_in_16_bits_a_result_with_factors_is_rounded_once_as_before(rewrite, form, op, dtype):
    inputs = (draw_images if op.startswith("spatial") else draw)(16, dtype)[:2]
    rewritten = assert_becomes(rewrite, form, inputs, {op: 1})
    assert (rewritten.call(*inputs) != form(*inputs)).double().mean() < 0.02


def test_normalize_of_16_bits_is_replaced_and_the_factors_after_it_round_as_before(rewrite):
    def form(x, w):
        return F.normalize(x, dim=-1) * 3 * w

    inputs = torch.randn(4, N).bfloat16(), torch.randn(N).bfloat16()
    rewritten = assert_becomes(rewrite, form, inputs, {"l2_norm": 1})
    assert rewritten.code.count("mul") >= 2


def test_a_factor_that_arithmetic_makes_one_adds_no_call(entries):
    def form(x):
        return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + EPS) * N**0.5

    assert "full" not in entries["dynamo"](form, torch.randn(4, N)).code


def test_factors_outside_of_float32s_range_are_multiplied_as_before(rewrite):
    x = torch.randn(4, N)
    assert_becomes(rewrite, lambda x: F.normalize(x, dim=-1) * 1e-40 * 1e40, [x], {"l2_norm": 1})


def test_a_complex_number_is_no_factor_of_a_norm(rewrite):
    x = torch.randn(4, N)
    assert_becomes(rewrite, lambda x: _rms(x) * torch.tensor(2j), [x], {"rms_norm": 1})


def _rms(x):
    return x * torch.rsqrt(squares(x) + EPS)


ROUNDED = {
    "rms_norm: int8": lambda x, w: (_rms(x) * 10).to(torch.int8).double() / 10,
    "rms_norm: float8": lambda x, w: _rms(x).to(torch.float8_e4m3fn).double(),
    "rms_norm: bool": lambda x, w: _rms(x).bool().double(),
    "rms_norm: float32": lambda x, w: _rms(x).float().double(),
    "rms_norm: float32, then a weight": lambda x, w: _rms(x).float() * w,
    "layer_norm: int32": lambda x, w: _normalised(x).to(torch.int32).double(),
    "layer_norm: float16": lambda x, w: _normalised(x).half().double(),
    "layer_norm: two of 16 bits": lambda x, w: _normalised(x).bfloat16().half().double(),
    "layer_norm: float32, then a weight": lambda x, w: _normalised(x).float() * w,
}


@pytest.mark.parametrize("name", ROUNDED)
def test_a_cast_that_loses_something_is_kept_behind_the_norm(rewrite, name):
    x, w = torch.randn(4, N).double(), torch.randn(N).double()
    assert_becomes(rewrite, ROUNDED[name], [x, w], {name.split(":")[0]: 1})


def _over_variance_and_mean(x):
    variance, mean = torch.var_mean(x, False)
    return (x - mean) * torch.rsqrt(variance + EPS)


def _over_deviation_and_mean(x):
    deviation, mean = torch.std_mean(x, False)
    return (x - mean) / (deviation + EPS)


UNBIASED = {
    "layer_norm: biased var": lambda x: (x - x.mean()) / torch.sqrt(x.var(False) + EPS),
    "layer_norm: unbiased var": lambda x: (x - x.mean()) / torch.sqrt(x.var(True) + EPS),
    "layer_norm: var_mean": _over_variance_and_mean,
    "std_norm: std": lambda x: (x - x.mean()) / (x.std(False) + EPS),
    "std_norm: std_mean": _over_deviation_and_mean,
}


@pytest.mark.parametrize("name", UNBIASED)
def test_the_only_argument_of_a_variance_may_say_whether_it_is_unbiased(rewrite, name):
    x, op = torch.randn(N).double(), name.split(":")[0]
    assert_becomes(rewrite, UNBIASED[name], [x], {op: 1})


def test_a_row_with_a_nan_is_nan_as_a_whole_where_a_comparison_finds_no_limit(rewrite_dynamo):
    x = torch.randn(2, 3, N)
    x[0, 0, 0] = torch.nan
    ours = rewrite_dynamo(lambda x: _by_where(x), x).call(x)
    assert ours[0, 0].isnan().all() and ours[1].isfinite().all()


def _unbiased(x):
    return centred(x) * torch.rsqrt(x.var(-1, keepdim=True) + EPS)


def _doubled_of_channels(x):
    return x * torch.rsqrt(squares(x, 1) + EPS) * 2


@pytest.mark.parametrize("form, shape", [(_unbiased, (4, N)), (_doubled_of_channels, (2, N, 4, 5))])
def test_an_unbiased_variance_and_a_factor_need_the_length_of_the_rows(rewrite_dynamo, form, shape):
    x = torch.randn(shape)
    torch._dynamo.mark_dynamic(x, 1)
    rewritten = rewritten_alike(rewrite_dynamo, form, [x])
    assert rewritten.reasons == ["the length of its rows is not known at compile time"]


# --- what stays -----------------------------------------------------------------------------------


CANCELS = "mean(x^2) - mean(x)^2 cancels where the variance is small, and the op would not"
OUTSIDE = "eps is added to the root of its mean square, which no op does"
OTHER_NORM = "it is divided by another norm than the root of its sum of squares"
NOT_CENTRED = "it is divided by its deviation, but its mean is not subtracted, which no op does"
SHARED = "something else uses an intermediate result"


def _difference_of_squares(x):
    x = x[None]
    mean = x.mean(1, keepdim=True).mean(2, keepdim=True)
    mean_of_squares = (x**2).mean((1, 2), keepdim=True)
    return (x - mean) / torch.sqrt(mean_of_squares - mean**2 + EPS)


def _product_of_two_einsums(x):
    a, b = (torch.einsum("nd,de->ne", x, other) for other in (x, x.T))
    return a * torch.rsqrt((a * b).mean(-1, keepdim=True) + 100)


def _means_in_another_order(x):
    h = x.view(2, 4, N)
    mean = (h.sum(-1).view(1, 4, 2) / N).mean(1).view(2, 1, 1)
    return (h - mean) * torch.rsqrt((h - mean).square().mean((1, 2), True) + EPS)


def _divided(mean, variance, x):
    return (x - mean) / torch.sqrt(variance + EPS)


def _variance(x):
    return x.var(-1, unbiased=False, keepdim=True)


def _centred_after_a_write(x):
    x = x * 1
    mean, variance = _mean(x), _variance(x)
    x.mul_(2)
    return _divided(mean, variance, x)


def _written_between(x):
    x = x * 1
    scale = torch.rsqrt(squares(x) + EPS)
    x.mul_(2)
    return x * scale


def _written_after_the_cast(x):
    x = x.bfloat16()
    h = x.float()
    x.mul_(2)
    return (h * torch.rsqrt(squares(h) + EPS)).to(x.dtype) + x


def _norm_used_too(x):
    norm = _l2(x).clamp(min=1e-5)
    return x / norm, norm


def _mean_used_too(x):
    mean = _mean(x)
    return (x - mean) * torch.rsqrt(_variance(x) + EPS), mean


STAYS = {
    "unbiased, of one column": (
        lambda x: centred(x[:, :1]) * torch.rsqrt(x[:, :1].var(-1, keepdim=True) + EPS),
        "its rows have too few elements for an unbiased variance",
    ),
    "not centred": (lambda x: x / torch.sqrt(x.var(-1, False, True) + EPS), NOT_CENTRED),
    "root of a mean square + eps": (lambda x: x / (squares(x).sqrt() + EPS), OUTSIDE),
    "norm of order 1": (lambda x: x / x.norm(p=1, dim=-1, keepdim=True), OTHER_NORM),
    "norm of order 3": (lambda x: x / x.norm(p=3, dim=-1, keepdim=True), OTHER_NORM),
    "normalize of order 1": (lambda x: F.normalize(x, p=1.0, dim=-1), OTHER_NORM),
    "difference of squares": (
        lambda x: centred(x) / torch.sqrt((x**2).mean(-1, True) - _mean(x) ** 2 + EPS),
        CANCELS,
    ),
    "difference of squares, of means of means": (_difference_of_squares, CANCELS),
    "norm + eps": (lambda x: x / (_l2(x) + EPS), OUTSIDE),
    "shared": (_norm_used_too, SHARED),
    "shared mean": (_mean_used_too, SHARED),
    "root of a high power": (
        lambda x: x.double() * (squares(x.double()) ** 400).clamp(min=1e-9) ** (-1 / 800),
        "its factors leave the range of its dtype",
    ),
    "scale rounded": (
        lambda x: x * torch.rsqrt(squares(x) + EPS).bfloat16(),
        "the scale of its rows is rounded to torch.bfloat16",
    ),
    "float64 weight": (
        lambda x: x * (x[0].double() * torch.rsqrt(squares(x) + EPS)),
        "no op supports its combination of dtypes",
    ),
}
LOOK_ALIKES = {
    "different dims": lambda x: _divided(_mean(x), x.var((-2, -1), False, True), x),
    "dims dropped": lambda x: _divided(
        x[:5, :5].mean(-1), x[:5, :5].var(-1, unbiased=False), x[:5, :5]
    ),
    "mean of another tensor": lambda x: _divided(_mean(x.cos()), _variance(x), x),
    "inverse of a mean": lambda x: _divided(N / x.sum(-1, keepdim=True), _variance(x), x),
    "variance of another tensor": lambda x: _divided(_mean(x), _variance(x.cos()), x),
    "cube of the centred": lambda x: _divided(_mean(x), _mean(centred(x).abs().pow(3)), x),
    "scaled eps of a variance": lambda x: (
        centred(x) / torch.sqrt(torch.add(_variance(x), 1.0, alpha=2))
    ),
    "eps of the input": lambda x: centred(x) / torch.sqrt(_variance(x) + x.abs().amax()),
    "centred after a write": _centred_after_a_write,
    "broadcast along the wrong dimension": lambda x: x / x.norm(dim=-1),
    "expanded along the wrong dimension": lambda x: x / x.norm(dim=-1).expand_as(x),
    "of another row": lambda x: x / x.norm(dim=-1)[torch.arange(N - 1, -1, -1), None],
    "not a root": lambda x: x / squares(x),
    "rounded down": lambda x: torch.div(x, _l2(x), rounding_mode="floor"),
    "of the cube": lambda x: x * x * torch.rsqrt(squares(x) + EPS) * x,
    "spectral": lambda x: x / torch.linalg.norm(x, 2, (-2, -1), True),
    "two limits": lambda x: x / _l2(x).clamp(1e-3, 1e3),
    "smaller one": lambda x: x / torch.where((norm := _l2(x)) < EPS, norm, EPS),
    "where of another comparison": lambda x: x / torch.where(squares(x) > EPS, _l2(x), EPS),
    "another limit": lambda x: x / torch.where((norm := _l2(x)) > EPS, norm, 1.0),
    "eps of the data": lambda x: x / torch.maximum(_l2(x), x.abs().amax()),
    "einsum over another": lambda x: x / torch.einsum("nd,nd->d", x, x).sqrt()[:, None],
    "two einsums": _product_of_two_einsums,
    "matmul by a keyword": lambda x: x * torch.matmul(x, other=x),
    "matmul by keywords": lambda x: x * torch.matmul(input=x, other=x),
    "alpha before the summand": lambda x: (
        x * torch.rsqrt(torch.add(squares(x), 2, x[:, :1].square()))
    ),
    "lower limit of the inverse": lambda x: x * torch.rsqrt(squares(x)).clamp(min=2.0),
    "lower limit of the inverse of a deviation": lambda x: (
        centred(x) * torch.rsqrt(x.var(-1, unbiased=False, keepdim=True)).clamp(min=2.0)
    ),
    "limit with more elements": lambda x: x / torch.max(x.norm(dim=-1), torch.full((N, N), EPS)),
    "complex limit": lambda x: (
        x / torch.where((norm := _l2(x)) > EPS, norm, torch.full((), EPS, dtype=torch.complex64))
    ),
    "factor outside of float32's range": lambda x: x * torch.rsqrt(squares(x) * 1e40) * 1e20,
    "product of factors that is 0": lambda x: (
        x.double() * torch.rsqrt(squares(x.double()) * 1e-200 * 1e-200)
    ),
    "square of a factor that overflows": lambda x: (
        x.double() * torch.rsqrt((squares(x.double()) * 1e200) ** 2).sqrt()
    ),
    "means in another order": _means_in_another_order,
    "of several dimensions": lambda x: F.normalize(x[None], dim=(0, 1)),
    "of a scalar": lambda x: F.normalize(x.sum(), dim=0),
    "written between": _written_between,
    "written after the cast": _written_after_the_cast,
    "statistics used twice": lambda x: (lambda s: x * s + s)(torch.rsqrt(squares(x) + EPS)),
    "another tensor scaled": lambda x: (x + 1) * torch.rsqrt(squares(x) + EPS),
    "rounded before": lambda x: x * torch.rsqrt(squares(x.bfloat16().float()) + EPS),
    "scaled eps": lambda x: x * torch.rsqrt(torch.add(squares(x), 1.0, alpha=2)),
    "eps scaled by position": lambda x: (
        x * torch.rsqrt(torch.ops.aten.add.Scalar(squares(x), 1.0, 2.0))
    ),
    "summed in double": lambda x: (
        x * torch.rsqrt(x.pow(2).mean(-1, True, dtype=torch.float64) + EPS).float()
    ),
    "cubed": lambda x: x * torch.rsqrt(_mean(x.pow(3).abs()) + EPS),
}


@pytest.mark.parametrize("form, reason", STAYS.values(), ids=STAYS)
def test_a_norm_that_no_op_computes_is_left_with_its_reason(rewrite, form, reason):
    assert_becomes(rewrite, form, [torch.randn(N, N)], {}, [reason])


@pytest.mark.filterwarnings("ignore:This overload of add is deprecated")
@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_chains_that_are_no_norm_of_rows_stay_as_they_are(rewrite, name):
    rewritten = rewritten_alike(rewrite, LOOK_ALIKES[name], [torch.randn(N, N)])
    assert rewritten.replaced == {}
