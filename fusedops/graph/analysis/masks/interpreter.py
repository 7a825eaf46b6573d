"""Interprets the calls that build a mask, one by one: from what is known of a call's operands
follows what is known of its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.masks.positions import (
    Affine,
    Number,
    TwoValued,
    elementwise,
    is_selectable,
    without_short_dims,
)
from fusedops.graph.analysis.modes import is_barrier
from fusedops.graph.analysis.steps import call_of, number
from fusedops.graph.analysis.values import rounded, value

#: At most this many of the nodes that build a mask are interpreted; the others count as unknown.
#: This bounds the time for graphs in which a mask depends on many calls, such as a whole model.
_MAX_CALLS = 96
#: Only tensors of these dtypes are read as positions, which are indices of rows and columns.
INTEGERS = (torch.int64, torch.int32)


@dataclass(frozen=True)
class Quotient:
    """affine // divisor, where the divisor is above 0."""

    affine: Affine
    divisor: int


@dataclass(frozen=True)
class Magnitude:
    """The absolute value of a number."""

    affine: Affine


@dataclass(frozen=True)
class Ascending:
    """An integer tensor whose elements never decrease along a dimension.

    numbers: a tensor that rises by one from a column to the next wherever this tensor (or, if it
        was made by indexing, the tensor that was indexed) has the same element in both columns;
        None if no such tensor is known.
    """

    node: Node
    dim: int
    numbers: Node | None = None


Known = Number | TwoValued | Affine | Quotient | Magnitude | Ascending


class Interpreter:
    """Finds out what is known of the tensors from which a mask is computed.

    steps: kind of call -> the function that returns what is known of the call's result, or None.
    """

    def __init__(self, steps: Mapping[str, Step]) -> None:
        self._steps = steps
        self.known: dict[Node, Known | None] = {}

    def read(self, argument: Any) -> Known | None:
        """Returns what is known of a node or a number, or None if nothing is."""
        if not isinstance(argument, Node):
            return argument if isinstance(argument, (int, float)) else None
        if argument not in self.known:
            many = len(self.known) >= _MAX_CALLS
            # The node counts toward _MAX_CALLS even before its operands have been read.
            self.known[argument] = None
            self.known[argument] = _unknown(argument) if many else self._interpreted(argument)
        return self.known[argument]

    def _interpreted(self, node: Node) -> Known | None:
        """Returns the number or symbol that capture recorded for a node, or what its call computes
        from what is known of its operands."""
        recorded = value(node)
        if isinstance(recorded, (int, float)):
            return recorded
        if isinstance(recorded, torch.SymInt):
            return Affine(terms={node: 1})
        if not isinstance(recorded, torch.Tensor):
            return None
        # A barrier (`modes.py`) returns its argument where the grad or autocast mode changes.
        if is_barrier(node):
            return self.read(node.args[0])
        if recorded.dim() == 0 and (single := number(node)) is not None:
            return single
        call = call_of(node)
        step = self._steps.get(call.kind) if call else None
        result = step(self, call) if step and call else None
        return _unknown(node) if result is None else _fitted(result, node)

    def position(self, argument: Any) -> Known | None:
        """Returns what is known of an operand of a comparison. The limit of a `Bound` may be any
        integer tensor, but of the formulas in the index i of a row it may be only i plus a
        constant, or a constant alone. An integer tensor with one number for each row therefore
        becomes a single term of an `Affine`, unless it has such a formula."""
        operand = _as_affine(self.read(argument))
        if not isinstance(argument, Node) or isinstance(operand, (TwoValued, float)):
            return operand
        tensor, term = value(argument), Affine(terms={argument: 1})
        if not isinstance(tensor, torch.Tensor) or tensor.dtype not in INTEGERS:
            return operand
        if term.varies_over_columns or (isinstance(operand, Affine) and operand.is_index):
            return operand
        return term

    def affine(self, argument: Any) -> Affine | None:
        """Returns an argument as an affine number, or None if it is not known to be one."""
        operand = _as_affine(self.read(argument))
        return operand if isinstance(operand, Affine) else None


def _as_affine(operand: Known | None) -> Known | None:
    """Returns an integer as an `Affine`, and any other operand unchanged."""
    return Affine(operand) if type(operand) is int else operand


def _unknown(node: Node) -> Known | None:
    """Describes a tensor of which nothing is known by the tensor itself: a bool tensor as a `Leaf`,
    an integer tensor as a term of an `Affine`. Returns None for other nodes."""
    tensor = value(node)
    if not isinstance(tensor, torch.Tensor):
        return None
    if tensor.dtype == torch.bool:
        return TwoValued({True: None, False: None}).with_leaf(node)
    return Affine(terms={node: 1}) if tensor.dtype in INTEGERS else None


def _fitted(result: Known, node: Node) -> Known | None:
    """Returns what is known of `node`, if its call computes `result` before the conversion to the
    node's dtype. Steps along dimensions of size 1 are dropped, since the only index there is 0. In
    a bool result, `node` itself takes the place of conditions that are not known."""
    tensor = value(node)
    if isinstance(result, (Affine, Quotient, Magnitude)):
        long = changed(result, lambda affine: without_short_dims(affine, tensor.shape))
        return result if long is None else long
    if not is_selectable(result):
        return result
    fitted = elementwise(lambda number: rounded(number, tensor.dtype), result)
    if isinstance(fitted, TwoValued) and tensor.dtype == torch.bool:
        return fitted.with_leaf(node)
    return fitted


def changed(
    operand: Affine | Quotient | Magnitude, change: Callable[[Affine], Affine | None]
) -> Affine | Quotient | Magnitude | None:
    """Returns `operand` with `change` applied to its affine part, or None if `change` returns
    None."""
    if isinstance(operand, Affine):
        return change(operand)
    inner = change(operand.affine)
    return None if inner is None else replace(operand, affine=inner)


Step = Callable[[Interpreter, Call], Known | None]
