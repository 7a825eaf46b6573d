"""Scores that become a masked softmax, in the many ways that models write them."""

import math

import pytest
import torch
import torch.nn.functional as F

INF = math.inf
HEADS, LENGTH = 3, 6


def scaled(x, keep, bias):
    return (x * 0.5).softmax(-1)


def divided(x, keep, bias):
    return F.softmax(x / math.sqrt(8), dim=-1)


def scaled_twice_from_the_left(x, keep, bias):
    return torch.softmax(torch.mul(0.25, 2.0 * x), dim=-1)


def with_a_mask_added(x, keep, bias):
    return (x * 0.5 + bias[:, :1]).softmax(-1)


def with_a_mask_subtracted(x, keep, bias):
    return (x * 0.5 - 1e30 * (~keep).to(x.dtype)).softmax(-1)


def with_bias_and_mask(x, keep, bias):
    return (x + bias + bias[:1, :1]).softmax(-1)


def with_three_addends(x, keep, bias):
    return (x + bias[:, :1] + bias[:1] + bias[:1, :1]).softmax(-1)


def with_a_bias_under_the_scale(x, keep, bias):
    return ((x + bias[:, :1, :1]) * 0.5 + bias[:, :1]).softmax(-1)


def with_a_bias_from_the_left(x, keep, bias):
    return torch.add(bias[:, :1], x / 8).softmax(-1)


def filled_where_zero(x, keep, bias):
    return (x / 8).masked_fill(keep == 0, -1e9).softmax(-1)


def filled_where_not(x, keep, bias):
    return torch.masked_fill(x, ~keep, -INF).softmax(-1)


def filled_where_true(x, keep, bias):
    return x.masked_fill(keep.logical_not(), -1e4).softmax(-1)


def filled_with_the_least_number(x, keep, bias):
    return (x * 0.5).masked_fill(~keep, torch.finfo(torch.float64).min).softmax(-1)


def chosen(x, keep, bias):
    return torch.where(keep, x * 0.5, -INF).softmax(-1)


def chosen_the_other_way_round(x, keep, bias):
    return torch.where(~keep, -1e9, x * 0.5).softmax(-1)


def chosen_by_method(x, keep, bias):
    return (x * 0.5).where(keep, -1e9).softmax(-1)


def filled_and_then_scaled(x, keep, bias):
    return (x.masked_fill(~keep, -1e4) * 0.5).softmax(-1)


def filled_twice(x, keep, bias):
    x = x.masked_fill(~keep, -INF).masked_fill(bias[:1, :1] > 1, -INF)
    return (x / 4).softmax(-1)


def biased_and_then_filled(x, keep, bias):
    return (x * 0.5 + bias).masked_fill(~keep, -INF).softmax(-1)


def filled_causally(x, keep, bias):
    hidden = torch.triu(torch.ones(LENGTH, LENGTH), diagonal=1).bool()
    return (x * 0.5).masked_fill(hidden, -INF).softmax(-1)


def filled_causally_and_by_a_mask(x, keep, bias):
    visible = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    return x.masked_fill(~keep, -INF).masked_fill(~visible, -INF).softmax(-1)


def capped(x, keep, bias):
    return (torch.tanh(x / 50) * 50 + bias[:, :1]).softmax(-1)


def product_with_a_mask(x, keep, bias):
    a, b = x.flatten(0, 1), bias.flatten(0, 1)
    return torch.baddbmm(bias[0, 0], a, b, beta=0.5, alpha=0.3).softmax(-1)


def scaled_and_masked_in_place(x, keep, bias):
    scores = torch.matmul(x, x)
    scores /= 8
    scores += bias
    return scores.masked_fill_(~keep, -INF).softmax(-1)


def decomposed(x, keep, bias):
    scores = (x * 0.5).masked_fill(~keep, -1e9)
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def dropped_out_in_inference(x, keep, bias):
    return F.dropout((x * 0.5 + bias).softmax(-1), 0.5, training=False)


FORMS = [
    scaled,
    divided,
    scaled_twice_from_the_left,
    with_a_mask_added,
    with_a_mask_subtracted,
    with_bias_and_mask,
    with_three_addends,
    with_a_bias_under_the_scale,
    with_a_bias_from_the_left,
    filled_where_zero,
    filled_where_not,
    filled_where_true,
    filled_with_the_least_number,
    chosen,
    chosen_the_other_way_round,
    chosen_by_method,
    filled_and_then_scaled,
    filled_twice,
    biased_and_then_filled,
    filled_causally,
    filled_causally_and_by_a_mask,
    capped,
    product_with_a_mask,
    scaled_and_masked_in_place,
    decomposed,
    dropped_out_in_inference,
]
every_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)


def draw(batch=2, dtype=torch.float64):
    """Scores, a bool mask that leaves a key, and a bias."""
    x = torch.randn(batch, HEADS, LENGTH, LENGTH, dtype=dtype)
    keep = torch.rand(batch, 1, 1, LENGTH) > 0.4
    keep[..., 0] = True
    return x, keep, torch.randn_like(x)


def arguments_of(rewritten):
    """The arguments of the one masked_softmax in the graphs, by name."""
    nodes = [node for graph in rewritten.graphs for node in graph.graph.nodes]
    (node,) = (node for node in nodes if "masked_softmax" in str(node.target))
    names = [argument.name for argument in node.target._schema.arguments]
    return dict(zip(names, node.args, strict=False))
