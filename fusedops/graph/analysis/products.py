"""Recognises matrix products, and calls that do not change the elements of a tensor."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from fusedops.graph.analysis.calls import as_call, kind_of
from fusedops.graph.analysis.nodes import users
from fusedops.graph.analysis.steps import call_of, is_number, scaling
from fusedops.graph.analysis.values import value

#: The kinds of calls that change only shapes and strides. "same" is contiguous, clone or alias.
VIEWS = {"reshape", "same", "unsqueeze", "squeeze", "transpose", "permute", "movedim", "expand"}
VIEWS |= {"flatten", "unflatten", "t", "view_as"}


def is_unchanged(node: Node) -> bool:
    """Returns whether a call's result has the same elements as its input: a view, an inactive
    dropout, or a cast to the same dtype."""
    kind = kind_of(node)
    if kind == "dropout":
        call = as_call(node)
        return call is not None and (call.arguments["train"] is False or call.arguments["p"] == 0)
    if kind == "cast":
        return bool(value(node).dtype == value(node.all_input_nodes[0]).dtype)
    return kind in VIEWS


def is_product(node: Any) -> bool:
    """Returns whether a node is a matrix product, possibly cast, viewed or scaled by a number."""
    source = unscaled(node)
    return isinstance(source, Node) and kind_of(source) == "matmul"


def unscaled(node: Any) -> Any:
    """Returns the node from which `node` is computed by casts, views and products with numbers, or
    `node` itself if it is none of these."""
    while isinstance(node, Node) and (source := _source(node)) is not None:
        node = source
    return node


def _source(node: Node) -> Any:
    """Returns the tensor that a node casts, views or scales by a number; None for other nodes."""
    kind = kind_of(node)
    if kind in VIEWS or kind == "cast":
        return next(iter(node.all_input_nodes), None)
    call = call_of(node) if kind in ("mul", "div") else None
    if call is None:
        return None
    tensor, factor = scaling(call)
    return tensor if is_number(factor) else None


def feeds_products(node: Node) -> bool:
    """Returns whether only matrix products use a node, perhaps after views, casts and dropout."""
    passed = VIEWS | {"cast", "dropout"}
    used_by = users(node)
    return bool(used_by) and all(
        kind_of(user) == "matmul" or (kind_of(user) in passed and feeds_products(user))
        for user in used_by
    )
