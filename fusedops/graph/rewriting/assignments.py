"""Writes the assignment of a number to what a mask selects as the call that does the same.

before    scores[mask] = -1e9
after     scores.masked_fill_(mask, -1e9)

A call has a result, so that the rules find the mask before the softmax.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, Node

from fusedops.graph.analysis.nodes import annotate, walk
from fusedops.graph.analysis.values import are_equal, value


def fill_by_calls(graph: Graph) -> None:
    """Edits the graph, except inside a `torch.func` transform."""
    for node, transformed in walk(graph):
        if node.target is operator.setitem and not transformed and _fills(*node.args):
            with graph.inserting_before(node):
                call = graph.call_method("masked_fill_", node.args)
            tensor: Any = node.args[0]
            annotate(call, value(tensor), like=tensor)
            graph.erase_node(node)


def _fills(tensor: Any, mask: Any, number: Any) -> bool:
    """Returns whether an assignment fills elements of a floating tensor, one for each of a mask."""
    if not isinstance(mask, Node) or not isinstance(number, (int, float)):
        return False
    filled, selected = value(tensor), value(mask)
    if not isinstance(filled, torch.Tensor) or not isinstance(selected, torch.Tensor):
        return False
    is_mask = selected.dtype == torch.bool and selected.device == filled.device
    return is_mask and filled.is_floating_point() and are_equal(filled.shape, selected.shape)
