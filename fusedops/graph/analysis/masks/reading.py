"""Reads the mask that a graph computes, which says which columns each row sees: as bounds if they
follow from the positions of row and column, else as bool tensors.

The calls that build a mask are interpreted with the values of `positions.py`:
`arithmetic.py` begins with aranges, `comparisons.py` makes bounds of them, and `logic.py` and
`views.py` take these through logical calls and views to the mask. A tensor that is a graph input or
a buffer has unknown elements, but can still be a bound: `keys <= position[:, None]` ends each row
at the element of `position`, which the compiled graph reads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx import Node

from fusedops.graph.analysis import storages
from fusedops.graph.analysis.masks import arithmetic, comparisons, logic, views
from fusedops.graph.analysis.masks.interpreter import Interpreter
from fusedops.graph.analysis.masks.positions import (
    Bound,
    Condition,
    Leaf,
    Number,
    TwoValued,
    conditions_of,
    is_logical,
    operands,
    resolved,
)
from fusedops.graph.analysis.steps import call_of, upstream
from fusedops.graph.analysis.values import value
from fusedops.graph.analysis.writes import written

_STEPS = {**arithmetic.STEPS, **comparisons.STEPS, **logic.STEPS, **views.STEPS}


@dataclass(frozen=True)
class Mask:
    """Says which columns a mask hides.

    visible: bounds and bool tensors. A row sees the columns in which all of them hold.
    added: the number that is added to hidden scores; None for a bool mask.
    calls: the calls that compute the mask, and may be erased once nothing uses it.
    """

    visible: tuple[Bound | Leaf, ...]
    added: Number | None
    calls: frozenset[Node]

    @property
    def bounds(self) -> tuple[Bound, ...]:
        return tuple(part for part in self.visible if isinstance(part, Bound))

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        return tuple(part for part in self.visible if isinstance(part, Leaf))


def read_bool(mask: Node, hides: bool, reader: Node) -> Mask | None:
    """Returns what is known of a bool mask that the call `reader` uses, or None if nothing is. The
    mask is True for hidden columns if `hides`, else for visible ones."""
    result = Interpreter(_STEPS).read(mask)
    visible = conditions_of(result).get(not hides) if is_logical(result) else None
    return _mask(mask, visible, added=None, reader=reader)


def read_added(addend: Node, reader: Node) -> Mask | None:
    """Returns what is known of a mask that the call `reader` adds to scores, which has 0 in visible
    columns and another number in hidden ones. Returns None if `addend` is not known to be such a
    mask."""
    result = Interpreter(_STEPS).read(addend)
    if not isinstance(result, TwoValued) or is_logical(result) or 0 not in result.conditions:
        return None
    added = next(number for number in result.conditions if number != 0)
    return _mask(addend, result.conditions[0], added, reader)


def why_unknown(mask: Node) -> str:
    """Returns why a mask is not known as bounds of rows."""
    calls = upstream(mask, until=set()) or {mask}
    read = {node for call in calls for node in (call, *call.all_input_nodes)}
    inputs = [node for node in sorted(read) if node.op in ("placeholder", "get_attr")]
    tensors = [node.name for node in inputs if isinstance(value(node), torch.Tensor)]
    if tensors:
        return f"the mask depends on the elements of {', '.join(tensors[:3])}"
    return "the mask is not known to leave each row one interval of columns"


def _mask(node: Node, visible: Condition | None, added: Number | None, reader: Node) -> Mask | None:
    """Returns the mask that `node` computes, in which the columns are visible where the condition
    `visible` holds. Returns None if it is not known, or refers to `node` itself, or if a call
    writes into the mask, or into a tensor that the condition refers to, before `reader` reads it.
    """
    if visible is None:
        return None
    parts = resolved(visible)
    read = set(operands(parts))
    if node in read:
        return None
    calls = upstream(node, until=read)
    if storages.written_before_read(calls, {node, *read}, reader):
        return None
    return Mask(parts, added, frozenset(filter(_may_be_erased, calls)))


def _may_be_erased(node: Node) -> bool:
    """Returns whether a call only computes a tensor, so that it may be erased. A dropout, of which
    a mask may use only the shape, also changes the random numbers that later calls draw. What a
    call without a normal form does is not known."""
    call = call_of(node)
    is_pure = call is not None and call.kind != "dropout" and not written(node)
    return is_pure and isinstance(value(node), torch.Tensor)
