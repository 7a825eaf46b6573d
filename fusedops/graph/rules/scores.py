"""Matches the scale, bias, masks and casts that models apply to scores before a softmax."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from fusedops.graph.availability import KERNEL_DTYPES
from fusedops.graph.ir import aliasing, causality
from fusedops.graph.ir.dialect import Call, constant, number, rounded, users, value
from fusedops.graph.ir.steps import (
    broadcasts,
    call_of,
    is_number,
    is_widening,
    same_shape,
    tensor_and_number,
)
from fusedops.graph.rules.rule import OpCall
from fusedops.graph.rules.softmax import SoftmaxChain

aten = torch.ops.aten
Operand = Node | OpCall


@dataclass(frozen=True)
class Scores:
    """The input of a softmax: scale * input + addends where `visible`, else `mask_value`.

    nodes: the calls that compute this, in program order.
    diagonal: query i sees the keys up to i + diagonal, if it is not None.
    product: a matrix product to insert as the input; used if `input` is a baddbmm, which contains
        the scale or mask.
    """

    input: Node
    nodes: tuple[Node, ...] = ()
    scale: float = 1.0
    addends: tuple[Operand, ...] = ()
    visible: Operand | None = None
    mask_value: float = -math.inf
    diagonal: int | None = None
    product: OpCall | None = None

    @property
    def masks(self) -> bool:
        return self.visible is not None or self.diagonal is not None


def read_scores(chain: SoftmaxChain) -> Scores:
    """Matches as many of the calls before the softmax as the op can fuse."""
    scores, reader = Scores(chain.input), chain.nodes[0]
    while scores.product is None:
        call = call_of(aliasing.version(scores.input, reader))
        longer = _STEPS[call.kind](scores, call) if call and call.kind in _STEPS else None
        if call is None or longer is None:
            break
        ours = {*scores.nodes, *chain.nodes, call.node}
        unshared = ours.issuperset((*users(scores.input), *users(call.node)))
        longer = replace(longer, nodes=(*longer.nodes, call.node))
        if not unshared or not _is_safe(longer, call, chain):
            break
        scores, reader = longer, call.node
    return scores


def _is_safe(scores: Scores, step: Call, chain: SoftmaxChain) -> bool:
    """Whether the op can compute the step at the position of the softmax."""
    wide = torch.float64
    dtype = value(step.node).dtype
    narrows = dtype == wide and value(chain.last).dtype != wide  # the op would compute in float32
    known = value(scores.input).dtype in KERNEL_DTYPES and not narrows
    if not known or not same_shape(scores.input, step.node):
        return False
    return aliasing.written_between((*sorted(scores.nodes), *chain.nodes)) is None


def _through_cast(scores: Scores, call: Call) -> Scores | None:
    return replace(scores, input=call.arguments["input"]) if is_widening(call) else None


def _through_mul(scores: Scores, call: Call) -> Scores | None:
    return _scaled(scores, *tensor_and_number(call), inverse=False)


def _through_div(scores: Scores, call: Call) -> Scores | None:
    return _scaled(scores, call.arguments["input"], call.arguments["other"], inverse=True)


def _scaled(scores: Scores, input: Any, factor: Any, inverse: bool) -> Scores | None:
    if not isinstance(input, Node) or not is_number(factor):
        return None
    factor = number(factor)
    if not math.isfinite(factor) or factor == 0:
        return None
    return replace(scores, input=input, scale=scores.scale * (1 / factor if inverse else factor))


def _through_add(scores: Scores, call: Call) -> Scores | None:
    input, other = tensor_and_number(call)
    if is_number(other) and isinstance(input, Node):
        return replace(scores, input=input) if number(other) == 0 else None
    pairs = [pair for pair in ((input, other), (other, input)) if _is_addend(*reversed(pair))]
    if not pairs:
        return None

    # If both have the full shape, the one that is a matrix product is the scores.
    def preference(pair: tuple[Node, Node]) -> tuple[bool, bool]:
        return same_shape(pair[1], pair[0]), not _is_product(pair[0])

    return _added(scores, *min(pairs, key=preference))


def _through_sub(scores: Scores, call: Call) -> Scores | None:
    input, other = call.arguments["input"], call.arguments["other"]
    if not _is_addend(other, input) or same_shape(other, input):
        return None
    return _added(scores, input, OpCall(aten.neg.default, (other,)))


def _through_baddbmm(scores: Scores, call: Call) -> Scores | None:
    """beta * input + alpha * batch1 @ batch2"""
    given = call.arguments
    alpha, beta = (constant(given.get(name, 1)) for name in ("alpha", "beta"))
    if scores.scale != 1 or not alpha or not beta or not _is_addend(given["input"], call.node):
        return None
    addend = given["input"] if beta == 1 else OpCall(aten.mul.Tensor, (given["input"], beta))
    longer = _added(scores, call.node, addend)
    product = OpCall(aten.bmm.default, (given["batch1"], given["batch2"]))
    return replace(longer, scale=float(alpha), product=product) if longer else None


def _is_addend(addend: Any, input: Any) -> bool:
    nodes = isinstance(addend, Node) and isinstance(input, Node)
    return nodes and broadcasts(addend, input) and value(addend).dtype in KERNEL_DTYPES


def _is_product(node: Node, steps: int = 6) -> bool:
    """Whether a node is a matrix product, possibly scaled, cast or reshaped."""
    call = call_of(node)
    if call is None or steps == 0 or call.kind == "matmul":
        return call is not None and call.kind == "matmul"
    return isinstance(call.arguments.get("input"), Node) and _is_product(
        call.arguments["input"], steps - 1
    )


def _added(scores: Scores, input: Node, addend: Operand) -> Scores | None:
    if len(scores.addends) == (1 if scores.visible is not None else 2):
        return None
    if scores.scale != 1:  # scale * (input + addend)
        if isinstance(addend, Node) and same_shape(addend, input):
            return None
        addend = OpCall(aten.mul.Tensor, (addend, scores.scale))
    return replace(scores, input=input, addends=(*scores.addends, addend))


def _through_masked_fill(scores: Scores, call: Call) -> Scores | None:
    given = call.arguments
    return _filled(scores, call, given.get("input"), given.get("mask"), given.get("value"), True)


def _through_where(scores: Scores, call: Call) -> Scores | None:
    condition, first, other = (call.arguments.get(n) for n in ("condition", "input", "other"))
    if is_number(other):
        return _filled(scores, call, first, condition, other, hides=False)
    return _filled(scores, call, other, condition, first, hides=True)


def _filled(
    scores: Scores, call: Call, input: Any, mask: Any, fill: Any, hides: bool
) -> Scores | None:
    """The scores `input` with `fill` where `mask` is True (`hides`) or False (not `hides`)."""
    if not isinstance(input, Node) or not isinstance(mask, Node) or not is_number(fill):
        return None
    if (given := number(fill)) is None:
        return None
    fill = rounded(given, value(call.node).dtype) * scores.scale
    if scores.addends or not fill < math.inf or not broadcasts(mask, input):
        return None
    if value(mask).dtype != torch.bool or (scores.masks and fill != scores.mask_value):
        return None
    scores = replace(scores, input=input, mask_value=fill)
    diagonal = causality.diagonal(mask, value(input).shape, hides)
    if diagonal is not None and scores.diagonal is None:
        return replace(scores, diagonal=diagonal)
    if hides:
        scores, mask = _inverted(scores, mask)
    if scores.visible is not None:
        mask = OpCall(aten.logical_and.default, (mask, scores.visible))
    return replace(scores, visible=mask)


def _inverted(scores: Scores, mask: Node) -> tuple[Scores, Operand]:
    call = call_of(mask, "not")
    if call is not None and value(call.arguments["input"]).dtype == torch.bool:
        return replace(scores, nodes=(*scores.nodes, mask)), call.arguments["input"]
    return scores, OpCall(aten.logical_not.default, (mask,))


_STEPS = {
    "cast": _through_cast,
    "mul": _through_mul,
    "div": _through_div,
    "add": _through_add,
    "sub": _through_sub,
    "baddbmm": _through_baddbmm,
    "masked_fill": _through_masked_fill,
    "where": _through_where,
}
