"""Norms over the channels of images, as models write them out."""

import bounds
import pytest
import torch
import torch.nn.functional as F
from agreement import assert_agrees, assert_becomes

import fusedops
from fusedops import reference

C, EPS = 6, 1e-6
#: The tolerance of results of another order of summation.
ROUNDED = {"rtol": 1e-11, "atol": 1e-13}


def _convnext(x, w, b):
    u = x.mean(1, keepdim=True)
    s = (x - u).pow(2).mean(1, keepdim=True)
    x = (x - u) / torch.sqrt(s + EPS)
    return w[:, None, None] * x + b[:, None, None]


def _var_mean(x, w, b):
    variance, mean = torch.var_mean(x, dim=1, unbiased=False, keepdim=True)
    return (x - mean) * torch.rsqrt(variance + EPS) * w.view(-1, 1, 1) + b.view(-1, 1, 1)


def _restormer(x, w, b):
    mean = x.mean(1, keepdim=True)
    sigma = x.var(1, keepdim=True, unbiased=False)
    return (x - mean) / torch.sqrt(sigma + EPS) * w.view(1, C, 1, 1) + b.view(1, C, 1, 1)


def _nafnet(x, w, b):
    mu = x.mean(1, keepdim=True)
    var = (x - mu).pow(2).mean(1, keepdim=True)
    y = (x - mu) / (var + EPS).sqrt()
    return w.view(1, C, 1, 1) * y + b.view(1, C, 1, 1)


def _unsqueezed(x, w, b):
    w, b = (p.unsqueeze(-1).unsqueeze(-1) for p in (w, b))
    mean = x.mean(dim=-3, keepdim=True)
    return (x - mean) * (x.var(dim=(1,), correction=0, keepdim=True) + EPS) ** -0.5 * w + b


def _no_parameters(x, w, b):
    u = x.mean(1, True)
    return (x - u) / torch.sqrt((x - u).square().mean(1, True) + EPS)


def _weight_alone(x, w, b):
    return w[:, None, None] * _no_parameters(x, w, b)


def _rms_norm(x, w, b):
    return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + EPS) * w[:, None, None]


def _rms_norm_without_weight(x, w, b):
    return x * torch.rsqrt((x * x).mean(1, keepdim=True) + EPS)


LAYER_NORMS = (_convnext, _var_mean, _restormer, _nafnet, _unsqueezed, _no_parameters)
FORMS = {
    **{model.__name__: (model, "spatial_layer_norm") for model in (*LAYER_NORMS, _weight_alone)},
    **{m.__name__: (m, "spatial_rms_norm") for m in (_rms_norm, _rms_norm_without_weight)},
}
every_form = pytest.mark.parametrize("model, op", FORMS.values(), ids=FORMS)


@pytest.fixture
def draw():
    """draw(batch=2, dtype=torch.float64, format=torch.contiguous_format): input, weight, bias."""

    def draw(batch=2, dtype=torch.float64, format=torch.contiguous_format):
        image = torch.randn(batch, C, 4, 5, dtype=dtype).contiguous(memory_format=format)
        return [image, torch.randn(C, dtype=dtype), torch.randn(C, dtype=dtype)]

    return draw


def _exact(model, x, w, b):
    w = None if model in (_no_parameters, _rms_norm_without_weight) else w
    if "rms" in model.__name__:
        return reference.spatial_rms_norm(x, 1, w, EPS)
    b = None if model in (_no_parameters, _weight_alone) else b
    return reference.spatial_layer_norm(x, 1, w, b, EPS)


@every_form
def test_every_form_is_one_op_with_the_references_values(rewrite, draw, model, op):
    arguments = draw()
    rewritten = rewrite(model, *arguments)
    assert rewritten.replaced == {op: 1} and rewritten.reasons == []
    assert not any(step in rewritten.code for step in ("mean", "var", "sqrt", "sub", "mul", "add"))
    ours = rewritten.call(*arguments)
    assert ours.stride() == model(*arguments).stride()
    torch.testing.assert_close(ours, _exact(model, *arguments), rtol=1e-11, atol=1e-14)


