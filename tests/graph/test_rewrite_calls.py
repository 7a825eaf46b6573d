"""Calls of softmax, log_softmax, layer_norm and rms_norm: every spelling, at every capture level,
with eager's values."""

import inspect

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_becomes, assert_same_gradients
from torch import nn

from fusedops.graph.analysis.calls import as_call

aten = torch.ops.aten

SOFTMAX = {
    "F.softmax": lambda x: F.softmax(x, -1),
    "F.softmax keyword": lambda x: F.softmax(input=x, dim=1),
    "F.softmax dim=None": lambda x: F.softmax(x),
    "F.softmax dtype": lambda x: F.softmax(x, 1, dtype=torch.float64),
    "F.softmax positional dtype": lambda x: F.softmax(x, 1, 3, torch.float64),
    "torch.softmax": lambda x: torch.softmax(x, 0),
    "torch.softmax keyword": lambda x: torch.softmax(x, dim=-2, dtype=torch.float64),
    "torch.softmax axis": lambda x: torch.softmax(x, axis=1),
    "Tensor.softmax": lambda x: x.softmax(-1),
    "Tensor.softmax dtype": lambda x: x.softmax(1, torch.float64),
    "torch.special.softmax": lambda x: torch.special.softmax(x, 2),
    "torch.special.softmax dtype": lambda x: torch.special.softmax(x, 1, dtype=torch.float64),
    "torch._softmax": lambda x: torch._softmax(x, 1, False),
    "aten.softmax.int": lambda x: aten.softmax.int(x, 1),
    "aten.softmax packet": lambda x: aten.softmax(x, 1),
    "aten._softmax.default": lambda x: aten._softmax.default(x, -1, False),
}
LOG_SOFTMAX = {
    "F.log_softmax": lambda x: F.log_softmax(x, -1),
    "F.log_softmax dim=None": lambda x: F.log_softmax(x),
    "F.log_softmax dtype": lambda x: F.log_softmax(x, dim=0, dtype=torch.float64),
    "torch.log_softmax": lambda x: torch.log_softmax(x, 1),
    "Tensor.log_softmax": lambda x: x.log_softmax(dim=1),
    "torch.special.log_softmax": lambda x: torch.special.log_softmax(x, 1, dtype=torch.float64),
    "torch._log_softmax": lambda x: torch._log_softmax(x, 1, False),
    "aten.log_softmax.int": lambda x: aten.log_softmax.int(x, 1, torch.float64),
    "aten._log_softmax.default": lambda x: aten._log_softmax.default(x, 1, False),
}
LAYER_NORM = {
    "F.layer_norm": lambda x, w, b: F.layer_norm(x, (8,), w, b, 1e-3),
    "F.layer_norm keywords": lambda x, w, b: F.layer_norm(
        input=x, normalized_shape=[8], eps=1e-3, bias=b, weight=w
    ),
    "F.layer_norm defaults": lambda x: F.layer_norm(x, x.shape[-1:]),
    "F.layer_norm weight only": lambda x, w: F.layer_norm(x, (x.size(-1),), weight=w),
    "F.layer_norm bias only": lambda x, b: F.layer_norm(x, (8,), bias=b),
    "F.layer_norm two dims": lambda x: F.layer_norm(x, (4, 8)),
    "F.layer_norm all dims": lambda x: F.layer_norm(x, x.shape),
    "torch.layer_norm": lambda x, w, b: torch.layer_norm(x, [8], w, b, 1e-6),
    "torch.layer_norm cudnn": lambda x, w, b: torch.layer_norm(x, [8], w, b, 1e-6, False),
    "torch.native_layer_norm": lambda x, w, b: torch.native_layer_norm(x, [8], w, b, 1e-5)[0],
    "native statistics": lambda x, w, b: torch.native_layer_norm(x, [8], w, b, 1e-5)[2],
    "native all three": lambda x, w, b: _added(torch.native_layer_norm(x, [8], w, b, 1e-5)),
    "aten.layer_norm.default": lambda x, w, b: aten.layer_norm.default(x, [8], w, b),
    "aten.native_layer_norm.default": lambda x, w, b: aten.native_layer_norm.default(
        x, [8], w, b, 1e-5
    )[0],
}
RMS_NORM = {
    "F.rms_norm": lambda x, w: F.rms_norm(x, (8,), w, 1e-3),
    "F.rms_norm keywords": lambda x, w: F.rms_norm(
        input=x, normalized_shape=[8], eps=1e-3, weight=w
    ),
    "F.rms_norm defaults": lambda x: F.rms_norm(x, x.shape[-1:]),
    "F.rms_norm two dims": lambda x: F.rms_norm(x, (4, 8)),
    "F.rms_norm all dims": lambda x: F.rms_norm(x, x.shape, eps=1e-6),
    "torch.rms_norm": lambda x, w: torch.rms_norm(x, [8], w, 1e-6),
    "aten.rms_norm.default": lambda x, w: aten.rms_norm.default(x, [8], w),
    "aten._fused_rms_norm.default": lambda x, w: aten._fused_rms_norm.default(x, [8], w, 1e-6)[0],
    "fused statistics": lambda x, w: aten._fused_rms_norm.default(x, [8], w, 1e-6)[1],
}
MODULES = {
    "softmax": [nn.Softmax(dim=1), nn.Softmax(), nn.Softmax2d()],
    "log_softmax": [nn.LogSoftmax(dim=-1), nn.LogSoftmax()],
    "layer_norm": [
        nn.LayerNorm(8),
        nn.LayerNorm(8, eps=1e-2),
        nn.LayerNorm(8, bias=False),
        nn.LayerNorm(8, elementwise_affine=False),
        nn.LayerNorm((4, 8)),
    ],
    "rms_norm": [
        nn.RMSNorm(8),
        nn.RMSNorm(8, eps=1e-2),
        nn.RMSNorm(8, elementwise_affine=False),
        nn.RMSNorm((4, 8)),
    ],
}
#: Each function, and the op that it becomes.
FUNCTIONS = {name: (form, "softmax") for name, form in SOFTMAX.items()}
FUNCTIONS |= {name: (form, "log_softmax") for name, form in LOG_SOFTMAX.items()}
FUNCTIONS |= {name: (form, "layer_norm") for name, form in LAYER_NORM.items()}
FUNCTIONS |= {name: (form, "rms_norm") for name, form in RMS_NORM.items()}


