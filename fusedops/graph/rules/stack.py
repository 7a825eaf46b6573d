"""Replaces a stack of softmaxes or layer_norms of tensors of one shape by one op, which writes the
stacked tensor.

before    y = torch.stack([torch.softmax(x, dim) for x in inputs], stack_dim)
          y = torch.stack([norm(x) for norm, x in zip(norms, inputs)], stack_dim)
after     y = torch.ops.fusedops.stack_softmax(inputs, dim, stack_dim)
          y, mean, rstd = torch.ops.fusedops.stack_layer_norm(
              inputs, normalized_shape, weights, biases, eps, stack_dim)

Each element of the stack is a softmax, log_softmax or layer_norm that another rule would replace,
and only the stack uses it. This rule runs before the others, which would replace the elements one
by one, with ops that cannot write into the stacked tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from torch.fx import Node

from fusedops.graph.analysis.calls import Call, as_call
from fusedops.graph.analysis.nodes import users
from fusedops.graph.analysis.steps import call_of
from fusedops.graph.analysis.values import constant, value
from fusedops.graph.rule import Match, Rule


class Stack(Rule):
    """Replaces a stack of results that `rules` would replace one by one by the op softmax,
    log_softmax or layer_norm."""

    name = "stack"

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = rules

    def match(self, call: Call) -> Match | None:
        if call.kind != "stack":
            return None
        results = call.arguments["tensors"]
        if not isinstance(results, (list, tuple)) or len(results) < 2:
            return None
        tried = [self._match_of(result, call.node) for result in results]
        matches = [match for match in tried if match is not None]
        if len(matches) < len(results):
            return None
        stacked = _stacked([match.op for match in matches], [m.call.arguments for m in matches])
        stack_dim = constant(call.arguments.get("dim", 0))
        if stacked is None or stack_dim is None:
            return None
        op, arguments = stacked
        site = Call(op, op, call.node, {**arguments, "stack_dim": stack_dim}, call.refusal)
        fused = {node for match in matches for node in match.nodes}
        index = 0 if op == "stack_layer_norm" else None
        return Match(site, {call.node: index}, (*sorted(fused), call.node))

    def _match_of(self, result: Any, stack: Node) -> Match | None:
        """Returns the match of an element of the stack, or None if something else reads the element
        too, or if there is no op for a stack of such elements."""
        if not isinstance(result, Node) or users(result) != [stack]:
            return None
        cast = call_of(result, "cast")
        anchors = (result, cast.input) if cast else (result,)
        calls = [call for anchor in anchors if (call := as_call(anchor)) is not None]
        for call, rule in product(calls, self.rules):
            match = rule.match(call)
            if match is not None and not (match.call.refusal or rule.refusal(match)):
                return match if result in match.results and match.op in _STACKED else None
        return None


def _stacked(ops: list[str], arguments: list[dict[str, Any]]) -> tuple[str, dict[str, Any]] | None:
    """Returns the op for the whole stack, and its arguments without stack_dim. Returns None if the
    elements differ in their op or its settings, or if the input of one of them is not a node."""
    inputs = [each["input"] for each in arguments]
    if len(set(ops)) > 1 or not all(isinstance(node, Node) for node in inputs):
        return None
    settings = _STACKED[ops[0]](inputs, arguments)
    return None if settings is None else (f"stack_{ops[0]}", {"inputs": inputs, **settings})


def _softmax_settings(inputs: list[Node], arguments: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns the op's arguments after the inputs, or None if the softmaxes differ in their
    dimension, or have an argument `dtype`, which the op lacks."""
    dims = {
        each["dim"] % max(value(node).dim(), 1)
        for node, each in zip(inputs, arguments, strict=True)
    }
    if len(dims) > 1 or any(each["dtype"] is not None for each in arguments):
        return None
    return {"dim": dims.pop()}


def _norm_settings(inputs: list[Node], arguments: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns the op's arguments after the inputs, or None if the norms differ in shape or eps, or
    if some have a weight or a bias and others have none."""
    first = arguments[0]
    # A shape may be a node: torch.fx records x.shape[-1:] as one.
    shapes = [value(each["normalized_shape"]) for each in arguments]
    if any(list(shape) != list(shapes[0]) for shape in shapes):
        return None
    if any(each["eps"] != first["eps"] for each in arguments):
        return None
    parameters = {}
    for name, plural in (("weight", "weights"), ("bias", "biases")):
        operands = [each[name] for each in arguments if each[name] is not None]
        if len(operands) not in (0, len(inputs)):
            return None
        parameters[plural] = operands
    shape = first["normalized_shape"]
    return {"normalized_shape": shape, **parameters, "eps": first["eps"]}


#: Op that can be stacked -> the function that returns the stacked op's arguments after the inputs.
_STACKED = {
    "softmax": _softmax_settings,
    "log_softmax": _softmax_settings,
    "layer_norm": _norm_settings,
}
