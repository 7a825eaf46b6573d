"""A norm over channels between permutations is a spatial norm of the image where eager's result has
the order of the image, so that nothing is copied; and else a norm of the permuted image."""

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_becomes, assert_one_graph
from decomposed import layer_norm_decomposed, rms_norm_decomposed
from norm_forms import N as C
from norm_forms import draw_images as draw

EPS = 1e-6


def _last(x):
    return x.permute(0, 2, 3, 1)


def _first(y):
    return y.permute(0, 3, 1, 2)


def _layer_norm(y, w, b):
    return F.layer_norm(y, (C,), w, b, EPS)


def _rms_norm(y, w, b):
    return F.rms_norm(y, (C,), w, EPS)


SPATIAL = {
    "contiguous": lambda x, w, b: _first(_layer_norm(_last(x), w, b)).contiguous(),
    "clone": lambda x, w, b: _first(_layer_norm(_last(x), w, b)).clone(
        memory_format=torch.contiguous_format
    ),
    "a copy before it too": lambda x, w, b: _first(
        _layer_norm(_last(x).contiguous(), w, b)
    ).contiguous(),
    "movedim": lambda x, w, b: _layer_norm(x.movedim(1, -1), w, b).moveaxis(3, 1).contiguous(),
    "several moved": lambda x, w, b: torch.movedim(
        _layer_norm(torch.movedim(x, (2, 3), (1, 2)), w, b), (1, 2), (2, 3)
    ).contiguous(),
    "a sequence": lambda x, w, b: (
        _layer_norm(x.flatten(2).transpose(1, 2), w, b).swapaxes(-1, -2).contiguous()
    ),
    "without weight": lambda x, w, b: _first(F.layer_norm(_last(x), (C,), eps=EPS)).contiguous(),
    "decomposed": lambda x, w, b: _first(layer_norm_decomposed(_last(x), w, b)),
    "decomposed, a sequence": lambda x, w, b: layer_norm_decomposed(
        x.flatten(2).transpose(1, 2), w, b
    ).transpose(1, 2),
}
SPATIAL_RMS = {
    "rms_norm": lambda x, w, b: _first(_rms_norm(_last(x), w, b)).contiguous(),
    "rms_norm decomposed": lambda x, w, b: _first(rms_norm_decomposed(_last(x), w)),
}
#: Where the channels are side by side in eager's result, and where the last dimension stays last.
PERMUTED = {
    "without a copy": lambda x, w, b: _first(_layer_norm(_last(x), w, b)),
    "channels-last": lambda x, w, b: _first(
        _layer_norm(_last(x.contiguous(memory_format=torch.channels_last)), w, b)
    ),
    "not moved back": lambda x, w, b: _layer_norm(_last(x), w, b).contiguous(),
    "moved elsewhere": lambda x, w, b: _layer_norm(_last(x), w, b).permute(3, 0, 1, 2).contiguous(),
    "the last stays": lambda x, w, b: (
        _layer_norm(_last(x).contiguous().transpose(1, 2), w, b).transpose(1, 2).contiguous()
    ),
    "used in between": lambda x, w, b: (lambda y: _first(y).contiguous() + y.sum())(
        _layer_norm(_last(x), w, b)
    ),
}
FORMS = {name: (form, "spatial_layer_norm") for name, form in SPATIAL.items()}
FORMS |= {name: (form, "spatial_rms_norm") for name, form in SPATIAL_RMS.items()}
FORMS |= {name: (form, "layer_norm") for name, form in PERMUTED.items()}


@pytest.mark.parametrize("name", FORMS)
def test_the_op_runs_on_the_order_of_eagers_result(rewrite, name):
    form, op = FORMS[name]
    rewritten = assert_becomes(rewrite, form, draw(requires_grad=True), {op: 1})
    assert not op.startswith("spatial") or "permute" not in rewritten.code
    assert "clone" not in rewritten.code


@pytest.mark.parametrize("name", ["contiguous", "decomposed", "rms_norm"])
def test_sizes_may_be_symbols(rewrite_dynamo, name):
    (form, op), inputs = FORMS[name], draw(requires_grad=True)
    for dim in (0, 2, 3):
        torch._dynamo.mark_dynamic(inputs[0], dim)
    rewritten = rewrite_dynamo(form, *inputs)
    assert rewritten.replaced == {op: 1}
    other = torch.randn(3, C, 7, 2, dtype=torch.float64, requires_grad=True)
    assert_one_graph(rewritten, form, [[other, *inputs[1:]]])


def test_a_variant_that_the_spatial_op_lacks_stays_permuted(rewrite):
    def form(x, w, b):
        y = _last(x)
        return _first(y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + EPS) * (1 + w)).contiguous()

    assert_becomes(rewrite, form, draw(requires_grad=True), {"rms_norm": 1})
