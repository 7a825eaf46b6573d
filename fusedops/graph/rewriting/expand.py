"""Decomposes opaque calls that contain a softmax or a norm, so that the rules can match these.

before    out, weights = F.multi_head_attention_forward(query, key, value, ...)
after     the ATen calls that this function makes, traced before autograd

The decomposition computes the same results and draws the same random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from fusedops.graph.analysis import modes
from fusedops.graph.analysis.calls import expansion
from fusedops.graph.analysis.nodes import annotate, outputs, walk
from fusedops.graph.analysis.values import fake_mode, value
from fusedops.graph.policy import decision


def expand(graph: Graph) -> None:
    """Replaces the opaque calls of `graph` by their decompositions, except calls inside a
    `torch.func` transform, and encoder layers that are faster as they are."""
    for node, transformed in walk(graph):
        decomposition = expansion(node, _EXPANSIONS)
        if decomposition is None or transformed:
            continue
        if decomposition is not _encoder_layer or not decision.leaves_encoder_layer(value(node)):
            _expand(node, decomposition)


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


# --- decompositions -------------------------------------------------------------------------------


def _encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    in_proj_weight: torch.Tensor,
    in_proj_bias: torch.Tensor,
    out_proj_weight: torch.Tensor,
    out_proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm1_weight: torch.Tensor,
    norm1_bias: torch.Tensor,
    norm2_weight: torch.Tensor,
    norm2_bias: torch.Tensor,
    linear1_weight: torch.Tensor,
    linear1_bias: torch.Tensor,
    linear2_weight: torch.Tensor,
    linear2_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """Computes what aten._transformer_encoder_layer_fwd does, by the separate calls that torch
    makes in training, but without dropout. The parameters are those of the ATen op, in its
    order."""
    norm1, norm2 = (
        partial(F.layer_norm, normalized_shape=(embed_dim,), weight=weight, bias=bias, eps=eps)
        for weight, bias in ((norm1_weight, norm1_bias), (norm2_weight, norm2_bias))
    )

    def attend(x: torch.Tensor) -> torch.Tensor:
        heads = F.linear(x, in_proj_weight, in_proj_bias).unflatten(-1, (3, num_heads, -1))
        query, key, values = heads.permute(2, 0, 3, 1, 4).unbind(0)
        return F.linear(
            _attention(query, key, values, mask, mask_type).transpose(1, 2).flatten(2),
            out_proj_weight,
            out_proj_bias,
        )

    def feed_forward(x: torch.Tensor) -> torch.Tensor:
        hidden = F.linear(x, linear1_weight, linear1_bias)
        hidden = F.gelu(hidden) if use_gelu else F.relu(hidden)
        return F.linear(hidden, linear2_weight, linear2_bias)

    if norm_first:
        src = src + attend(norm1(src))
        return src + feed_forward(norm2(src))
    src = norm1(src + attend(src))
    return norm2(src + feed_forward(src))


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    mask_type: int | None,
) -> torch.Tensor:
    """Computes multi-head attention. The mask has the shape [batch, keys] if `mask_type` is 1, and
    otherwise one that broadcasts to the scores."""
    if mask is None:
        return F.scaled_dot_product_attention(query, key, values)
    # The mask hides keys where it is not zero. A query that sees no key gets NaN from this softmax,
    # while SDPA would give it zeros.
    hidden = mask.to(torch.bool)
    hidden = hidden[:, None, None, :] if mask_type == 1 else hidden
    scores = torch.matmul(query * query.shape[-1] ** -0.5, key.transpose(-2, -1))
    return torch.matmul(scores.masked_fill(hidden, float("-inf")).softmax(-1), values)


#: Name of an opaque call in `aliases.LEAVES` -> the function that decomposes it.
_EXPANSIONS: dict[str, Callable[..., Any]] = {
    "multi_head_attention_forward": F.multi_head_attention_forward,
    "_transformer_encoder_layer_fwd": _encoder_layer,
    "softmin": F.softmin,
    "gumbel_softmax": F.gumbel_softmax,
}
