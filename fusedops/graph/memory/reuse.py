"""In compiled graphs, softmax and its backward write into memory that nothing else needs any more.

before    y = fusedops.softmax(x, -1)       x: computed in this graph and used by nothing else
after     _, y = auto_functionalized(fusedops.softmax_, input=x, dim=-1)

Attention scores are such an x, and so is the gradient from the matrix product after the softmax:
each reuse lowers the peak memory by one tensor of queries x keys. The pass runs on the forward or
backward graph that Inductor is about to lower. Inductor checks the lifetimes again and copies x if
it is needed later. Eager mode reuses nothing, because there it is unknown who else refers to a
tensor.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from typing import Any

import torch
from torch.fx import Graph, Node

from fusedops.graph.analysis.calls import named_arguments
from fusedops.graph.analysis.storages import storage

_ops = torch.ops.fusedops

#: For each functional op its variant that writes into the first argument.
IN_PLACE = {
    getattr(_ops, name).default: getattr(_ops, f"{name}_").default
    for name in (
        "softmax",
        "log_softmax",
        "softmax_backward",
        "log_softmax_backward",
        "masked_softmax",
        "masked_softmax_backward",
        "masked_softmax_dropout_backward",
    )
}


def reuse_memory(graph: Graph) -> int:
    """Edits ``graph`` and returns the number of ops that now run in place."""
    holders = defaultdict(set)
    for node in graph.nodes:
        holders[storage(node)].add(node)
    reused = 0
    for node in list(graph.nodes):
        in_place = IN_PLACE.get(node.target) if node.op == "call_function" else None
        if in_place is None:
            continue
        source = node.args[0]
        if _has_layout_of(source, node) and _is_only_for(node, holders[storage(source)]):
            _run_in_place(graph, node, in_place)
            reused += 1
    return reused


def _has_layout_of(source: Node, result: Node) -> bool:
    x, y = source.meta.get("val"), result.meta.get("val")
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
        return False
    same = x.dtype == y.dtype and x.shape == y.shape
    return same and x.is_contiguous() and y.is_contiguous()


def _is_only_for(node: Node, holders: set[Node]) -> bool:
    """Whether the memory that ``holders`` share is allocated in this graph and read only by
    ``node``."""
    return all(
        holder.op == "call_function" and holders.union([node]).issuperset(holder.users)
        for holder in holders
    )


def _run_in_place(graph: Graph, node: Node, in_place: Any) -> None:
    named = named_arguments(node.target, node.args, node.kwargs)
    names = [argument.name for argument in in_place._schema.arguments]
    arguments = {name: value for name, value in named.items() if name in names}
    with graph.inserting_before(node):
        functional = torch.ops.higher_order.auto_functionalized
        both = graph.call_function(functional, (in_place,), arguments)
        both.meta["val"] = (None, node.meta["val"])
        result = graph.call_function(operator.getitem, (both, 1))
        result.meta.update(node.meta)
    node.replace_all_uses_with(result)
    graph.erase_node(node)
