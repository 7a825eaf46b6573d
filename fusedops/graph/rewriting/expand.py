"""Decomposes opaque calls that contain a softmax or a norm, so that the rules can match these.

before    out, weights = F.multi_head_attention_forward(query, key, value, ...)
after     the ATen calls that this function makes, traced before autograd

The decomposition computes the same results and draws the same random numbers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from fusedops.graph.analysis import aliases, modes
from fusedops.graph.analysis.nodes import annotate, outputs, walk
from fusedops.graph.analysis.values import fake_mode, value
from fusedops.graph.policy import decision
from fusedops.graph.rewriting.decompositions import attention, encoder_layer

#: Name of an opaque call in `aliases.LEAVES` -> the function that decomposes it.
_EXPANSIONS: dict[str, Callable[..., Any]] = {
    "multi_head_attention_forward": F.multi_head_attention_forward,
    "_transformer_encoder_layer_fwd": encoder_layer,
    "softmin": F.softmin,
    "gumbel_softmax": F.gumbel_softmax,
    "scaled_dot_product_attention": attention,
}


def expand(graph: Graph) -> None:
    """Replaces the opaque calls of `graph` by their decompositions, except calls inside a
    `torch.func` transform, and those that are faster as they are."""
    for _ in range(2):  # multi-head attention contains a call of SDPA, which the second walk finds
        for node, transformed in walk(graph):
            decomposition = None if transformed else _decomposition(node)
            if decomposition is not None:
                _expand(node, decomposition)


def _decomposition(node: Node) -> Callable[..., Any] | None:
    """Returns the function that decomposes an opaque call; None for other calls, for one whose
    results are used as a tuple, for an encoder layer that is faster as it is, and for attention
    that a kernel of torch's computes."""
    if node.op != "call_function" or node.target not in aliases.LEAVES:
        return None
    if isinstance(value(node), tuple) and outputs(node) is None:
        return None
    name, reason = aliases.leaf(node.target, node.kwargs)
    decomposition = _EXPANSIONS.get(name)
    if decomposition is encoder_layer and decision.leaves_encoder_layer(value(node)):
        return None
    if reason == aliases.SDPA and not _drops_on_cpu(node, name):
        return None
    return decomposition


def _drops_on_cpu(node: Node, name: str) -> bool:
    """Returns whether attention that runs as scaled_dot_product_attention (SDPA) has dropout on a
    CPU. No kernel of torch's has it there, so that SDPA stores the scores, and draws a random
    number for each."""
    arguments = inspect.signature(_EXPANSIONS[name]).bind(*node.args, **node.kwargs).arguments
    p, query = arguments.get("dropout_p", 0.0), value(arguments["query"])
    if not (isinstance(p, float) and p > 0 and arguments.get("training", True) is True):
        return False
    # A trace would show what a tensor's subclass does.
    is_on_cpu = query is not None and query.device.type == "cpu"
    return is_on_cpu and not is_traceable_wrapper_subclass(query)


def _expand(node: Node, function: Callable[..., Any]) -> None:
    """Replaces `node` by the calls that `function` makes, if a trace on fake tensors finds them."""
    inputs = node.all_input_nodes
    values = [value(argument) for argument in inputs]
    if any(recorded is None for recorded in values):
        return

    def call(*tensors: Any) -> Any:
        given = dict(zip(inputs, tensors, strict=True))
        args, kwargs = map_arg((node.args, node.kwargs), given.__getitem__)
        return function(*args, **kwargs)

    symbolic = fake_mode(node).shape_env is not None
    with modes.evaluating(node):
        trace = make_fx(call, tracing_mode="symbolic" if symbolic else "fake", pre_dispatch=True)
        traced = trace(*values).graph
    # A constant of the trace would have to become an attribute of the graph's module.
    if traced.find_nodes(op="get_attr"):
        return
    _inline(node, traced, inputs)


def _inline(node: Node, traced: Graph, inputs: list[Node]) -> None:
    """Replaces `node` by the nodes of `traced`, if the results have the same dtypes and ranks."""
    results = traced.find_nodes(op="output")[0].args[0]
    if not _agree(value(node), pytree.tree_map_only(Node, value, results)):
        return
    copies = dict(zip(traced.find_nodes(op="placeholder"), inputs, strict=True))
    with node.graph.inserting_before(node), fake_mode(node), modes.evaluating(node):
        copied_results = node.graph.graph_copy(traced, copies)
        for old, new in copies.items():
            if old.op == "call_function":
                # The trace has its own fake mode, whose tensors must not mix with the graph's. The
                # call is therefore run again, on the graph's fake tensors.
                args, kwargs = map_arg((new.args, new.kwargs), value)
                annotate(new, old.target(*args, **kwargs), like=node)
    _replace(node, copied_results)


def _agree(eager: Any, ours: Any) -> bool:
    """Returns whether each tensor in `eager`, a value or a structure of values, has the dtype and
    rank of the value at the same place in `ours`."""
    pairs = zip(pytree.tree_leaves(eager), pytree.tree_leaves(ours), strict=True)
    tensors = [pair for pair in pairs if isinstance(pair[0], torch.Tensor)]
    return all((a.dtype, a.dim()) == (b.dtype, b.dim()) for a, b in tensors)


def _replace(node: Node, results: Any) -> None:
    """Replaces `node`, or each of its outputs, by `results`, which have the structure of the node's
    value. Erases the replaced outputs, and `node` itself if nothing uses it any more."""
    if isinstance(results, Node):
        _replace_uses(node, results)
    for item, index in (outputs(node) or {}).items():
        if isinstance(results[index], Node):
            _replace_uses(item, results[index])
            item.graph.erase_node(item)
    if not node.users:
        node.graph.erase_node(node)


def _replace_uses(old: Node, new: Node) -> None:
    """Replaces `old` by `new`. The new node gets the recorded value of `old`, because the values
    that capture recorded for views of `old` share its storage."""
    annotate(new, value(old), like=old)
    old.replace_all_uses_with(new)
