"""Gives results that are returned memory of their own, where AOTAutograd has merged equal calls.

before    y, mean, rstd = fusedops.layer_norm(x, ...)      after    y, mean, rstd = ...
          again = y                                                 again = y.clone()
          return y, again                                           return y, again

A caller may write into one of two equal results. AOTAutograd therefore does not merge equal calls
whose result is a tensor that the graph returns. But it merges those that return several tensors,
as our norms in training, and keeps only the `getitem` that take returned tensors from them.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import Graph, Node

from fusedops.graph.analysis.storages import storage


def separate_merged_results(graph: Graph) -> None:
    """Edits ``graph``: clones the result of an op of ours if an equal one is returned before it."""
    returned = set()
    for item in graph.find_nodes(op="call_function", target=operator.getitem):
        is_ours = getattr(item.args[0].target, "namespace", None) == "fusedops"
        if not is_ours or not _is_returned(item):
            continue
        if item.args in returned:
            _clone(item)
        returned.add(item.args)


def _is_returned(node: Node) -> bool:
    """Returns whether the graph returns a node or a view of it."""
    memory = storage(node)
    return any(
        user.op == "output" or (storage(user) == memory and _is_returned(user))
        for user in node.users
    )


def _clone(item: Node) -> None:
    with item.graph.inserting_after(item):
        copy = item.graph.call_function(torch.ops.aten.clone.default, (item,))
    copy.meta["val"] = item.meta["val"].clone()
    item.replace_all_uses_with(copy, lambda user: user is not copy)
