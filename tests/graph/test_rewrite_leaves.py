"""Opaque calls that hide a softmax or a layer_norm are left alone, and listed with a reason."""

import pytest
import torch
import torch.nn.functional as F
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


def test_a_softmax_beside_an_opaque_call_is_replaced(rewrite):
    def loss(x):
        return F.cross_entropy(x, x.softmax(-1))

    x = torch.rand(2, 4)
    rewritten = rewrite(loss, x)
    assert rewritten.replaced == {"softmax": 1} and rewritten.calls == ["softmax(x, dim=-1)"]
    assert rewritten.results[0].replace("_loss", "") == "cross_entropy(x, softmax)"
    torch.testing.assert_close(rewritten.call(x), loss(x), rtol=1e-5, atol=1e-5)
