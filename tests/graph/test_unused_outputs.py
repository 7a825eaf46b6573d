"""Compiled graphs do not write results that nothing reads, backward passes included."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch._inductor.utils import fresh_cache, run_and_get_code

SHAPE = (16,)


@pytest.fixture(autouse=True)
def fresh_compiler():
    with fresh_cache():
        yield


def calls_of(function, *args):
    """The result, and the forward calls of our ops in the code."""
    compiled = torch.compile(function, backend="fusedops", fullgraph=True)
    result, codes = run_and_get_code(compiled, *args)
    pattern = r"torch\.ops\.fusedops\.(\w+)\.default\((.*)\)"
    return result, [match for code in codes for match in re.findall(pattern, code)]


def post_norm(x, r):
    return F.layer_norm(x @ x.mT @ x + r, SHAPE)


def pre_norm(x, r):
    total = x @ x.mT @ x + r
    return F.layer_norm(total, SHAPE), total @ total.mT


def post_rms_norm(x, r):
    return F.rms_norm(x @ x.mT @ x + r, SHAPE, None, 1e-6)


@pytest.mark.parametrize(
    ("function", "op", "wants_sum"),
    [
        (post_norm, "_add_layer_norm", False),
        (pre_norm, "_add_layer_norm", True),
        (post_rms_norm, "_add_rms_norm", False),
    ],
)
def test_inference_writes_the_sum_where_it_is_wanted(function, op, wants_sum):
    x, r = torch.randn(2, 4, 8, 16)
    with torch.no_grad():
        result, calls = calls_of(function, x, r)
    assert [name for name, _ in calls] == [op]
    assert (", True" in calls[0][1]) == wants_sum
    torch.testing.assert_close(result, function(x, r), rtol=1e-5, atol=1e-4)


def test_training_keeps_what_the_backward_pass_reads():
    x, r = torch.randn(2, 4, 8, 16).unbind(0)
    x.requires_grad_()
    result, calls = calls_of(post_norm, x, r)
    assert calls[0][0] == "add_layer_norm"
    ours = torch.autograd.grad(result.sin().sum(), x)
    eager = torch.autograd.grad(post_norm(x, r).sin().sum(), x)
    torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4)


def test_dropout_without_a_gradient_does_not_write_the_probabilities():
    x = torch.randn(4, 64, 64)
    with torch.no_grad():
        result, calls = calls_of(lambda x: F.dropout((x @ x * 0.1).softmax(-1), 0.5) @ x, x)
    assert [name for name, _ in calls] == ["_masked_softmax_dropout"]
    assert result.isfinite().all()
