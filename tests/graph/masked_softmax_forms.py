"""Scores that become a masked softmax, in the many ways that models write them."""

import math

import torch
import torch.nn.functional as F

INF = math.inf
HEADS, LENGTH = 3, 6


def with_a_mask_added(x, keep, bias):
    return (x * 0.5 + bias[:, :1]).softmax(-1)


def filled_where_not(x, keep, bias):
    return torch.masked_fill(x, ~keep, -INF).softmax(-1)


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


#: Each form, and the arguments of the call that it becomes, where those that are always given have
#: their value: mask_value is -inf.
FORMS = {
    # Factors of the scores become the scale.
    "scaled": (lambda x, keep, bias: (x * 0.5).softmax(-1), "x, scale=0.5"),
    "divided": (
        lambda x, keep, bias: F.softmax(x / math.sqrt(8), dim=-1),
        "x, scale=0.35355339059327373",
    ),
    "scaled twice from the left": (
        lambda x, keep, bias: torch.softmax(torch.mul(0.25, 2.0 * x), dim=-1),
        "x, scale=0.5",
    ),
    "capped": (
        lambda x, keep, bias: (torch.tanh(x / 50) * 50 + bias[:, :1]).softmax(-1),
        "x, mask=bias[:, :1], scale=1.0, softcap=50.0",
    ),
    # One addend becomes the mask, and another the bias. A third stays an addition to the scores.
    "with a mask added": (with_a_mask_added, "x, mask=bias[:, :1], scale=0.5"),
    "with a mask subtracted": (
        lambda x, keep, bias: (x * 0.5 - 1e30 * (~keep).to(x.dtype)).softmax(-1),
        "x, mask=neg(mul(1e+30, to(invert(keep), torch.float64))), scale=0.5",
    ),
    "with a bias from the left": (
        lambda x, keep, bias: torch.add(bias[:, :1], x / 8).softmax(-1),
        "x, mask=bias[:, :1], scale=0.125",
    ),
    "with bias and mask": (
        lambda x, keep, bias: (x + bias + bias[:1, :1]).softmax(-1),
        "x, mask=bias[:1, :1], scale=1.0, bias=bias",
    ),
    "with three addends": (
        lambda x, keep, bias: (x + bias[:, :1] + bias[:1] + bias[:1, :1]).softmax(-1),
        "add(x, bias[:, :1]), mask=bias[:1, :1], scale=1.0, bias=bias[:1]",
    ),
    # An addend in front of the scale is scaled by itself.
    "with a bias under the scale": (
        lambda x, keep, bias: ((x + bias[:, :1, :1]) * 0.5 + bias[:, :1]).softmax(-1),
        "x, mask=bias[:, :1], scale=0.5, bias=mul(bias[:, :1, :1], 0.5)",
    ),
    # A bool mask is given as what it keeps, and with its value.
    "filled where zero": (
        lambda x, keep, bias: (x / 8).masked_fill(keep == 0, -1e9).softmax(-1),
        "x, mask=keep, scale=0.125, mask_value=-1000000000.0",
    ),
    "filled where not": (filled_where_not, "x, mask=keep, scale=1.0"),
    "filled where true": (
        lambda x, keep, bias: x.masked_fill(keep.logical_not(), -1e4).softmax(-1),
        "x, mask=keep, scale=1.0, mask_value=-10000.0",
    ),
    "filled with the least number": (
        lambda x, keep, bias: (
            (x * 0.5).masked_fill(~keep, torch.finfo(torch.float64).min).softmax(-1)
        ),
        "x, mask=keep, scale=0.5, mask_value=-1.7976931348623157e+308",
    ),
    "chosen": (
        lambda x, keep, bias: torch.where(keep, x * 0.5, -INF).softmax(-1),
        "x, mask=keep, scale=0.5",
    ),
    "chosen the other way round": (
        lambda x, keep, bias: torch.where(~keep, -1e9, x * 0.5).softmax(-1),
        "x, mask=keep, scale=0.5, mask_value=-1000000000.0",
    ),
    "chosen by method": (
        lambda x, keep, bias: (x * 0.5).where(keep, -1e9).softmax(-1),
        "x, mask=keep, scale=0.5, mask_value=-1000000000.0",
    ),
    "biased and then filled": (biased_and_then_filled, "x, mask=keep, scale=0.5, bias=bias"),
    "decomposed": (decomposed, "x, mask=keep, scale=0.5, mask_value=-1000000000.0"),
    "in place": (
        scaled_and_masked_in_place,
        "matmul(x, x), mask=keep, scale=0.125, bias=bias",
    ),
    # A scale behind the mask scales the mask value too.
    "filled and then scaled": (
        lambda x, keep, bias: (x.masked_fill(~keep, -1e4) * 0.5).softmax(-1),
        "x, mask=keep, scale=0.5, mask_value=-5000.0",
    ),
    "filled twice": (
        filled_twice,
        "x, mask=logical_and(keep, logical_not(gt(bias[:1, :1], 1))), scale=0.25",
    ),
    # A causal mask is no tensor of the operator.
    "filled causally": (filled_causally, "x, scale=0.5, causal=True"),
    "filled causally and by a mask": (
        filled_causally_and_by_a_mask,
        "x, mask=keep, scale=1.0, causal=True",
    ),
    # baddbmm becomes a product whose factors are the operator's; and of two addends, the matrix
    # product is the scores.
    "product with a mask": (
        product_with_a_mask,
        "bmm(flatten(x, 0, 1), flatten(bias, 0, 1)), mask=mul(bias[0, 0], 0.5), scale=0.3",
    ),
    "flattened product behind its bias": (
        lambda x, keep, bias: (bias.flatten(0, 1) + (x @ x).flatten(0, 1) * 0.5).softmax(-1),
        "flatten(matmul(x, x), 0, 1), mask=flatten(bias, 0, 1), scale=0.5",
    ),
    "product behind what is made of one": (
        lambda x, keep, bias: ((bias @ bias).relu() + (x @ x) * 0.5).softmax(-1),
        "matmul(x, x), mask=relu(matmul(bias, bias)), scale=0.5",
    ),
    # A dropout that does nothing stays behind the operator.
    "dropped out in inference": (
        lambda x, keep, bias: F.dropout((x * 0.5 + bias).softmax(-1), 0.5, training=False),
        "x, mask=bias, scale=0.5",
    ),
}


def draw(batch=2, dtype=torch.float64, requires_grad=False):
    """Scores, a bool mask that leaves a key, and a bias."""
    x, bias = (
        torch.randn(batch, HEADS, LENGTH, LENGTH, dtype=dtype, requires_grad=requires_grad)
        for _ in range(2)
    )
    keep = torch.rand(batch, 1, 1, LENGTH) > 0.4
    keep[..., 0] = True
    return x, keep, bias


def all_arguments_of(rewritten):
    """The arguments of each masked_softmax in the graphs, by name."""
    nodes = [node for graph in rewritten.graphs for node in graph.graph.nodes]
    for node in nodes:
        if "masked_softmax" in str(node.target):
            names = [argument.name for argument in node.target._schema.arguments]
            yield dict(zip(names, node.args, strict=False))


def arguments_of(rewritten):
    """Those of the one masked_softmax in the graphs."""
    (arguments,) = all_arguments_of(rewritten)
    return arguments
