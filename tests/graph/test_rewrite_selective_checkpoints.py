"""A policy of selective checkpointing that names aten operators covers the ops in their place."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_same_gradients
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import fusedops

N = 16
aten = torch.ops.aten


def masked_softmax(x):
    hidden = torch.ones(N, N, dtype=torch.bool).triu(1)
    return ((x @ x) * 0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ x


def log_softmax(x):
    return F.log_softmax(x @ x, -1) @ x


def add_layer_norm(x):
    return F.layer_norm(x @ x + x, (N,)) @ x


def rms_norm(x):
    return F.rms_norm(x @ x, (N,)) @ x


#: Each computation: its op, and the operator by which policies know it.
CASES = {
    masked_softmax: ("masked_softmax", aten._softmax.default),
    log_softmax: ("log_softmax", aten._log_softmax.default),
    add_layer_norm: ("add_layer_norm", aten.native_layer_norm.default),
    rms_norm: ("rms_norm", aten._fused_rms_norm.default),
}
every_case = pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)


def as_list(operator):
    return [operator]


def as_policy(operator):
    def policy(context, op, *args, **kwargs):
        is_named = op is operator
        return CheckpointPolicy.MUST_SAVE if is_named else CheckpointPolicy.PREFER_RECOMPUTE

    return policy


def as_bools(operator):
    return lambda context, op, *args, **kwargs: op is operator


def checkpointed(function, selection):
    contexts = functools.partial(create_selective_checkpoint_contexts, selection)
    return lambda x: checkpoint(function, x, use_reentrant=False, context_fn=contexts)


def recomputed(backward_ops, function, selection):
    """How often the backward graph computes ops of the forward graph again."""
    x = torch.randn(2, N, N, requires_grad=True)
    counts = backward_ops(checkpointed(function, selection), x)
    return sum(count for op, count in counts.items() if "backward" not in op)


@every_case
@pytest.mark.parametrize("form", [as_list, as_policy, as_bools])
def test_what_a_policy_keeps_is_not_computed_again(backward_ops, function, form):
    _, operator = CASES[function]
    assert recomputed(backward_ops, function, form(operator)) == 0


@every_case
def test_what_it_does_not_name_is_computed_again(backward_ops, function):
    assert recomputed(backward_ops, function, as_list(aten.mm.default)) == 1


@every_case
def test_a_policy_may_name_our_op_too(backward_ops, function):
    op, _ = CASES[function]
    ours = getattr(torch.ops.fusedops, op).default
    assert recomputed(backward_ops, function, as_list(ours)) == 0


@every_case
def test_gradients_are_those_of_eager_mode(rewrite_dynamo, function):
    _, operator = CASES[function]
    model = checkpointed(function, [operator])
    x = torch.randn(2, N, N, dtype=torch.float64, requires_grad=True)
    rewritten = rewrite_dynamo(model, x)
    assert len(rewritten.report.replaced) == 1
    assert_same_gradients(rewritten.call, function, [x], [x], rtol=1e-9, atol=1e-12)


def test_a_hash_for_torchs_caches_stays():
    contexts = functools.partial(create_selective_checkpoint_contexts, [aten._softmax.default])
    graphs = []

    def record(graph_module, example_inputs):
        bodies = [m for m in graph_module.modules() if "_checkpoint_context_fn" in m.meta]
        for body in bodies:  # Dynamo of torch 2.10 has made a function without the hash
            body.meta["_checkpoint_context_fn"].cache_hash = "softmax"
        fusedops.graph.rewrite_module(graph_module)
        fusedops.graph.rewrite_module(graph_module)
        graphs.extend(bodies)
        return graph_module

    @torch.compile(backend=record)
    def model(x):
        return checkpoint(log_softmax, x, use_reentrant=False, context_fn=contexts)

    model(torch.randn(N, N, requires_grad=True))
    (body,) = graphs
    assert body.meta["_checkpoint_context_fn"].cache_hash == "softmax"
