"""Memory traffic: what the calls that a rewrite swallows read and write, and what its op does."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch.fx import Node

from fusedops.graph.dialect import value, view
from fusedops.graph.rule import Match

#: Calls that move nothing.
_FREE = ("reshape", "item")


def bytes_saved(match: Match) -> int:
    """What the calls of a match move, each by itself, less what its op moves; 0 for one call. Sizes
    that are symbols count as what they were captured with."""
    calls = match.swallowed or (match.call.node,)
    if len(calls) == 1:
        return 0
    apart = sum(_moved(call) for call in calls)
    inputs = {node for call in calls for node in call.all_input_nodes}.difference(calls)
    return max(0, apart - _bytes(inputs) - _bytes(match.results))


def _moved(node: Node) -> int:
    call = view(node)
    if call is not None and call.kind in _FREE:
        return 0
    if call is not None and call.kind == "cast" and _same_dtype(node, call.arguments["input"]):
        return 0
    return _bytes([*node.all_input_nodes, node])


def _same_dtype(node: Node, other: Node) -> bool:
    return value(node).dtype == value(other).dtype


def _bytes(nodes: Iterable[Node]) -> int:
    tensors = [value(node) for node in nodes]
    return sum(_size(t) for t in tensors if isinstance(t, torch.Tensor))


def _size(tensor: torch.Tensor) -> int:
    hints = [n.node.hint if isinstance(n, torch.SymInt) else n for n in tensor.shape]
    return 0 if None in hints else math.prod(hints) * tensor.dtype.itemsize