def _added(outputs):
    return outputs[0] + outputs[1] + outputs[2]


def _precision(op):
    return dict.fromkeys(("rtol", "atol"), 1e-6 if "softmax" in op else 1e-5)


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
@pytest.mark.parametrize("function, op", FUNCTIONS.values(), ids=FUNCTIONS)
def test_every_function_spelling_is_replaced(rewrite, function, op):
    inputs = torch.randn(2, 4, 8), torch.randn(8), torch.randn(8)
    inputs = inputs[: len(inspect.signature(function).parameters)]
    rewritten = assert_becomes(rewrite, function, inputs, {op: 1}, **_precision(op))
    assert f"fusedops.{op}.default" in rewritten.code


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
@pytest.mark.parametrize("module, op", [(m, op) for op in MODULES for m in MODULES[op]], ids=str)
def test_every_module_spelling_is_replaced(rewrite, module, op):
    model, x = nn.Sequential(nn.Linear(8, 8), module), torch.randn(3, 2, 4, 8)
    assert_becomes(rewrite, model, [x], {op: 1}, **_precision(op))


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_dim_none_picks_the_dim_that_torch_picks(rewrite_dynamo, rank):
    x = torch.randn(*range(2, 2 + rank))
    assert_becomes(rewrite_dynamo, lambda x: F.softmax(x), [x], {"softmax": 1})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.bool])
