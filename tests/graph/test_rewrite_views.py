"""A view between masked scores and their softmax does not keep the mask out of the op."""

import math

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_becomes, assert_one_graph, assert_same_gradients

import fusedops

HEADS, LENGTH, FEATURES = 3, 6, 4
#: Some dropout, which drops nothing that can be seen.
HARDLY = 1e-30


def _fairseq(q, k, v, keep):
    s = torch.bmm(q, k.transpose(1, 2)).view(-1, HEADS, LENGTH, LENGTH)
    s = s.masked_fill(~keep, -math.inf).view(-1, LENGTH, LENGTH)
    p = F.softmax(s, dim=-1, dtype=torch.float64).type_as(s)
    return torch.bmm(F.dropout(p, HARDLY), v)


def _bart(q, k, v, keep):
    s = torch.bmm(q, k.transpose(1, 2)).view(-1, HEADS, LENGTH, LENGTH)
    s = (s + torch.where(keep, 0.0, -1e9)).view(-1, LENGTH, LENGTH)
    return torch.bmm(F.dropout(F.softmax(s, dim=-1), HARDLY), v)


def _bart_with_weights(q, k, v, keep):
    s = torch.bmm(q, k.transpose(1, 2)).view(-1, HEADS, LENGTH, LENGTH)
    s = (s + torch.where(keep, 0.0, -1e9)).view(-1, LENGTH, LENGTH)
    weights = F.softmax(s, dim=-1).view(-1, HEADS, LENGTH, LENGTH)
    return torch.bmm(weights.view(-1, LENGTH, LENGTH), v), weights


def _shifted_windows(q, k, v, keep):
    s = (q @ k.mT).view(-1, 2, HEADS, LENGTH, LENGTH) + torch.where(keep, 0.0, -100.0)
    return s.view(-1, LENGTH, LENGTH).softmax(-1) @ v


FORMS = {
    _fairseq: "masked_softmax_dropout",
    _bart: "masked_softmax_dropout",
    _bart_with_weights: "masked_softmax",
    _shifted_windows: "masked_softmax",
}
every_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)


def _inputs(batch=2):
    shape = (batch * HEADS, LENGTH, FEATURES)
    q, k, v = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(3))
    keep = torch.rand(batch, 1, 1, LENGTH) < 0.7
    keep[..., 0] = True
    return [q, k, v, keep]


@every_form
def test_a_mask_before_a_view_is_part_of_the_op(rewrite, form):
    inputs = _inputs()
    rewritten = assert_becomes(rewrite, form, inputs, {FORMS[form]: 1})
    assert all("mask=" in call for call in rewritten.calls)
    assert_same_gradients(rewritten.call, form, inputs, inputs[:3], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("form", [_fairseq, _bart])
def test_one_graph_serves_all_batch_sizes(rewrite_dynamo, form):
    rewritten = rewrite_dynamo(form, *_inputs(7), dynamic=True)
    assert_one_graph(rewritten, form, [_inputs(batch) for batch in (2, 3, 5)])
    assert rewritten.replaced == {FORMS[form]: 1}


OTHERS = {
    "rows are joined": lambda s, mask: (s + mask).view(2, -1).softmax(-1),
    "another dimension": lambda s, mask: (s + mask).view(2, 12, 6).softmax(1),
    "read twice": lambda s, mask: ((v := (s + mask).view(24, 6)).softmax(-1), v),
}


@pytest.mark.parametrize("form", OTHERS.values(), ids=OTHERS)
def test_other_views_stay_before_the_softmax(rewrite_dynamo, form):
    s, mask = torch.randn(2, 3, 4, 6).double(), torch.randn(4, 6).double()
    rewritten = assert_becomes(rewrite_dynamo, form, [s, mask], {"softmax": 1})
    assert rewritten.code.index("view") < rewritten.code.index("softmax")


def test_no_view_moves_where_masked_softmax_is_switched_off(rewrite_dynamo):
    with fusedops.config.patch(fuse="always,masked_softmax=never"):
        rewritten = rewrite_dynamo(_bart, *_inputs())
    assert rewritten.replaced == {"softmax": 1, "dropout": 1}
    assert rewritten.code.rindex("view") < rewritten.code.index("softmax")
