"""Norms over the channels of images, as models write them out, and over groups of channels."""

import bounds
import pytest
import torch
import torch.nn.functional as F
from agreement import assert_becomes, assert_same_gradients
from norm_forms import CHANNELS, LayerNorm, centred
from norm_forms import N as C
from norm_forms import draw_images as draw

import fusedops

EPS = 1e-6


def _no_parameters(x):
    u = x.mean(1, True)
    return (x - u) / torch.sqrt((x - u).square().mean(1, True) + EPS)


def _convnext(x, w, b):
    return w[:, None, None] * _no_parameters(x) + b[:, None, None]


def _rms_norm_without_weight(x):
    return x * torch.rsqrt((x * x).mean(1, keepdim=True) + EPS)


def _rms_norm(x, w, b):
    return _rms_norm_without_weight(x) * w[:, None, None]


def test_the_backward_pass_is_our_op_too(backward_ops):
    leaves = draw(requires_grad=True)
    assert backward_ops(_convnext, *leaves) == {"spatial_layer_norm_backward": 1}
    assert backward_ops(_rms_norm, *leaves) == {"spatial_rms_norm_backward": 1}


@pytest.mark.slow("Inductor compiles a model and its backward pass")
def test_a_model_of_several_is_compiled_with_eagers_values_and_gradients():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, C, 3), LayerNorm(1, C, 1, 1), torch.nn.GELU(), torch.nn.Conv2d(C, C, 1)
    ).double()
    compiled, x = torch.compile(model, backend="fusedops"), draw()[0][:, :3]
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-9, atol=1e-12)
    parameters = list(model.parameters())
    assert_same_gradients(compiled, model, [x], parameters, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_16_bits_the_result_is_rounded_once(rewrite, dtype):
    def model(x, w, b):
        return _convnext(x.float(), w, b).to(x.dtype)

    x, w, b = draw(16, dtype)
    rewritten = rewrite(model, x, w, b)
    assert rewritten.replaced == {"spatial_layer_norm": 1} and " to = " not in rewritten.code
    ours = rewritten.call(x, w, b)
    assert ours.dtype == dtype
    rows, exact = (t.movedim(1, -1).reshape(-1, C) for t in (ours, x))
    bounds.assert_within(rows, bounds.norm("layer_norm", exact, w, b, EPS))


def _along_the_channels(view):
    return lambda x, w, b: _no_parameters(x) * view(w) + view(b)


def _reversed(p):
    return p[torch.arange(C).flip(0)[:, None]].unsqueeze(-1)


def _over_the_first_dimension(x, w, b):
    return centred(x, 0) / torch.sqrt(x.var(0, correction=0, keepdim=True) + EPS)


#: Weight and bias may be any view that broadcasts along the channels, or a copy in another order.
FORMS = {
    "view": _along_the_channels(lambda p: p.view(-1, 1, 1)),
    "view of four dimensions": _along_the_channels(lambda p: p.view(1, C, 1, 1)),
    "unsqueeze": _along_the_channels(lambda p: p.unsqueeze(-1).unsqueeze(-1)),
    "sequence": lambda x, w, b: w[:, None] * _no_parameters(x.flatten(2)) + b[:, None],
    "over the first dimension": _over_the_first_dimension,
    "in another order": _along_the_channels(_reversed),
}


@pytest.mark.parametrize("model", FORMS.values(), ids=FORMS)
def test_every_form_is_the_one_op_with_its_parameters(rewrite, model):
    inputs = draw(requires_grad=True)
    rewritten = assert_becomes(rewrite, model, inputs, {"spatial_layer_norm": 1})
    assert set(rewritten.results) == {"spatial_layer_norm[0]"}


@pytest.mark.parametrize("name", CHANNELS)
def test_only_where_eager_changes_the_order_of_a_channels_last_image_is_the_result_copied(
    rewrite_dynamo, name
):
    form, inputs = CHANNELS[name], draw(format=torch.channels_last)
    rewritten = assert_becomes(rewrite_dynamo, form, inputs, {name.partition(":")[0]: 1})
    assert ("clone" in rewritten.code) == (form(*inputs).stride() != inputs[0].stride())


# --- look-alikes ----------------------------------------------------------------------------------


#: Weights that are not the op's: the model, its norm, and what of the weight is computed outside.
OUTSIDE = {
    "of columns": (lambda x, w, b: _no_parameters(x) * w[:5], "spatial_layer_norm", "mul"),
    "of an image": (lambda x, w, b: _no_parameters(x) * x[:1], "spatial_layer_norm", "mul"),
    "with an offset, computed before the op": (
        lambda x, w, b: _rms_norm_without_weight(x) * (1 + w[:, None, None]),
        "spatial_rms_norm",
        "add",
    ),
}


@pytest.mark.parametrize("model, op, outside", OUTSIDE.values(), ids=OUTSIDE)
def test_other_weights_are_computed_outside(rewrite, model, op, outside):
    rewritten = assert_becomes(rewrite, model, draw(), {op: 1})
    assert [step for step in ("mul", "add") if step in rewritten.code] == [outside]


def test_a_weight_after_the_rounding_stays_outside(rewrite):
    def model(x, w, b):
        return _rms_norm_without_weight(x.float()).to(x.dtype) * w[:, None, None]

    arguments = draw(dtype=torch.bfloat16)
    rewritten = assert_becomes(rewrite, model, arguments, {"spatial_rms_norm": 1})
    assert "mul" in rewritten.code


def _two_dimensions(x, w, b):
    dims = (1, 2)
    return (x - x.mean(dims, True)) / torch.sqrt(x.var(dims, correction=0, keepdim=True) + EPS)


def _scale_of_another_dimension(x, w, b):
    x = x[..., :4]  # 4 rows of 4 columns, with which the scales of each other could be confused
    return x / torch.sqrt(x.pow(2).mean(2) + EPS)[..., None]


#: The reasons; there is none where the form is no norm of one dimension.
STAYS = {
    "norm plus eps": (
        lambda x, w, b: x / (x.norm(dim=1, keepdim=True) + EPS),
        ["eps is added to the root of its mean square, which no op does"],
    ),
    "two dimensions": (_two_dimensions, []),
    "different dims": (
        lambda x, w, b: centred(x, 1) / torch.sqrt(x.var(2, correction=0, keepdim=True) + EPS),
        [],
    ),
    "one dimension twice": (
        lambda x, w, b: x * torch.rsqrt(x.pow(2).mean(2, True).mean(1, True) + EPS),
        [],
    ),
    "scale of another dimension": (_scale_of_another_dimension, []),
    "groups": (
        lambda x, w, b: F.group_norm(x, 2, w, b),
        ["normalises groups of channels, which no op does for more than one group"],
    ),
    "instances": (
        lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
        ["normalises each channel of an image, which no op does"],
    ),
}


@pytest.mark.parametrize("model, reasons", STAYS.values(), ids=STAYS)
def test_what_no_op_computes_over_one_dimension_stays_for_its_reason(rewrite, model, reasons):
    assert_becomes(rewrite, model, draw(), {}, reasons)


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
def test_transposed_images_are_normalised_where_they_lie(rewrite, format):
    def model(x, w, b):
        return _convnext(x.transpose(0, 3).transpose(2, 3), w, b)

    arguments = draw(format=format)
    rewritten = assert_becomes(rewrite, model, arguments, {"spatial_layer_norm": 1})
    assert "clone" not in rewritten.code and not model(*arguments).is_contiguous()


def test_parameters_may_have_the_shape_already(rewrite):
    x, w, b = draw()
    arguments = x, w[:, None, None], b[None, :, None, None]
    model = _along_the_channels(lambda p: p)
    assert_becomes(rewrite, model, arguments, {"spatial_layer_norm": 1})


def test_a_view_of_a_parameter_may_be_used_again(rewrite):
    def model(x, w, b):
        w = w[:, None, None]
        return _no_parameters(x) * w, w * 2

    assert_becomes(rewrite, model, draw(), {"spatial_layer_norm": 1})


# --- group_norm with one group is a layer_norm over whole images ----------------------------------

GROUP_NORMS = {
    "function": lambda x, w, b: F.group_norm(x, 1, w, b, 1e-6),
    "torch's": lambda x, w, b: torch.group_norm(x, 1, w, b),
    "without parameters": lambda x, w, b: F.group_norm(x, num_groups=1),
    "a sequence": lambda x, w, b: F.group_norm(x.flatten(2), 1, w, b),
    "no other dimension": lambda x, w, b: F.group_norm(x[..., 0, 0], 1, w, b),
}


@pytest.mark.parametrize("name", GROUP_NORMS)
def test_one_group_is_a_layer_norm(rewrite, name):
    assert_becomes(rewrite, GROUP_NORMS[name], draw(requires_grad=True), {"layer_norm": 1})


def test_a_group_norm_of_a_channels_last_image_stays_channels_last(rewrite_dynamo):
    inputs = draw(format=torch.channels_last)
    assert_becomes(rewrite_dynamo, GROUP_NORMS["function"], inputs, {"layer_norm": 1})


def test_the_parameters_of_a_group_norm_are_used(rewrite):
    model = torch.nn.Sequential(torch.nn.GroupNorm(1, C)).double()
    torch.nn.init.normal_(model[0].weight)
    assert_becomes(rewrite, model, draw()[:1], {"layer_norm": 1})


def test_expanded_parameters_count_as_traffic(rewrite_dynamo):
    """They are as long as an image, and are written and read for each call."""
    with fusedops.config.patch(fuse="profitable"):
        plain, affine = (
            rewrite_dynamo(GROUP_NORMS[name], *draw()).report.sites[0].figures
            for name in ("without parameters", "function")
        )
    assert plain.passes_ms == 0 < affine.passes_ms
