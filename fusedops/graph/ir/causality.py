"""Recognises causal masks that a graph builds from constants, by computing them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import _disable_current_modes

from fusedops.graph.ir import aliasing
from fusedops.graph.ir.dialect import packet, value, written
from fusedops.graph.ir.spellings import aten

#: Masks are recognised if at most this many calls build them, from numbers alone.
_MAX_CALLS = 24
_MAX_ELEMENTS = 2**26

_COMPARISONS = "eq ne le lt ge gt"
_CREATION = "ones zeros full arange ones_like tril triu"
_LOGIC = "logical_not bitwise_not logical_and bitwise_and add sub"
_BUILDERS = {
    getattr(namespace, name)
    for namespace, names in (
        (torch, f"{_COMPARISONS} {_CREATION} {_LOGIC} unsqueeze reshape"),
        (operator, f"{_COMPARISONS} invert and_ or_ add sub getitem"),
        (aten, f"{_COMPARISONS} {_CREATION} {_LOGIC} unsqueeze reshape view slice expand to"),
    )
    for name in names.split()
}
_METHODS = {"bool", "to", "tril", "triu", "view", "reshape", "unsqueeze", "expand", "logical_not"}
_METHODS |= {"eq", "ne", "le", "lt", "ge", "gt", "bitwise_not", "type"}


def diagonal(mask: Node, shape: Sequence[Any], hides: bool) -> int | None:
    """The d for which query i of scores of that shape sees exactly the keys up to i + d; None if
    the mask is not known to have this form.

    The mask is True for hidden columns if `hides`, else for visible ones. Only masks that are built
    from constants are recognised, because a buffer can change after compilation.
    """
    queries_and_keys = tuple(shape[-2:])
    calls = _calls(mask)
    if not calls or len(queries_and_keys) < 2 or not all(type(n) is int for n in queries_and_keys):
        return None
    if tuple(value(mask).shape[-2:]) != queries_and_keys or value(mask).numel() > _MAX_ELEMENTS:
        return None
    with torch.no_grad(), _disable_current_modes():
        visible = _computed(calls).logical_not() if hides else _computed(calls)
    return _diagonal_of(visible)


def _calls(mask: Node) -> list[Node] | None:
    """The calls that build the mask, in program order; None if it does not consist of constants."""
    found: set[Node] = set()
    waiting = [mask]
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        if not _is_builder(node) or len(found) == _MAX_CALLS:
            return None
        found.add(node)
        waiting += node.all_input_nodes
    memory = {aliasing.storage(node) for node in found}
    nodes = mask.graph.nodes
    if any(aliasing.storage(target) in memory for node in nodes for target in written(node)):
        return None
    return sorted(found)


def _is_builder(node: Node) -> bool:
    if node.op == "call_method":
        return node.target in _METHODS
    return node.op == "call_function" and packet(node) in _BUILDERS and "out" not in node.kwargs


def _computed(calls: list[Node]) -> torch.Tensor:
    results: dict[Node, Any] = {}

    def known(argument: Any) -> Any:
        if isinstance(argument, torch.device):
            return torch.device("cpu")
        return results[argument] if isinstance(argument, Node) else argument

    for node in calls:
        args, kwargs = map_aggregate(node.args, known), map_aggregate(dict(node.kwargs), known)
        if isinstance(node.target, str):  # a method
            results[node] = getattr(args[0], node.target)(*args[1:], **kwargs)
        else:
            results[node] = node.target(*args, **kwargs)
    mask: torch.Tensor = results[calls[-1]]
    return mask


def _diagonal_of(visible: torch.Tensor) -> int | None:
    queries, keys = visible.shape[-2:]
    first = int(visible.reshape(-1, queries, keys)[0, 0].sum()) - 1 if visible.numel() else -1
    if first < 0 or first >= keys - 1 and queries > 1:
        return None  # the first query sees no key, or all of them
    causal = torch.ones(queries, keys, dtype=torch.bool).tril(first)
    return first if torch.equal(visible, causal.expand_as(visible)) else None
