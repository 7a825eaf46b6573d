"""Matrix products, and calls that do not change the elements of a tensor."""

from __future__ import annotations

import torch
from torch.fx import Node

from fusedops.graph.analysis import aliases
from fusedops.graph.analysis.calls import as_call
from fusedops.graph.analysis.nodes import packet, submodule
from fusedops.graph.analysis.values import value


def is_unchanged(node: Node) -> bool:
    """Whether a call's result has the same elements as its input: a view, an inactive dropout, or a
    cast to the same dtype."""
    name = name_of(node)
    if name == "dropout":
        given = call.arguments if (call := as_call(node)) else {}
        return given.get("train") is False or given.get("p") == 0
    if name in aliases.CASTS and node.op.startswith("call"):
        tensors = (value(node), value(node.all_input_nodes[0]))
        return all(isinstance(t, torch.Tensor) for t in tensors) and (
            tensors[0].dtype == tensors[1].dtype
        )
    return name in aliases.VIEWS


def is_product(node: Node) -> bool:
    """Whether a node is a matrix product, possibly cast, viewed or scaled by a number."""
    name = name_of(node)
    if name in aliases.VIEWS | aliases.CASTS and node.all_input_nodes:
        return is_product(node.all_input_nodes[0])
    if name in aliases.SCALING and len(node.all_input_nodes) == 1:
        return is_product(node.all_input_nodes[0])
    return name in aliases.PRODUCTS


def feeds_products(node: Node) -> bool:
    """Whether a node is used only by matrix products, directly or through views, casts and
    dropout."""
    passes = aliases.VIEWS | aliases.CASTS | {"dropout"}
    return bool(node.users) and all(
        name_of(user) in aliases.PRODUCTS or (name_of(user) in passes and feeds_products(user))
        for user in node.users
    )


def name_of(node: Node) -> str:
    """The name of a call in torch IR or ATen, without the suffix of in-place calls; for a module
    its type."""
    if node.op == "call_module":
        return type(submodule(node)).__name__.lower()
    target = packet(node)
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    return name.rstrip("_")
