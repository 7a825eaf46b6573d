"""Interprets views of tensors, and tensors that are indexed by integer tensors.

Each function returns what is known of the tensor that a call computes (`Known`), or None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.masks.choices import TwoValued
from fusedops.graph.analysis.masks.interpreter import Ascending, Interpreter, Known, Step, changed
from fusedops.graph.analysis.masks.picks import at, indices_of, through_view
from fusedops.graph.analysis.masks.positions import (
    Affine,
    BoolTensor,
    Bound,
    Condition,
    Document,
    Within,
    operands,
)
from fusedops.graph.analysis.values import value
from fusedops.graph.analysis.views import DimMap, dim_map_of


def _view(reader: Interpreter, call: Call) -> Known | None:
    """Interprets a view, or the elements that a tensor has at integer indices (`_gathered`)."""
    operand, dim_map = reader.read(call.arguments.get("input")), dim_map_of(call)
    if operand is None or dim_map is None:
        return _gathered(reader, call) if call.kind in ("item", "index") else None
    if isinstance(operand, (int, float)):
        return operand
    if isinstance(operand, BoolTensor):
        return _bool_tensor_view(operand, dim_map, call)
    if isinstance(operand, TwoValued):
        return replace(operand, truth=_bool_tensor_view(operand.truth, dim_map, call))
    if isinstance(operand, Ascending):
        dims = (dim for dim, (old, _) in dim_map.items() if old == operand.dim)
        return next((replace(operand, node=call.node, dim=dim) for dim in dims), None)
    return changed(operand, lambda affine: through_view(reader.affine, affine, dim_map))


def _bool_tensor_view(truth: BoolTensor, dim_map: DimMap, call: Call) -> BoolTensor:
    """Returns a view of the bool tensor `truth`. One of its conditions is no longer known if the
    view moves or cuts a dimension that the condition refers to."""
    kept = {dim for dim in dim_map if dim_map[dim] == (dim, 0) and _keeps_size(call, dim)}
    return BoolTensor(*(_viewed(each, kept) for each in (truth.when_true, truth.when_false)))


def _keeps_size(call: Call, dim: int) -> bool:
    """Returns whether a dimension has the same size before and after a view, or has size 1 before
    it, so that no element depends on that index. A slice that keeps the first index is a change
    too: mask[:1] may be broadcast later where mask is not."""
    before, after = (value(node).shape[dim] for node in (call.arguments["input"], call.node))
    return statically_known_true(before == after) or statically_known_true(before == 1)


def _viewed(condition: Condition | None, kept: set[int]) -> Condition | None:
    """Returns the condition, or None if it refers to a dimension that is not in `kept`, the
    dimensions that the view leaves as they are."""
    if condition is None:
        return None
    parts = [part.fallback if isinstance(part, Within) else part for part in condition]
    bounds_and_leaves = [part for part in parts if not isinstance(part, Document)]
    ranks = [2 if isinstance(part, Bound) and part.limit.steps else 1 for part in bounds_and_leaves]
    tensors = [value(node) for node in operands(bounds_and_leaves)]
    ranks += [tensor.dim() for tensor in tensors if isinstance(tensor, torch.Tensor)]
    return condition if kept.issuperset(range(-max(ranks), 0)) else None


def _gathered(reader: Interpreter, call: Call) -> Known | None:
    """Interprets a tensor that is indexed by integer tensors, as in segments[batch, keys]."""
    source, places = reader.read(call.arguments["input"]), indices_of(reader.affine, call)
    if places is None:
        return None
    if isinstance(source, (int, float)):
        return source
    if isinstance(source, Affine):
        return None if source.tensors else at(source, places)
    return _ascending_at(source, places, call.node) if isinstance(source, Ascending) else None


def _ascending_at(ascending: Ascending, places: Sequence[Affine], node: Node) -> Ascending | None:
    """Returns `node`, which has the elements of `ascending` at `places`, as a tensor that ascends;
    None if it may not ascend."""
    steps = places[ascending.dim].steps
    others = {dim for place in places if place is not places[ascending.dim] for dim in place.steps}
    dims = [dim for dim, step in steps.items() if step > 0 and dim not in others]
    ascends = len(dims) == len(steps) == 1
    return Ascending(node, dims[0], ascending.numbers) if ascends else None


#: The kinds of calls that are views or indexing.
KINDS = ("same", "detach", "expand", "unsqueeze", "reshape", "slice", "item", "index")
STEPS: dict[str, Step] = dict.fromkeys(KINDS, _view)
