"""Interprets logical calls, and calls that select by a condition, such as where and tril.

Each function returns what is known of the tensor that a call computes (`Known`), or None.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.masks.interpreter import (
    INTEGERS,
    Ascending,
    Interpreter,
    Known,
    Step,
)
from fusedops.graph.analysis.masks.positions import (
    COLUMNS,
    ROWS,
    Affine,
    at_most_zero,
    elementwise,
    is_logical,
    is_selectable,
    selected,
    without_short_dims,
)
from fusedops.graph.analysis.selections import selection
from fusedops.graph.analysis.values import value


def _logic(connect: Callable[[Any, Any], Any]) -> Step:
    """Returns the function that interprets `and` or `or` (`connect`) of two bool tensors."""

    def step(reader: Interpreter, call: Call) -> Known | None:
        a, b = map(reader.read, call.operands)
        return elementwise(connect, a, b) if is_logical(a) and is_logical(b) else None

    return step


def _negation(reader: Interpreter, call: Call) -> Known | None:
    """Interprets ~mask and logical_not(x)."""
    operand = reader.read(call.input)
    is_bool = value(call.node).dtype == torch.bool
    return elementwise(operator.not_, operand) if is_bool else None


def _selection(reader: Interpreter, call: Call) -> Known | None:
    """Interprets where and masked_fill."""
    return selected(*map(reader.read, selection(call) or (None,) * 3))


def _triangle(sign: int) -> Step:
    """Returns the function that interprets tril (`sign` 1) or triu (-1)."""

    def step(reader: Interpreter, call: Call) -> Known | None:
        input = reader.read(call.input)
        diagonal = reader.affine(call.arguments.get("diagonal", 0))
        if diagonal is None or value(call.node).dim() < 2:
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
        return operand
    kept = {value(node).dtype for node in (call.input, call.node)} <= {*INTEGERS}
    return operand if kept and not isinstance(operand, Ascending) else None


STEPS: dict[str, Step] = {
    "and": _logic(operator.and_),
    "or": _logic(operator.or_),
    "not": _negation,
    "where": _selection,
    "masked_fill": _selection,
    "tril": _triangle(1),
    "triu": _triangle(-1),
    "cast": _cast,
}
