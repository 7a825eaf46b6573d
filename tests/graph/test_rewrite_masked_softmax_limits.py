"""Steps in front of a softmax that masked_softmax does not take in."""

import operator
import sys

import pytest
import torch
from agreement import assert_becomes, rewritten_alike
from masked_softmax_forms import INF, draw
from torch._subclasses.fake_tensor import FakeTensorMode

from fusedops.graph import rewrite_graph


def _scores_used_too(x, keep, bias):
    scores = x * 0.5 + bias
    return scores.softmax(-1) + scores


def _exponentials_of_another_dim(x, keep, bias):
    x = x.masked_fill(~keep, -1e9)
    e = (x - x.amax(1, keepdim=True)).exp()
    return e / e.sum(1, keepdim=True)


PLAIN = {
    "over the first dimension": lambda x, keep, bias: (x * 0.5).softmax(0),
    "over the second to last dimension": lambda x, keep, bias: x.masked_fill(~keep, -1e9).softmax(
        -2
    ),
    "enlarged by a mask": lambda x, keep, bias: x[:1].masked_fill(~keep, -INF).softmax(-1),
    "scores used too": _scores_used_too,
    "exponentials of another dim": _exponentials_of_another_dim,
}


@pytest.mark.parametrize("form", PLAIN.values(), ids=PLAIN)
def test_where_no_step_fits_the_softmax_becomes_the_plain_op(rewrite, form):
    assert_becomes(rewrite, form, draw(), {"softmax": 1})


def _scaled_and_returned(x, keep, bias):
    scores = x * 0.5
    return (scores + bias[:, :1]).softmax(-1), scores


def _added_to_itself(x, keep, bias):
    scores = x * 0.5
    return (scores + scores).softmax(-1)


def _written_between(x, keep, bias):
    scores = x * 0.5
    bias = bias * 1
    y = scores + bias
    bias.zero_()
    return y.softmax(-1) + bias


def _mask_written_between(x, keep, bias):
    keep = keep.clone()
    y = x.masked_fill(~keep, -1e9)
    keep.fill_(True)
    return y.softmax(-1) * keep


PARTS = {
    "enlarged by a bias": lambda x, keep, bias: (x[0] + bias).softmax(-1),
    "scaled and returned": _scaled_and_returned,
    "filled with two values": lambda x, keep, bias: (
        x.masked_fill(~keep, -INF).masked_fill(bias > 1, -1e9).softmax(-1)
    ),
    "filled and then biased": lambda x, keep, bias: (x.masked_fill(~keep, -1e9) + bias).softmax(-1),
    "filled with infinity": lambda x, keep, bias: (x.masked_fill(keep, -INF) * -0.5).softmax(-1),
    "multiplied by a tensor": lambda x, keep, bias: (x * bias[0, 0, 0, 0] + bias).softmax(-1),
    "quotient of a number": lambda x, keep, bias: (2.0 / (x.abs() + 1) + bias).softmax(-1),
    "rounded quotient": lambda x, keep, bias: (
        torch.div(x, 0.3, rounding_mode="floor") + bias
    ).softmax(-1),
    "scaled addend": lambda x, keep, bias: (torch.add(x, bias, alpha=2) * 0.5).softmax(-1),
    "added to itself": _added_to_itself,
    "written between": _written_between,
    "mask written between": _mask_written_between,
    "logarithm": lambda x, keep, bias: (x * 0.5).masked_fill(~keep, -1e9).log_softmax(-1),
}


@pytest.mark.parametrize("form", PARTS.values(), ids=PARTS)
def test_steps_are_taken_in_as_far_as_eagers_values_are_kept(rewrite, form):
    rewritten = rewritten_alike(rewrite, form, draw())
    assert len(rewritten.report.replaced) == 1 and rewritten.reasons == []


def test_a_chain_of_calls_may_be_longer_than_pythons_stack():
    """This alone reads more calls than Python nests. The graph is made by hand, because a capture
    takes seconds to run them all."""
    graph, tensor = torch.fx.Graph(), FakeTensorMode().from_tensor(torch.zeros(4, 8))

    def recorded(node):
        node.meta["example_value"] = tensor
        return node

    x, bias = (recorded(graph.placeholder(name)) for name in ("x", "bias"))
    for _ in range(sys.getrecursionlimit()):
        x = recorded(graph.call_function(operator.mul, (x, 0.5)))
    scores = recorded(graph.call_function(operator.add, (bias, x)))
    graph.output(recorded(graph.call_function(torch.softmax, (scores, -1))))
    (site,) = rewrite_graph(graph).replaced
    assert site.op == "masked_softmax"


@pytest.mark.parametrize("seen", ["an argument", "returned", "a view"])
def test_in_place_steps_that_others_see_stay(rewrite_dynamo, seen):
    def model(x, keep, bias):
        scores = x if seen == "an argument" else x * 1
        view = scores.flatten()
        scores *= 0.5
        scores.masked_fill_(~keep, -1e9)
        y = scores.softmax(-1)
        return {"an argument": y, "returned": (y, scores), "a view": (y, view)}[seen]

    rewritten_alike(rewrite_dynamo, model, draw())
