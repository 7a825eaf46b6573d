"""Interprets the calls that build a mask, one by one, with what is known of their operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch.fx import Node

from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.masks import choices
from fusedops.graph.analysis.masks.choices import Choice, Chosen, Number
from fusedops.graph.analysis.masks.picks import Pick, pick_of
from fusedops.graph.analysis.masks.positions import Affine, Truth, without_short_dims
from fusedops.graph.analysis.modes import is_barrier
from fusedops.graph.analysis.steps import call_of
from fusedops.graph.analysis.values import number, rounded, value

#: A mask is read if at most this many calls build it.
_MAX_CALLS = 96
#: The dtypes of positions.
INTEGERS = (torch.int64, torch.int32)


@dataclass(frozen=True)
class Quotient:
    """dividend // divisor, where the divisor is above 0."""

    dividend: Affine
    divisor: int


@dataclass(frozen=True)
class Magnitude:
    """The absolute value of a number."""

    signed: Affine


@dataclass(frozen=True)
class Ascending:
    """An integer tensor whose elements never decrease along a dimension.

    numbers: a tensor that rises by one per column wherever neighbours in this tensor, or in the one
        that it is gathered from, are equal; None if none is known.
    """

    node: Node
    dim: int
    numbers: Node | None = None


Known = Number | Truth | Choice | Affine | Quotient | Magnitude | Ascending


class Interpreter:
    """Finds out what is known of the tensors that a mask is made of.

    steps: for each kind of call the function that interprets it, or returns None if it cannot.
    """

    def __init__(self, steps: Mapping[str, Step]) -> None:
        self._steps = steps
        self.known: dict[Node, Known | None] = {}

    def read(self, argument: Any) -> Known | None:
        """Says what is known of a node or a number; None if nothing is."""
        if not isinstance(argument, Node):
            return argument if isinstance(argument, (int, float)) else None
        if argument not in self.known:
            many = len(self.known) >= _MAX_CALLS
            self.known[argument] = None  # counts it while its operands are read
            self.known[argument] = _unknown(argument) if many else self._interpreted(argument)
        return self.known[argument]

    def _interpreted(self, node: Node) -> Known | None:
        recorded = value(node)
        if isinstance(recorded, (int, float)):
            return recorded
        if isinstance(recorded, torch.SymInt):
            return Affine(terms={node: 1})
        if not isinstance(recorded, torch.Tensor):
            return None
        if is_barrier(node):  # constants have no gradient in any mode
            return self.read(node.args[0])
        if recorded.dim() == 0 and (single := number(node)) is not None:
            return single
        call = call_of(node)
        step = self._steps.get(call.kind) if call else None
        known = step(self, call) if step and call else None
        return _unknown(node) if known is None else _fitted(known, node)

    def operands(self, call: Call) -> tuple[Known | None, Known | None]:
        first, other = (self.read(call.arguments.get(name)) for name in ("input", "other"))
        return first, other

    def position(self, argument: Any) -> Known | None:
        """Like `read`, but a tensor with one number for each row becomes a term, unless it is the
        row's index plus a number."""
        known = as_affine(self.read(argument))
        if not isinstance(argument, Node) or isinstance(known, (Truth, Choice, float)):
            return known
        tensor, term = value(argument), Affine(terms={argument: 1})
        if not isinstance(tensor, torch.Tensor) or tensor.dtype not in INTEGERS:
            return known
        if term.varies_over_columns or (isinstance(known, Affine) and known.is_index):
            return known
        return term

    def affine(self, argument: Any) -> Affine | None:
        known = as_affine(self.read(argument))
        return known if isinstance(known, Affine) else None

    def pick(self, node: Node) -> Pick:
        return pick_of(self.affine, node)


def as_affine(known: Known | None) -> Known | None:
    return Affine(known) if type(known) is int else known


def is_chosen(known: Known | None) -> TypeGuard[Chosen]:
    return isinstance(known, (int, float, Truth, Choice))


def _unknown(node: Node) -> Known | None:
    tensor = value(node)
    if not isinstance(tensor, torch.Tensor):
        return None
    if tensor.dtype == torch.bool:
        return Truth(None, None).completed(node)
    return Affine(terms={node: 1}) if tensor.dtype in INTEGERS else None


def _fitted(known: Known, node: Node) -> Known:
    """Fits a result to the dtype and shape of its node: indices of dimensions of size 1 are 0."""
    tensor = value(node)
    if isinstance(known, (Affine, Quotient, Magnitude)):
        long = changed(known, lambda affine: without_short_dims(affine, tensor.shape))
        return known if long is None else long
    if isinstance(known, (int, float)):
        return rounded(known, tensor.dtype)
    if isinstance(known, Truth):
        is_bool = tensor.dtype == torch.bool
        return known.completed(node) if is_bool else Choice(known, 1, 0)
    if not isinstance(known, Choice):
        return known
    yes, no = (rounded(one, tensor.dtype) for one in (known.yes, known.no))
    fitted = choices.chosen(known.truth, yes, no)
    if tensor.dtype != torch.bool or not isinstance(fitted, Choice):
        return fitted
    return (fitted.truth if fitted.yes else fitted.truth.inverted).completed(node)


def changed(
    known: Affine | Quotient | Magnitude, change: Callable[[Affine], Affine | None]
) -> Affine | Quotient | Magnitude | None:
    """A number with its affine part changed; None if `change` gives None."""
    if isinstance(known, Affine):
        return change(known)
    inner = change(known.dividend if isinstance(known, Quotient) else known.signed)
    if inner is None:
        return None
    return Quotient(inner, known.divisor) if isinstance(known, Quotient) else Magnitude(inner)


Step = Callable[[Interpreter, Call], Known | None]
