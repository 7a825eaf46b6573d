"""Opaque calls that hide a softmax or a layer_norm are left alone, and listed with a reason."""

import torch
import torch.nn.functional as F
from torch import nn


def test_attention_is_left_as_it_runs(rewrite):
    rewritten = rewrite(lambda x: F.scaled_dot_product_attention(x, x, x), torch.rand(2, 4, 8))
    (left,) = rewritten.report.sites
    assert (left.op, left.reason) == ("scaled_dot_product_attention", "already runs as SDPA")


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
