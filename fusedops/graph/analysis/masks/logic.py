"""Interprets logical calls, and calls that select by a condition, such as where and tril.

Each function returns what is known of the tensor that a call computes (`Known`), or None.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch

from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.masks.interpreter import (
    INTEGERS,
    Ascending,
    Interpreter,
    Known,
    Step,
    as_affine,
)
from fusedops.graph.analysis.masks.positions import (
    COLUMNS,
    ROWS,
    Affine,
    BoolTensor,
    Logical,
    at_most_zero,
    both,
    either,
    elementwise,
    inverse,
    is_selectable,
    selected,
    without_short_dims,
)
from fusedops.graph.analysis.selections import selection
from fusedops.graph.analysis.values import value


def _logic(connect: Callable[[Logical, Logical], Logical]) -> Step:
    """Returns the function that interprets `and` or `or` of two bool tensors, where `connect` joins
    what is known of the two."""

    def step(reader: Interpreter, call: Call) -> Known | None:
        a, b = reader.operands(call)
        if not isinstance(a, (BoolTensor, bool)) or not isinstance(b, (BoolTensor, bool)):
            return None
        return connect(a, b)

    return step


def _negation(reader: Interpreter, call: Call) -> Known | None:
    """Interprets ~mask, or logical_not(x), which is x == 0."""
    operand = reader.read(call.input)
    if isinstance(operand, (BoolTensor, bool)):
        return inverse(operand)
    if not is_selectable(operand) or value(call.node).dtype != torch.bool:
        return None
    return elementwise(operator.eq, operand, 0)


def _selection(reader: Interpreter, call: Call) -> Known | None:
    """Interprets where and masked_fill."""
    return selected(*map(reader.read, selection(call) or (None,) * 3))


def _triangle(sign: int) -> Step:
    """Returns the function that interprets tril (`sign` 1) or triu (-1)."""

    def step(reader: Interpreter, call: Call) -> Known | None:
        input = reader.read(call.input)
        diagonal = as_affine(reader.read(call.arguments.get("diagonal", 0)))
        if not isinstance(diagonal, Affine) or value(call.node).dim() < 2:
            return None
        # tril keeps the columns with column - row <= diagonal, triu those with >=.
        index = without_short_dims(Affine(steps={COLUMNS: 1, ROWS: -1}), value(call.node).shape)
        distance = index - diagonal
        return selected(at_most_zero(distance * sign), input, 0)

    return step


def _cast(reader: Interpreter, call: Call) -> Known | None:
    """Interprets a cast. Numbers and tensors with at most two values stay known in any dtype,
    positions only between integer dtypes."""
    operand = reader.read(call.input)
    if is_selectable(operand):
        if value(call.node).dtype == torch.bool and not isinstance(operand, BoolTensor):
            return elementwise(operator.ne, operand, 0)
        return operand
    kept = {value(node).dtype for node in (call.input, call.node)} <= {*INTEGERS}
    return operand if kept and not isinstance(operand, Ascending) else None


STEPS: dict[str, Step] = {
    "and": _logic(both),
    "or": _logic(either),
    "not": _negation,
    "where": _selection,
    "masked_fill": _selection,
    "tril": _triangle(1),
    "triu": _triangle(-1),
    "cast": _cast,
}