def test_dtype_casts_before_the_softmax(rewrite, dtype):
    def model(x):
        return torch.softmax(x, -1, dtype=torch.float32)

    x = torch.randn(4, 6).mul(3).to(dtype)
    assert_becomes(rewrite, model, [x], {"softmax": 1}, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_gradients_of_softmaxes_are_eagers(rewrite_dynamo, op):
    def model(x):
        return getattr(torch, op)(x.sin(), 1) * x

    x = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    assert_becomes(rewrite_dynamo, model, [x], {op: 1}, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("norm, op", [(nn.LayerNorm, "layer_norm"), (nn.RMSNorm, "rms_norm")])
def test_gradients_of_norms_are_eagers(rewrite_dynamo, norm, op):
    model = nn.Sequential(nn.Linear(8, 8), norm(8), nn.GELU()).double()
    x = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    rewritten = assert_becomes(rewrite_dynamo, model, [x], {op: 1})
    assert_same_gradients(rewritten.call, model, [x], list(model.parameters()))


#: By its call in the rewritten graph: a model, and the graph's result.
GRAPHS = {
    "softmax(matmul(x, transpose(x, -1, -2)), dim=-1)": (
        lambda x: torch.softmax(x @ x.transpose(-1, -2), dim=-1) @ x,
        "matmul(softmax, x)",
    ),
    "layer_norm(x, normalized_shape=[4], weight=w, bias=b, eps=1e-05)": (
        lambda x, w, b: x + F.layer_norm(x, (4,), w, b),
        "add(x, layer_norm[0])",
    ),
    "rms_norm(x, normalized_shape=[4], weight=w, eps=1e-06)": (
        lambda x, w: x + F.rms_norm(x, (4,), w, 1e-6),
        "add(x, rms_norm[0])",
    ),
}


@pytest.mark.parametrize("call", GRAPHS)
def test_the_graph_after_the_rewrite(rewrite, call):
    model, result = GRAPHS[call]
    inputs = torch.randn(2, 4), torch.randn(4), torch.randn(4)
    rewritten = rewrite(model, *inputs[: len(inspect.signature(model).parameters)])
    assert rewritten.calls == [call] and rewritten.results == [result] and not rewritten.unused


def test_a_conversion_inside_of_atens_softmax_is_its_dtype():
    graph = torch.fx.Graph()
    half_to_float = graph.call_function(aten._softmax.default, (graph.placeholder("x"), -1, True))
    assert as_call(half_to_float).arguments["dtype"] == torch.float32


# --- statistics, casts and defaults of norms ------------------------------------------------------


def test_statistics_that_eager_rounds_to_bfloat16_are_left(rewrite_dynamo):
    def model(x):
        output, mean, _ = torch.native_layer_norm(x, [8], None, None, 1e-5)
        return output, mean

    reason = "output dtype would be torch.float32, eager gives torch.bfloat16"
    x = torch.randn(2, 8, dtype=torch.bfloat16)
    assert_becomes(rewrite_dynamo, model, [x], {}, [reason])


@pytest.mark.parametrize("used", [lambda outputs: outputs, lambda outputs: outputs[1:]])
def test_a_tuple_used_whole_or_as_a_slice_is_left_with_the_sum_before_it(entries, used):
    def model(x, r):
        return used(torch.native_layer_norm(x + r, [8], None, None, 1e-5))

    reason, inputs = "its outputs are used as one tuple", torch.randn(2, 2, 8).unbind()
    assert_becomes(entries["symbolic_trace"], model, inputs, {}, [reason])


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
    rewritten = assert_becomes(rewrite, model, [x], {op: 1})
    assert not any(cast in rewritten.code for cast in (" to = ", "float = ", "_to_copy", "type_as"))
    assert (rewritten.call(x) != model(x)).double().mean() < 0.02


def test_a_float32_result_that_is_used_too_keeps_its_casts(rewrite):
    def model(x):
        y = torch.layer_norm(x.float(), (16,))
        return y.to(x.dtype), y

    x = torch.randn(5, 16).bfloat16()
    assert_becomes(rewrite, model, [x], {"layer_norm": 1})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_an_eps_that_is_left_out_is_eagers(rewrite, dtype):
    x = torch.full((2, 8), 1e-4, dtype=dtype)  # small beside eps in float32, large in float64
    assert_becomes(rewrite, nn.RMSNorm(8).to(dtype), [x], {"rms_norm": 1})


def test_a_transposed_input_gives_eagers_strides(rewrite):
    x = torch.randn(4, 8).t()
    assert_becomes(rewrite, lambda x: F.rms_norm(x, (4,)), [x], {"rms_norm": 1})


def test_a_float32_weight_beside_bfloat16_keeps_eagers_dtype(rewrite):
    inputs = torch.randn(2, 8, dtype=torch.bfloat16), torch.randn(8)
    assert_becomes(rewrite, lambda x, w: F.rms_norm(x, (8,), w), inputs, {"rms_norm": 1})
