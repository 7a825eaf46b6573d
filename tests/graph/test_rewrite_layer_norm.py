"""The layer_norm rule: every spelling, at every capture level, with eager's values."""

import pytest
import torch
import torch.nn.functional as F
from expecttest import assert_expected_inline
from torch import nn

aten = torch.ops.aten


def _outputs_added(outputs):
    return outputs[0] + outputs[1] + outputs[2]


SPELLINGS = {
    "F.layer_norm": lambda x, w, b: F.layer_norm(x, (8,), w, b, 1e-3),
    "F.layer_norm keywords": lambda x, w, b: F.layer_norm(
        input=x, normalized_shape=[8], eps=1e-3, bias=b, weight=w
    ),
    "F.layer_norm defaults": lambda x, w, b: F.layer_norm(x, x.shape[-1:]),
    "F.layer_norm weight only": lambda x, w, b: F.layer_norm(x, (x.size(-1),), weight=w),
    "F.layer_norm bias only": lambda x, w, b: F.layer_norm(x, (8,), bias=b),
    "F.layer_norm two dims": lambda x, w, b: F.layer_norm(x, (4, 8)),
    "F.layer_norm all dims": lambda x, w, b: F.layer_norm(x, x.shape),
    "torch.layer_norm": lambda x, w, b: torch.layer_norm(x, [8], w, b, 1e-6),
    "torch.layer_norm cudnn": lambda x, w, b: torch.layer_norm(x, [8], w, b, 1e-6, False),
    "torch.native_layer_norm": lambda x, w, b: torch.native_layer_norm(x, [8], w, b, 1e-5)[0],
    "native statistics": lambda x, w, b: torch.native_layer_norm(x, [8], w, b, 1e-5)[2],
    "native all three": lambda x, w, b: _outputs_added(torch.native_layer_norm(x, [8], w, b, 1e-5)),
    "aten.layer_norm.default": lambda x, w, b: aten.layer_norm.default(x, [8], w, b),
    "aten.native_layer_norm.default": lambda x, w, b: aten.native_layer_norm.default(
        x, [8], w, b, 1e-5
    )[0],
}
MODULES = {
    "nn.LayerNorm": nn.LayerNorm(8),
    "nn.LayerNorm eps": nn.LayerNorm(8, eps=1e-2),
    "nn.LayerNorm no bias": nn.LayerNorm(8, bias=False),
    "nn.LayerNorm no affine": nn.LayerNorm(8, elementwise_affine=False),
    "nn.LayerNorm two dims": nn.LayerNorm((4, 8)),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_function_spelling_is_replaced(rewrite, spelling):
    function, args = SPELLINGS[spelling], (torch.randn(2, 4, 8), torch.randn(8), torch.randn(8))
    rewritten = rewrite(function, *args)
    assert rewritten.replaced == {"layer_norm": 1} and rewritten.reasons == []
    assert "fusedops.layer_norm.default" in rewritten.code
    torch.testing.assert_close(rewritten.call(*args), function(*args), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spelling", MODULES)
def test_every_module_spelling_is_replaced(rewrite, spelling):
    model, x = nn.Sequential(nn.Linear(8, 8), MODULES[spelling]), torch.randn(2, 4, 8)
    rewritten = rewrite(model, x)
    assert rewritten.replaced == {"layer_norm": 1}
    torch.testing.assert_close(rewritten.call(x), model(x), rtol=1e-5, atol=1e-5)


def test_gradients_are_eagers(rewrite_dynamo):
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU()).double()
    x = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    rewritten = rewrite_dynamo(model, x)
    assert rewritten.replaced == {"layer_norm": 1}
    leaves = [x, *model.parameters()]
    ours = torch.autograd.grad(rewritten.call(x).sin().sum(), leaves)
    eager = torch.autograd.grad(model(x).sin().sum(), leaves)
    torch.testing.assert_close(ours, eager, rtol=1e-12, atol=1e-12)


def test_statistics_that_eager_rounds_to_bfloat16_are_left(rewrite_dynamo):
    def model(x):
        output, mean, _ = torch.native_layer_norm(x, [8], None, None, 1e-5)
        return output, mean

    rewritten = rewrite_dynamo(model, torch.randn(2, 8, dtype=torch.bfloat16))
    assert rewritten.replaced == {}
    assert rewritten.reasons == ["output dtype would be torch.float32, eager gives torch.bfloat16"]


def test_a_tuple_used_whole_is_left(entries):
    def model(x):
        return torch.native_layer_norm(x, [8], None, None, 1e-5)

    x = torch.randn(2, 8)
    rewritten = entries["symbolic_trace"](model, x)
    assert rewritten.reasons == ["its outputs are used as one tuple"]
    torch.testing.assert_close(rewritten.call(x), model(x))


def _block(x, w, b):
    return x + F.layer_norm(x, (4,), w, b)


class _Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        return x + self.norm(x)


def test_the_dynamo_graph_after_the_rewrite(entries):
    args = (torch.randn(2, 4), torch.randn(4), torch.randn(4))
    rewritten = entries["dynamo"](_block, *args)
    assert rewritten.replaced == {"layer_norm": 1}
    torch.testing.assert_close(rewritten.call(*args), _block(*args), rtol=1e-5, atol=1e-5)
    assert_expected_inline(
        rewritten.code,
        """\
layer_norm_default = fusedops.layer_norm.default(l_x_, (4,), l_w_, l_b_, 1e-05)
getitem = operator.getitem(layer_norm_default, 0)
add = operator.add(l_x_, getitem)
return (add,)""",
    )


def test_the_exported_graph_after_the_rewrite(entries):
    args = (torch.randn(2, 4), torch.randn(4), torch.randn(4))
    rewritten = entries["export"](_block, *args)
    assert rewritten.replaced == {"layer_norm": 1}
    torch.testing.assert_close(rewritten.call(*args), _block(*args), rtol=1e-5, atol=1e-5)
    assert_expected_inline(
        rewritten.code,
        """\
layer_norm_default = fusedops.layer_norm.default(args_0, [4], args_1, args_2, 1e-05)
getitem = operator.getitem(layer_norm_default, 0)
add = aten.add.Tensor(args_0, getitem)
return (add,)""",
    )


def test_the_traced_graph_reads_the_parameters_of_the_leaf_module(entries):
    model, x = _Block(), torch.randn(2, 4)
    rewritten = entries["symbolic_trace"](model, x)
    assert rewritten.replaced == {"layer_norm": 1}
    torch.testing.assert_close(rewritten.call(x), model(x), rtol=1e-5, atol=1e-5)
    assert_expected_inline(
        rewritten.code,
        """\
norm_weight = norm.weight
norm_bias = norm.bias
layer_norm_default = fusedops.layer_norm.default(x, (4,), norm_weight, norm_bias, 1e-05)
getitem = operator.getitem(layer_norm_default, 0)
add = operator.add(x, getitem)
return add""",
    )


class InFloat32(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.float()).to(x.dtype)


class RmsInFloat32(nn.RMSNorm):
    def forward(self, x):
        return super().forward(x.to(torch.float32)).type_as(x)


@pytest.mark.parametrize("kind, op", [(InFloat32, "layer_norm"), (RmsInFloat32, "rms_norm")])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_casts_to_float32_and_back_are_part_of_the_op(rewrite, kind, op, dtype):
    model, x = kind(16), torch.randn(5, 7, 16).to(dtype)
    with torch.no_grad():
        model.weight.normal_()
    rewritten = rewrite(model, x)
    assert rewritten.replaced == {op: 1} and rewritten.reasons == []
    assert not any(cast in rewritten.code for cast in (" to = ", "float = ", "_to_copy", "type_as"))
    ours, eager = rewritten.call(x), model(x)
    assert ours.dtype == dtype and (ours != eager).double().mean() < 0.02
    torch.testing.assert_close(ours, eager)


def test_a_float32_result_that_is_used_too_keeps_its_casts(rewrite):
    def model(x):
        y = torch.layer_norm(x.float(), (16,))
        return y.to(x.dtype), y

    x = torch.randn(5, 16).bfloat16()
    rewritten = rewrite(model, x)
    assert rewritten.replaced == {"layer_norm": 1}
    torch.testing.assert_close(rewritten.call(x), model(x))
