"""Finds the tensors that a call writes into: its name says so, its schema, or `aliases.WRITES`."""

from __future__ import annotations

import functools
import inspect
import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from fusedops.graph.analysis import aliases
from fusedops.graph.analysis.calls import named_arguments
from fusedops.graph.analysis.nodes import OPS, packet, submodule


def written(node: Node) -> list[Node]:
    """Returns the arguments that a call writes into; for a higher-order op whose body writes into
    anything, all its inputs."""
    if not node.op.startswith("call"):
        return []
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return node.all_input_nodes if _writes_inside(node) else []
    hidden = aliases.WRITES.get(type(submodule(node)) if node.op == "call_module" else packet(node))
    if hidden is not None:
        targets = _written_by_table(node, *hidden)
    elif isinstance(node.target, OPS):
        targets = _written_by_schema(node, node.target)
    else:
        first = node.args[:1] if _is_in_place(node) else ()
        targets = [*first, _argument(node, "out")]
    lists = (g if isinstance(g, (list, tuple)) else (g,) for g in targets)
    nodes = (argument for arguments in lists for argument in arguments)
    return list(dict.fromkeys(node for node in nodes if isinstance(node, Node)))


def _written_by_table(
    node: Node, names: tuple[str, ...], switch: str, off: bool | None
) -> list[Any]:
    """Returns the arguments `names`, unless the argument `switch` is `off`. For a module these are
    its own attributes, and the result has the nodes of the graph that read them."""
    if node.op == "call_module":
        is_off = getattr(submodule(node), switch) is off
        targets = {f"{node.target}.{name}" for name in names}
        reads = node.graph.find_nodes(op="get_attr")
        return [] if is_off else [read for read in reads if read.target in targets]
    arguments = named_arguments(node.target, node.args, node.kwargs)
    return [] if arguments[switch] is off else [arguments[name] for name in names]


def _writes_inside(node: Node) -> bool:
    """Returns whether the body of a higher-order op writes into anything, which may be an input."""
    if node.target is torch.ops.higher_order.triton_kernel_wrapper_mutation:
        return True
    read = [operator.attrgetter(str(n.target)) for n in node.all_input_nodes if n.op == "get_attr"]
    attributes = [get(node.graph.owning_module) for get in read]
    bodies = [body for body in attributes if isinstance(body, GraphModule)]
    return any(written(inner) for body in bodies for inner in body.graph.nodes)


def _written_by_schema(
    node: Node, op: torch._ops.OpOverload | torch._ops.OpOverloadPacket
) -> list[Any]:
    """Returns the arguments that an op writes into. For a packet, the overload is unknown, so that
    all of them are considered."""
    if isinstance(op, torch._ops.OpOverloadPacket):
        overloads = [getattr(op, name) for name in op.overloads()]
    else:
        overloads = [op]
    targets = []
    for overload in overloads:
        arguments = overload._schema.arguments
        by_name = dict(zip((a.name for a in arguments), node.args, strict=False)) | node.kwargs
        writes = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]
        targets += [by_name[name] for name in writes if name in by_name]
    return targets


def _is_in_place(node: Node) -> bool:
    """Returns whether a call that has no schema writes into its first argument. Its name says so,
    such as add_ or iadd, or the argument inplace=True."""
    if node.op == "call_module":
        return bool(getattr(submodule(node), "inplace", False))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if node.target in aliases.KEYWORDS:
        return False
    if name.strip("_") in aliases.IN_PLACE or (name.endswith("_") and not name.endswith("__")):
        return True
    return node.op == "call_function" and _argument(node, "inplace") is True


def _argument(node: Node, name: str) -> Any:
    """Returns the argument of a call with that name, or None if the call does not have it. Dynamo
    passes `inplace` by position, and torch.norm and F.normalize take `out` by position too.
    Functions in C++ take `out` by name alone."""
    module = getattr(node.target, "__module__", None)
    if node.op != "call_function" or module not in ("torch.nn.functional", "torch.functional"):
        return node.kwargs.get(name)
    return _signature(node.target).bind_partial(*node.args, **node.kwargs).arguments.get(name)


_signature = functools.cache(inspect.signature)