@every_form
def test_every_form_has_eagers_gradients_at_all_sizes(rewrite_dynamo, draw, model, op):
    leaves = [tensor.requires_grad_() for tensor in draw(4)]
    for dim in (0, 2, 3):
        torch._dynamo.mark_dynamic(leaves[0], dim)
    rewritten = rewrite_dynamo(model, *leaves)
    for batch, height, width in ((4, 4, 5), (3, 7, 9), (2, C, C)):
        leaves = [tensor.requires_grad_() for tensor in draw()]
        leaves[0] = torch.randn(batch, C, height, width, dtype=torch.float64, requires_grad=True)
        assert_agrees(rewritten.call, model, leaves, rtol=1e-9, atol=1e-12)
    assert rewritten.replaced == {op: 1} and len(rewritten.graphs) == 1


@every_form
def test_channels_last_stays_channels_last(rewrite_dynamo, draw, model, op):
    arguments = draw(format=torch.channels_last)
    assert_becomes(rewrite_dynamo, model, arguments, {op: 1}, **ROUNDED)
    assert model(*arguments).stride() == arguments[0].stride()


def test_the_backward_pass_is_our_op_too(backward_ops, draw):
    leaves = [tensor.requires_grad_() for tensor in draw()]
    assert backward_ops(_convnext, *leaves) == {"spatial_layer_norm_backward": 1}
    assert backward_ops(_rms_norm, *leaves) == {"spatial_rms_norm_backward": 1}


