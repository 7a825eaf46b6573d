"""Opaque calls that hide a softmax or a layer_norm are left alone, and listed with a reason."""

import pytest
import torch
import torch.nn.functional as F
from expecttest import assert_expected_inline
from torch import nn

LEAVES = {
    "already runs as SDPA": lambda x: F.scaled_dot_product_attention(x, x, x),
    "Inductor never materialises its log_softmax": lambda x: F.cross_entropy(x[0], x[1]),
}


@pytest.mark.parametrize("reason", LEAVES)
def test_an_opaque_function_is_left_with_its_reason(rewrite_dynamo, reason):
    rewritten = rewrite_dynamo(LEAVES[reason], torch.rand(2, 4, 8))
    assert rewritten.replaced == {} and rewritten.reasons == [reason]


@pytest.mark.parametrize("entry", ["export", "symbolic_trace"])
def test_attention_and_cross_entropy_are_left_at_the_other_entries_too(entries, entry):
    def model(x):
        return F.scaled_dot_product_attention(x, x, x), F.cross_entropy(x[0], x[1])

    rewritten = entries[entry](model, torch.rand(2, 4, 8))
    assert [site.op for site in rewritten.report.left] == [
        "scaled_dot_product_attention",
        "cross_entropy",
    ]


def test_multi_head_attention_without_weights_is_left_as_it_runs(rewrite_dynamo):
    attention = nn.MultiheadAttention(8, 2)

    def model(x):
        return attention(x, x, x, need_weights=False)[0]

    (left,) = rewrite_dynamo(model, torch.randn(3, 2, 8)).report.sites
    assert (left.op, left.reason) == ("multi_head_attention_forward", "already runs as SDPA")


def _loss(x):
    return F.cross_entropy(x, x.softmax(-1))


def test_the_dynamo_graph_after_the_rewrite(entries):
    x = torch.rand(2, 4)
    rewritten = entries["dynamo"](_loss, x)
    assert rewritten.replaced == {"softmax": 1}
    torch.testing.assert_close(rewritten.call(x), _loss(x), rtol=1e-5, atol=1e-5)
    assert_expected_inline(
        rewritten.code,
        """\
softmax_default = fusedops.softmax.default(l_x_, -1, None)
cross_entropy = torch.nn.functional.cross_entropy(l_x_, softmax_default)
return (cross_entropy,)""",
    )


def test_the_exported_graph_after_the_rewrite(entries):
    x = torch.rand(2, 4)
    rewritten = entries["export"](_loss, x)
    assert rewritten.replaced == {"softmax": 1}
    torch.testing.assert_close(rewritten.call(x), _loss(x), rtol=1e-5, atol=1e-5)
    assert_expected_inline(
        rewritten.code,
        """\
softmax_default = fusedops.softmax.default(args_0, -1, None)
cross_entropy_loss = aten.cross_entropy_loss.default(args_0, softmax_default)
return (cross_entropy_loss,)""",
    )


def test_the_traced_graph_after_the_rewrite(entries):
    x = torch.rand(2, 4)
    rewritten = entries["symbolic_trace"](_loss, x)
    assert rewritten.replaced == {"softmax": 1}
    torch.testing.assert_close(rewritten.call(x), _loss(x), rtol=1e-5, atol=1e-5)
    assert_expected_inline(
        rewritten.code,
        """\
softmax_default = fusedops.softmax.default(x, -1, None)
cross_entropy = torch.nn.functional.cross_entropy(x, softmax_default)
return cross_entropy""",
    )
