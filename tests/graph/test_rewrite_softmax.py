"""The softmax rule: every spelling, at every capture level, with eager's values."""

import pytest
import torch
import torch.nn.functional as F
from expecttest import assert_expected_inline
from torch import nn

from fusedops.graph.analysis.calls import as_call

aten = torch.ops.aten

FUNCTIONS = {
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
MODULES = {
    "nn.Softmax": nn.Softmax(dim=1),
    "nn.Softmax dim=None": nn.Softmax(),
    "nn.Softmax2d": nn.Softmax2d(),
    "nn.LogSoftmax": nn.LogSoftmax(dim=-1),
    "nn.LogSoftmax dim=None": nn.LogSoftmax(),
}


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
@pytest.mark.parametrize("spelling", FUNCTIONS)
def test_every_function_spelling_is_replaced(rewrite, spelling):
    function, x = FUNCTIONS[spelling], torch.randn(2, 3, 5)
    rewritten = rewrite(function, x)
    op = "log_softmax" if "log_softmax" in spelling else "softmax"
    assert rewritten.replaced == {op: 1} and rewritten.reasons == []
    assert f"fusedops.{op}.default" in rewritten.code
    torch.testing.assert_close(rewritten.call(x), function(x), rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
@pytest.mark.parametrize("spelling", MODULES)
def test_every_module_spelling_is_replaced(rewrite, spelling):
    model, x = nn.Sequential(MODULES[spelling]), torch.randn(2, 3, 5, 4)
    rewritten = rewrite(model, x)
    assert rewritten.replaced == {"log_softmax" if "Log" in spelling else "softmax": 1}
    torch.testing.assert_close(rewritten.call(x), model(x), rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_dim_none_picks_the_dim_that_torch_picks(rewrite_dynamo, rank):
    x = torch.randn(*range(2, 2 + rank))
    rewritten = rewrite_dynamo(lambda x: F.softmax(x), x)
    assert rewritten.replaced == {"softmax": 1}
    torch.testing.assert_close(rewritten.call(x), F.softmax(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.bool])
def test_dtype_casts_before_the_softmax(rewrite, dtype):
    x = torch.randn(4, 6).mul(3).to(dtype)
    rewritten = rewrite(lambda x: torch.softmax(x, -1, dtype=torch.float32), x)
    assert rewritten.replaced == {"softmax": 1}
    expected = torch.softmax(x, -1, dtype=torch.float32)
    torch.testing.assert_close(rewritten.call(x), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("op", [torch.softmax, torch.log_softmax])
def test_gradients_are_eagers(rewrite_dynamo, op):
    x = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)

    def model(x):
        return op(x.sin(), 1) * x

    rewritten = rewrite_dynamo(model, x)
    assert sum(rewritten.replaced.values()) == 1
    weight = torch.randn_like(x)
    (ours,) = torch.autograd.grad((rewritten.call(x) * weight).sum(), x)
    (eager,) = torch.autograd.grad((model(x) * weight).sum(), x)
    torch.testing.assert_close(ours, eager, rtol=1e-12, atol=1e-12)


def _attention(x):
    return torch.softmax(x @ x.transpose(-1, -2), dim=-1) @ x


def test_the_dynamo_graph_after_the_rewrite(entries):
    x = torch.randn(2, 3, 4)
    rewritten = entries["dynamo"](_attention, x)
    assert rewritten.replaced == {"softmax": 1}
    torch.testing.assert_close(rewritten.call(x), _attention(x), rtol=1e-5, atol=1e-5)
    assert_expected_inline(
        rewritten.code,
        """\
transpose = transpose(l_x_, -1, -2)
matmul = operator.matmul(l_x_, transpose)
softmax_default = fusedops.softmax.default(matmul, -1, None)
matmul_1 = operator.matmul(softmax_default, l_x_)
return (matmul_1,)""",
    )


def test_the_exported_graph_after_the_rewrite(entries):
    x = torch.randn(2, 3, 4)
    rewritten = entries["export"](_attention, x)
    assert rewritten.replaced == {"softmax": 1}
    torch.testing.assert_close(rewritten.call(x), _attention(x), rtol=1e-5, atol=1e-5)
    assert_expected_inline(
        rewritten.code,
        """\
transpose = aten.transpose.int(args_0, -1, -2)
matmul = aten.matmul.default(args_0, transpose)
softmax_default = fusedops.softmax.default(matmul, -1, None)
matmul_1 = aten.matmul.default(softmax_default, args_0)
return (matmul_1,)""",
    )


def test_the_traced_graph_after_the_rewrite(entries):
    x = torch.randn(2, 3, 4)
    rewritten = entries["symbolic_trace"](_attention, x)
    assert rewritten.replaced == {"softmax": 1}
    torch.testing.assert_close(rewritten.call(x), _attention(x), rtol=1e-5, atol=1e-5)
    assert_expected_inline(
        rewritten.code,
        """\
transpose = transpose(x, -1, -2)
matmul = operator.matmul(x, transpose)
softmax_default = fusedops.softmax.default(matmul, -1, None)
matmul_1 = operator.matmul(softmax_default, x)
return matmul_1""",
    )


def test_a_conversion_inside_of_atens_softmax_is_its_dtype():
    graph = torch.fx.Graph()
    half_to_float = graph.call_function(aten._softmax.default, (graph.placeholder("x"), -1, True))
    assert as_call(half_to_float).arguments["dtype"] == torch.float32