class LayerNorm2d(torch.nn.Module):
    """As in Segment Anything: eps is an attribute, and the parameters are the module's."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(C))
        self.bias = torch.nn.Parameter(torch.randn(C))
        self.eps = EPS

    def forward(self, x):
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


@pytest.mark.slow("Inductor compiles a model and its backward pass")
def test_a_model_of_several_is_compiled_with_eagers_values_and_gradients():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, C, 3), LayerNorm2d(), torch.nn.GELU(), torch.nn.Conv2d(C, C, 1)
    ).double()
    x = torch.randn(2, 3, 9, 8, dtype=torch.float64)
    compiled = torch.compile(model, backend="fusedops")
    results = []
    for run in (model, compiled):
        model.zero_grad()
        y = run(x)
        y.sin().sum().backward()
        results.append([y, *(p.grad.clone() for p in model.parameters())])
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-12)


def test_sequences_and_the_first_dimension(rewrite, draw):
    def sequence(x, w, b):
        x = x.flatten(2)
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        return w[:, None] * ((x - u) / torch.sqrt(s + EPS)) + b[:, None]

    def first(x, w, b):
        variance = x.var(0, correction=0, keepdim=True)
        return (x - x.mean(0, keepdim=True)) / torch.sqrt(variance + EPS)

    for model in (sequence, first):
        assert_becomes(rewrite, model, draw(), {"spatial_layer_norm": 1}, **ROUNDED)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_16_bits_the_result_is_rounded_once(rewrite, draw, dtype):
    def model(x, w, b):
        return _convnext(x.float(), w, b).to(x.dtype)

    x, w, b = draw(16, dtype)
    rewritten = rewrite(model, x, w, b)
    assert rewritten.replaced == {"spatial_layer_norm": 1} and " to = " not in rewritten.code
    ours = rewritten.call(x, w, b)
    assert ours.dtype == dtype
    rows, exact = (t.movedim(1, -1).reshape(-1, C) for t in (ours, x))
    bounds.assert_within(rows, bounds.norm("layer_norm", exact, w, b, EPS))


# --- other orders and spellings -------------------------------------------------------------------


def _squares(x):
    return x.pow(2).mean(1, keepdim=True)


def _centred(x):
    return x - x.mean(1, keepdim=True)


def _from_centred(x, w):
    c = _centred(x)
    return c / (c.pow(2).mean(1, keepdim=True) + EPS).sqrt() * (1 + w) + w


def _mean_of_sum(x):
    return x.sum(1, keepdim=True) / C


#: Functions of an image and a weight that broadcasts along its channels.
RMS = {
    "quotient": lambda x, w: x / torch.sqrt((x * x).mean(1, keepdim=True) + EPS) * w,
    "weight first": lambda x, w: w * x / torch.sqrt(_squares(x) + EPS),
    "weight times scale": lambda x, w: x * (w * torch.rsqrt(_squares(x) + EPS)),
    "weight, scale, input": lambda x, w: w * torch.rsqrt(x.square().mean(1, True) + EPS) * x,
    "reciprocal": lambda x, w: w * (x * (_squares(x) + EPS).sqrt().reciprocal()),
    "1 / sqrt": lambda x, w: w * (x * (1 / torch.sqrt(_squares(x) + EPS))),
    "pow(-0.5)": lambda x, w: w * (x * torch.pow(_squares(x) + EPS, -0.5)),
    "1 + weight": lambda x, w: (1 + w) * (x * (_squares(x) + EPS) ** -0.5),
    "sum / C": lambda x, w: w * x * torch.rsqrt(_mean_of_sum(x**2) + EPS),
    "norm ** 2 / C": lambda x, w: w * x * torch.rsqrt(x.norm(dim=1, keepdim=True) ** 2 / C + EPS),
    "sum + eps": lambda x, w: x * torch.rsqrt(x.pow(2).sum(1, keepdim=True) + EPS) * C**0.5,
    "unsqueeze": lambda x, w: w * x * torch.rsqrt(x.pow(2).mean(1) + EPS).unsqueeze(1),
    "[:, None]": lambda x, w: w * x * torch.rsqrt(x.pow(2).mean(-3) + EPS)[:, None],
    "expand_as": lambda x, w: w * (x / torch.sqrt(_squares(x) + EPS).expand_as(x)),
    "einsum": lambda x, w: x / torch.sqrt(torch.einsum("bchw,bchw->bhw", x, x)[:, None] / C + EPS),
    "einsum of dots": lambda x, w: (
        w * x / torch.sqrt(torch.einsum("...chw, ...chw -> ...hw", x, x)[:, None] / C + EPS)
    ),
    "no eps": lambda x, w: w * (x / _squares(x).sqrt()),
    "unit norm times sqrt(C)": lambda x, w: x / x.norm(dim=1, keepdim=True) * C**0.5 * w,
    "unit norm": lambda x, w: x / torch.linalg.vector_norm(x, dim=1, keepdim=True),
    "rsqrt of the sum": lambda x, w: w * (x * torch.rsqrt(x.pow(2).sum(1, keepdim=True))),
    "a further factor": lambda x, w: x * torch.rsqrt(_squares(x) + EPS) / 2 * w,
    "one factor for all": lambda x, w: x * torch.rsqrt(_squares(x) + EPS) * w[:1],
}
LAYER = {
    "deviation squared": lambda x, w: _centred(x) / (x.std(1, False, True) ** 2 + EPS).sqrt(),
    "unbiased": lambda x, w: w * _centred(x) / torch.sqrt(x.var(1, keepdim=True) + EPS),
    "unbiased, no eps": lambda x, w: w * _centred(x) / x.std(1, keepdim=True),
    "no eps": lambda x, w: w * (_centred(x) / x.std(1, unbiased=False, keepdim=True)),
    "mean as sum / C": lambda x, w: (
        (x - _mean_of_sum(x)) / torch.sqrt(_mean_of_sum((x - _mean_of_sum(x)).pow(2)) + EPS)
    ),
    "unsqueezed": lambda x, w: (
        (x - x.mean(1)[:, None]) / torch.sqrt(x.var(1, correction=0) + EPS).unsqueeze(1) * w
    ),
    "of the centred input": _from_centred,
    "weight times scale": lambda x, w: (
        _centred(x) * (torch.rsqrt(x.var(1, unbiased=False, keepdim=True) + EPS) * w) + w
    ),
}
SPELLINGS = {f"spatial_rms_norm: {name}": form for name, form in RMS.items()}
SPELLINGS |= {f"spatial_layer_norm: {name}": form for name, form in LAYER.items()}


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_is_one_op_that_agrees_with_eager(rewrite, draw, name):
    def form(x, w):
        return SPELLINGS[name](x, w[:, None, None])

    inputs = [tensor.requires_grad_() for tensor in draw()[:2]]
    assert_becomes(rewrite, form, inputs, {name.split(":")[0]: 1})


@pytest.mark.parametrize("name", SPELLINGS)
def test_only_where_eager_changes_the_order_of_a_channels_last_image_is_the_result_copied(
    rewrite_dynamo, draw, name
):
    def form(x, w):
        return SPELLINGS[name](x, w[:, None, None])

    x, w, _ = draw(format=torch.channels_last)
    op = name.split(":")[0]
    rewritten = assert_becomes(rewrite_dynamo, form, [x, w], {op: 1}, **ROUNDED)
    assert ("clone" in rewritten.code) == (form(x, w).stride() != x.stride())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_16_bits_factors_are_part_of_the_weight(rewrite, draw, dtype):
    def form(x, w):
        h = x.float()
        scale = torch.rsqrt(h.pow(2).sum(1, keepdim=True) + EPS)
        return (h * scale * 0.3 * w.float()[:, None, None]).to(x.dtype)

    x, w, _ = draw(16, dtype)
    rewritten = rewrite(form, x, w)
    assert rewritten.replaced == {"spatial_rms_norm": 1}
    ours, eager = rewritten.call(x, w), form(x, w)
    assert ours.dtype == dtype and (ours != eager).double().mean() < 0.02
    torch.testing.assert_close(ours, eager)


# --- look-alikes ----------------------------------------------------------------------------------


#: Weights that are not the op's: the model, its norm, and what of the weight is computed outside.
OUTSIDE = {
    "of columns": (
        lambda x, w, b: _no_parameters(x, w, b) * w[:5],
        {"spatial_layer_norm": 1},
        {"mul"},
    ),
    "of an image": (
        lambda x, w, b: _no_parameters(x, w, b) * x[:1],
        {"spatial_layer_norm": 1},
        {"mul"},
    ),
    "with an offset, computed before the op": (
        lambda x, w, b: _rms_norm_without_weight(x, w, b) * (1 + w[:, None, None]),
        {"spatial_rms_norm": 1},
        {"add"},
    ),
}


@pytest.mark.parametrize("model, replaced, outside", OUTSIDE.values(), ids=OUTSIDE)
def test_other_weights_are_computed_outside(rewrite, draw, model, replaced, outside):
    rewritten = assert_becomes(rewrite, model, draw(), replaced, **ROUNDED)
    assert {step for step in ("mul", "add") if step in rewritten.code} == outside


def test_a_weight_after_the_rounding_stays_outside(rewrite, draw):
    def model(x, w, b):
        return _rms_norm_without_weight(x.float(), w, b).to(x.dtype) * w[:, None, None]

    arguments = draw(dtype=torch.bfloat16)
    rewritten = assert_becomes(rewrite, model, arguments, {"spatial_rms_norm": 1})
    assert "mul" in rewritten.code


def _two_dimensions(x, w, b):
    dims = (1, 2)
    return (x - x.mean(dims, True)) / torch.sqrt(x.var(dims, correction=0, keepdim=True) + EPS)


def _scale_of_another_dimension(x, w, b):
    x = x[..., :4]  # 4 rows of 4 columns, with which the scales of each other could be confused
    return x / torch.sqrt(x.pow(2).mean(2) + EPS)[..., None]


#: Norms without a spatial op, and the op that computes them on the permuted image.
PERMUTED = {
    "annotated": (lambda x, w, b: _centred(x) / (x.std(1, keepdim=True) + EPS), "std_norm"),
    "normalize": (lambda x, w, b: F.normalize(x, dim=1) * C**0.5 * w[:, None, None], "l2_norm"),
    "clamped norm": (lambda x, w, b: x / x.norm(dim=1, keepdim=True).clamp(min=EPS), "l2_norm"),
}


every_permuted = pytest.mark.parametrize("model, op", PERMUTED.values(), ids=PERMUTED)


@every_permuted
def test_a_norm_without_a_spatial_op_runs_on_the_permuted_image(rewrite, draw, model, op):
    inputs = [tensor.requires_grad_() for tensor in draw()]
    assert_becomes(rewrite, model, inputs, {op: 1})


@every_permuted
def test_it_copies_nothing_where_the_channels_are_side_by_side(rewrite_dynamo, draw, model, op):
    arguments = draw(format=torch.channels_last)
    rewritten = assert_becomes(rewrite_dynamo, model, arguments, {op: 1}, **ROUNDED)
    assert "clone" not in rewritten.code
    assert model(*arguments).stride() == arguments[0].stride()


def test_copies_of_the_image_do_not_pay_unless_that_is_measured(rewrite_dynamo):
    x = torch.randn(2, 64, 32, 32)
    with fusedops.config.patch(fuse="profitable"):
        rewritten = rewrite_dynamo(lambda x: F.normalize(x, dim=1), x)
        last = rewrite_dynamo(
            lambda x: F.normalize(x, dim=1), x.contiguous(memory_format=torch.channels_last)
        )
    assert rewritten.replaced == {} and last.replaced == {"l2_norm": 1}
    assert rewritten.reasons == [
        "eager's strides take a copy, and no measurement says that this pays"
    ]


#: The reasons; there is none where the form is no norm of one dimension.
STAYS = {
    "norm plus eps": (
        lambda x, w, b: x / (x.norm(dim=1, keepdim=True) + EPS),
        ["eps is added to the root of its mean square, which no op does"],
    ),
    "two dimensions": (_two_dimensions, []),
    "different dims": (
        lambda x, w, b: _centred(x) / torch.sqrt(x.var(2, correction=0, keepdim=True) + EPS),
        [],
    ),
    "one dimension twice": (
        lambda x, w, b: x * torch.rsqrt(x.pow(2).mean(2, True).mean(1, True) + EPS),
        [],
    ),
    "scale of another dimension": (_scale_of_another_dimension, []),
}


@pytest.mark.parametrize("model, reasons", STAYS.values(), ids=STAYS)
def test_what_no_op_computes_over_one_dimension_stays_for_its_reason(rewrite, draw, model, reasons):
    assert_becomes(rewrite, model, draw(), {}, reasons)


def test_a_factor_of_a_number_of_channels_that_is_not_known_stays(rewrite_dynamo, draw):
    def model(x):
        return x * torch.rsqrt(_squares(x) + EPS) * 2

    x = draw()[0]
    torch._dynamo.mark_dynamic(x, 1)
    rewritten = rewrite_dynamo(model, x)
    assert rewritten.reasons == ["the length of its rows is not known at compile time"]
    torch.testing.assert_close(rewritten.call(x), model(x))


every_format = pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])


@every_format
def test_transposed_images_are_normalised_where_they_lie(rewrite, draw, format):
    def model(x, w, b):
        return _convnext(x.transpose(0, 3).transpose(2, 3), w, b)

    arguments = draw(format=format)
    rewritten = assert_becomes(rewrite, model, arguments, {"spatial_layer_norm": 1}, **ROUNDED)
    assert "clone" not in rewritten.code and not model(*arguments).is_contiguous()


@every_format
def test_a_layer_norm_between_permutations_gives_channels_last_as_before(rewrite, draw, format):
    """The result is channels-last in eager mode even where the image is not, so that layer_norm
    runs on the permuted image: spatial_layer_norm would write the image's own order."""

    def convnext_block(x, w, b):
        x = x.permute(0, 2, 3, 1)
        return F.layer_norm(x, (C,), w, b, EPS).permute(0, 3, 1, 2)

    arguments = draw(format=format)
    rewritten = assert_becomes(rewrite, convnext_block, arguments, {"layer_norm": 1}, **ROUNDED)
    assert "clone" not in rewritten.code
    assert convnext_block(*arguments).is_contiguous(memory_format=torch.channels_last)


