"""What a rewritten graph computes, as expressions of its inputs that fit in a line of a test."""

from __future__ import annotations

import operator

import torch


def calls(graph: torch.fx.Graph) -> list[str]:
    """Each call of an operator of ours: ``masked_softmax(matmul(q, k), mask=keep, scale=0.5)``.

    The first argument has no name. Left out are arguments that have their defaults and, where they
    have none, those that are None or False, and copies of masks that Inductor must save.
    """
    return [_call(node) for node in graph.nodes if _is_ours(node)]


def results(graph: torch.fx.Graph) -> list[str]:
    """What the graph returns, with the names of our operators in place of their calls."""
    (returned,) = graph.output_node().args
    return [_expression(value) for value in (returned if _is_sequence(returned) else [returned])]


def unused(graph: torch.fx.Graph) -> list[str]:
    """The values that the graph computes and nothing uses."""
    computed = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    return [_expression(node) for node in computed if not node.users]


def _is_ours(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "fusedops"


def _is_sequence(value: object) -> bool:
    return isinstance(value, (tuple, list))


def _call(node: torch.fx.Node) -> str:
    first, *others = zip(node.target._schema.arguments, node.args, strict=False)
    named = [
        f"{argument.name}={_expression(value)}"
        for argument, value in others
        if not _is_left_out(argument, value)
    ]
    return f"{_name(node)}({', '.join([_expression(first[1]), *named])})"


def _is_left_out(argument: torch.Argument, value: object) -> bool:
    if argument.has_default_value():
        return value == argument.default_value
    return value is None or value is False


def _expression(value: object) -> str:
    if _is_sequence(value):
        return f"[{', '.join(map(_expression, value))}]"
    if not isinstance(value, torch.fx.Node):
        return str(value)
    if value.op == "placeholder":
        return value.name.removeprefix("l_").removesuffix("_")  # as Dynamo names an input
    if _is_ours(value) or value.op == "get_attr":
        return _name(value)
    if value.target is torch.ops.aten.bitwise_and.Tensor and value.args[0] is value.args[1]:
        return _expression(value.args[0])  # a copy of a mask, which Inductor has to save
    if value.target is operator.getitem:
        return f"{_expression(value.args[0])}[{_index(value.args[1])}]"
    return f"{_name(value)}({', '.join(map(_expression, value.args))})"


def _name(node: torch.fx.Node) -> str:
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.name.split("::")[1]
    name = node.target if isinstance(node.target, str) else node.target.__name__
    return name.removeprefix("__").removesuffix("__")  # torch 2.10 writes x == y as x.__eq__(y)


def _index(index: object) -> str:
    """An index as it is written between brackets."""
    if isinstance(index, tuple):
        return ", ".join(map(_index, index))
    if not isinstance(index, slice):
        return str(index)
    begin, end = ("" if bound is None else bound for bound in (index.start, index.stop))
    return f"{begin}:{end}"
