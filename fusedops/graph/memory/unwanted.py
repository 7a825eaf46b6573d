"""In compiled graphs, results that nothing reads are not written, and no derivative is asked for.

before    y, sum, mean, rstd = fusedops.add_layer_norm(x, residual, ...)      y alone is used
after     y, _ = fusedops._add_layer_norm(x, residual, ..., wants_sum=False)

Inference wants no statistics for a backward pass, post-norm layers not even the sum. Runs on the
graph that Inductor is about to lower, where everything that a backward pass needs is an output, and
derivatives are other calls: the twins without a formula save its Python, 7 us a call.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, Node

from fusedops.graph.ir.dialect import named_arguments
from fusedops.ops._library import OPS_WITH_VARIANT

_ops = torch.ops.fusedops

#: By op the one that leaves results out, and which of its results that one has.
TWINS: dict[Any, tuple[Any, int]] = {
    _ops.add_layer_norm.default: (_ops._add_layer_norm.default, 2),
    _ops.add_rms_norm.default: (_ops._add_rms_norm.default, 2),
    _ops.masked_softmax_dropout.default: (_ops._masked_softmax_dropout.default, 1),
}

#: By op the one that differs in nothing but the derivative.
PLAIN_TWINS: dict[Any, Any] = {
    getattr(_ops, name).default: getattr(_ops, f"_{name}").default for name in OPS_WITH_VARIANT
}


def use_no_autograd_variants(graph: Graph) -> None:
    """Edits ``graph``: the twins take the same arguments."""
    for node in graph.nodes:
        if node.op == "call_function" and node.target in PLAIN_TWINS:
            node.target = PLAIN_TWINS[node.target]


def drop_unused_outputs(graph: Graph) -> None:
    """Edits ``graph``: ops write what is read, and no more."""
    for node in list(graph.nodes):
        twin, kept = TWINS.get(node.target, (None, 0)) if node.op == "call_function" else (None, 0)
        if twin is None or any(user.target is not operator.getitem for user in node.users):
            continue
        wanted = {user.args[1] for user in node.users if user.users}
        if wanted and max(wanted) < kept:
            _replace(node, twin, wanted)


def _replace(node: Node, twin: Any, wanted: set[int]) -> None:
    single = len(twin._schema.returns) == 1
    output, sum = node.meta["val"][:2]
    with node.graph.inserting_before(node):
        new = node.graph.call_function(twin, _arguments(node, node.args, node.kwargs, twin, wanted))
    new.meta.update(node.meta)
    new.meta["val"] = output if single else (output, sum if 1 in wanted else output.new_empty([0]))
    if "eager_input_vals" in node.meta:  # the strides that Inductor has to keep to
        args, kwargs = node.meta["eager_input_vals"]
        vals = _arguments(node, args, kwargs, twin, wanted)
        new.meta["eager_input_vals"] = (vals, {})
    for item in list(node.users):
        if single or not item.users:
            item.replace_all_uses_with(new)
            node.graph.erase_node(item)
        else:
            item.replace_input_with(node, new)
    node.graph.erase_node(node)


def _arguments(
    node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], twin: Any, wanted: set[int]
) -> tuple[Any, ...]:
    """Those of the twin, from those of the op."""
    arguments = {"wants_sum": 1 in wanted, **named_arguments(node.target, args, kwargs)}
    names = (argument.name for argument in twin._schema.arguments)
    return tuple(arguments[name] for name in names if name in arguments)
