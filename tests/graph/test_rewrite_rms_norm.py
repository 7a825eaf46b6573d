"""The rms_norm rule: every spelling, at every capture level, with eager's values."""

import pytest
import torch
import torch.nn.functional as F
from expecttest import assert_expected_inline
from torch import nn

aten = torch.ops.aten

SPELLINGS = {
    "F.rms_norm": lambda x, w: F.rms_norm(x, (8,), w, 1e-3),
    "F.rms_norm keywords": lambda x, w: F.rms_norm(
        input=x, normalized_shape=[8], eps=1e-3, weight=w
    ),
    "F.rms_norm defaults": lambda x, w: F.rms_norm(x, x.shape[-1:]),
    "F.rms_norm two dims": lambda x, w: F.rms_norm(x, (4, 8)),
    "F.rms_norm all dims": lambda x, w: F.rms_norm(x, x.shape, eps=1e-6),
    "torch.rms_norm": lambda x, w: torch.rms_norm(x, [8], w, 1e-6),
    "aten.rms_norm.default": lambda x, w: aten.rms_norm.default(x, [8], w),
    "aten._fused_rms_norm.default": lambda x, w: aten._fused_rms_norm.default(x, [8], w, 1e-6)[0],
    "fused statistics": lambda x, w: aten._fused_rms_norm.default(x, [8], w, 1e-6)[1],
}
MODULES = {
    "nn.RMSNorm": nn.RMSNorm(8),
    "nn.RMSNorm eps": nn.RMSNorm(8, eps=1e-2),
    "nn.RMSNorm no affine": nn.RMSNorm(8, elementwise_affine=False),
    "nn.RMSNorm two dims": nn.RMSNorm((4, 8)),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_function_spelling_is_replaced(rewrite, spelling):
    function, args = SPELLINGS[spelling], (torch.randn(2, 4, 8), torch.randn(8))
    rewritten = rewrite(function, *args)
    assert rewritten.replaced == {"rms_norm": 1} and rewritten.reasons == []
    assert "fusedops.rms_norm.default" in rewritten.code
    torch.testing.assert_close(rewritten.call(*args), function(*args), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spelling", MODULES)
def test_every_module_spelling_is_replaced(rewrite, spelling):
    model, x = nn.Sequential(nn.Linear(8, 8), MODULES[spelling]), torch.randn(2, 4, 8)
    rewritten = rewrite(model, x)
    assert rewritten.replaced == {"rms_norm": 1}
    torch.testing.assert_close(rewritten.call(x), model(x), rtol=1e-5, atol=1e-5)


def test_gradients_are_eagers(rewrite_dynamo):
    model = nn.Sequential(nn.Linear(8, 8), nn.RMSNorm(8), nn.GELU()).double()
    x = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    rewritten = rewrite_dynamo(model, x)
    assert rewritten.replaced == {"rms_norm": 1}
    leaves = [x, *model.parameters()]
    ours = torch.autograd.grad(rewritten.call(x).sin().sum(), leaves)
    eager = torch.autograd.grad(model(x).sin().sum(), leaves)
    torch.testing.assert_close(ours, eager, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_an_eps_that_is_left_out_is_eagers(rewrite, dtype):
    x = torch.full((2, 8), 1e-4, dtype=dtype)  # small beside eps in float32, large in float64
    rewritten = rewrite(nn.RMSNorm(8).to(dtype), x)
    assert rewritten.replaced == {"rms_norm": 1}
    assert rewritten.call(x).dtype == dtype
    torch.testing.assert_close(rewritten.call(x), F.rms_norm(x, (8,)))


def test_a_transposed_input_gives_eagers_strides(rewrite):
    x = torch.randn(4, 8).t()
    rewritten = rewrite(lambda x: F.rms_norm(x, (4,)), x)
    assert rewritten.replaced == {"rms_norm": 1}
    assert rewritten.call(x).stride() == F.rms_norm(x, (4,)).stride()
    torch.testing.assert_close(rewritten.call(x), F.rms_norm(x, (4,)))


def test_a_float32_weight_beside_bfloat16_keeps_eagers_dtype(rewrite):
    x, weight = torch.randn(2, 8, dtype=torch.bfloat16), torch.randn(8)
    rewritten = rewrite(lambda x, w: F.rms_norm(x, (8,), w), x, weight)
    assert rewritten.replaced == {"rms_norm": 1}
    torch.testing.assert_close(rewritten.call(x, weight), F.rms_norm(x, (8,), weight))


def _block(x, w):
    return x + F.rms_norm(x, (4,), w, 1e-6)


class _Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(4, eps=1e-6)

    def forward(self, x):
        return x + self.norm(x)


def test_the_dynamo_graph_after_the_rewrite(entries):
    args = (torch.randn(2, 4), torch.randn(4))
    rewritten = entries["dynamo"](_block, *args)
    assert_expected_inline(
        rewritten.code,
        """\
rms_norm_default = fusedops.rms_norm.default(l_x_, (4,), l_w_, 1e-06)
getitem = operator.getitem(rms_norm_default, 0)
add = operator.add(l_x_, getitem)
return (add,)""",
    )


def test_the_exported_graph_after_the_rewrite(entries):
    args = (torch.randn(2, 4), torch.randn(4))
    rewritten = entries["export"](_block, *args)
    assert_expected_inline(
        rewritten.code,
        """\
rms_norm_default = fusedops.rms_norm.default(args_0, [4], args_1, 1e-06)
getitem = operator.getitem(rms_norm_default, 0)
add = aten.add.Tensor(args_0, getitem)
return (add,)""",
    )


def test_the_traced_graph_reads_the_parameter_of_the_leaf_module(entries):
    rewritten = entries["symbolic_trace"](_Block(), torch.randn(2, 4))
    assert_expected_inline(
        rewritten.code,
        """\
norm_weight = norm.weight
rms_norm_default = fusedops.rms_norm.default(x, (4,), norm_weight, 1e-06)
getitem = operator.getitem(rms_norm_default, 0)
add = operator.add(x, getitem)
return add""",
    )
