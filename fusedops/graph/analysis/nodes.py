"""Has helpers for nodes of any kind: for their users, outputs and metadata, and for subgraphs."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

aten = torch.ops.aten


def packet(node: Node) -> Any:
    """Returns the target of a node. If the target is an overload of an op, such as aten.add.Tensor,
    the result is the packet of its overloads, aten.add."""
    return getattr(node.target, "overloadpacket", node.target)


OPS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)


def submodule(node: Node) -> nn.Module:
    """Returns the module that a `call_module` node calls."""
    root = node.graph.owning_module
    assert root is not None  # only graphs of GraphModules have call_module nodes
    return root.get_submodule(str(node.target))


def users(node: Node) -> list[Node]:
    """Returns the users of a node, without those that export leaves behind: assertions about its
    dtype, and unused outputs."""
    used = [user for user in node.users if user.users or user.target is not operator.getitem]
    return [user for user in used if not is_assertion(user)]


def is_private(nodes: Collection[Node], last: Node) -> bool:
    """Returns whether the results of `nodes`, except that of `last`, have no users but `nodes`."""
    return all(node is last or set(nodes).issuperset(users(node)) for node in nodes)


def is_assertion(node: Node) -> bool:
    return node.target is aten._assert_tensor_metadata.default


def outputs(node: Node) -> dict[Node, int] | None:
    """Returns the `getitem` users of a multi-output call by index, or None if something else uses
    the tuple, or if an index is negative or a slice, as symbolic_trace may record it."""
    if any(user.target is not operator.getitem for user in node.users):
        return None
    index_of = {user: user.args[1] for user in node.users}
    indices = {user: i for user, i in index_of.items() if type(i) is int and i >= 0}
    return indices if len(indices) == len(index_of) else None


def walk(graph: Graph) -> Iterator[tuple[Node, bool]]:
    """Yields the nodes that the graph has when the walk begins, and whether each is inside a
    `torch.func` transform, where the recorded values are functorch's wrapper tensors. The caller
    may erase nodes during the walk; erased ones are skipped."""
    depth = 0
    for node in list(graph.nodes):
        if not node._erased:
            # Dynamo records where it enters and leaves a transform.
            name = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
            depth += name.endswith("_increment_nesting") - name.endswith("_decrement_nesting")
            yield node, depth > 0


def subgraphs(graph_module: GraphModule) -> Iterator[GraphModule]:
    """Yields `graph_module`, and the graph modules that its graph uses, such as the bodies of
    checkpoint or cond, with those that they use in turn."""
    yield graph_module
    used = {n.target for n in graph_module.graph.nodes if n.op in ("get_attr", "call_module")}
    for name, child in graph_module.named_children():
        if name in used and isinstance(child, GraphModule):
            yield from subgraphs(child)


#: The keys of a node's metadata that say where in the model the node comes from.
_PROVENANCE = (
    "stack_trace",
    "nn_module_stack",
    "source_fn_stack",
    "from_node",
    "torch_fn",
    "custom",
)


def annotate(node: Node, result: Any, like: Node) -> None:
    """Sets a new node's metadata: `result` under the keys that the node `like` uses for its own
    value, and copies of the entries of `like` in `_PROVENANCE`, such as its source line."""
    node.meta = {key: like.meta[key] for key in _PROVENANCE if key in like.meta}
    node.meta |= {key: result for key in ("val", "example_value") if key in like.meta}