def test_a_weight_in_another_order_is_not_taken_for_the_weight(rewrite, draw):
    def model(x, w, b, order):
        return _no_parameters(x, w, b) * w[order].unsqueeze(-1)

    arguments = (*draw(), torch.arange(C).flip(0)[:, None])
    assert_becomes(rewrite, model, arguments, {"spatial_layer_norm": 1}, **ROUNDED)


def test_parameters_may_have_the_shape_already(rewrite, draw):
    x, w, b = draw()
    arguments = x, w[:, None, None], b[None, :, None, None]

    def model(x, w, b):
        return _no_parameters(x, w, b) * w + b

    assert_becomes(rewrite, model, arguments, {"spatial_layer_norm": 1}, **ROUNDED)


def test_a_view_of_a_parameter_may_be_used_again(rewrite, draw):
    def model(x, w, b):
        w = w[:, None, None]
        return _no_parameters(x, w, b) * w, w * 2

    assert_becomes(rewrite, model, draw(), {"spatial_layer_norm": 1}, **ROUNDED)


@pytest.mark.parametrize(
    "model, call",
    [
        (_convnext, "spatial_layer_norm(x, dim=1, weight=w, bias=b, eps=1e-06)"),
        (_rms_norm, "spatial_rms_norm(x, dim=1, weight=w, eps=1e-06)"),
    ],
)
def test_a_norm_becomes_one_call(rewrite, draw, model, call):
    rewritten = rewrite(model, *draw())
    assert rewritten.calls == [call] and rewritten.results == [f"{call.partition('(')[0]}[0]"]
    assert rewritten.unused == []
