"""Interprets views of tensors, and tensors that are indexed by positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.fx import Node

from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.masks.choices import Choice
from fusedops.graph.analysis.masks.interpreter import Ascending, Interpreter, Known, Step, changed
from fusedops.graph.analysis.masks.picks import at, indices_of, viewed
from fusedops.graph.analysis.masks.positions import (
    Affine,
    Bound,
    Condition,
    Document,
    Truth,
    Within,
    operands,
)
from fusedops.graph.analysis.values import value
from fusedops.graph.analysis.views import Axes, axes_of


def _view(reader: Interpreter, call: Call) -> Known | None:
    known, axes = reader.read(call.arguments.get("input")), axes_of(call)
    if known is None or axes is None:
        return _gathered(reader, call) if call.kind in ("item", "index") else None
    if isinstance(known, (int, float)):
        return known
    if isinstance(known, Truth):
        return _truth_view(known, axes)
    if isinstance(known, Choice):
        return replace(known, truth=_truth_view(known.truth, axes))
    if isinstance(known, Ascending):
        dims = (dim for dim, (old, _) in axes.items() if old == known.dim)
        return next((replace(known, node=call.node, dim=dim) for dim in dims), None)
    return changed(known, lambda affine: viewed(reader.affine, affine, axes))


def _truth_view(truth: Truth, axes: Axes) -> Truth:
    parts = (truth.when_true, truth.when_false)
    return Truth(*(part if part is None or _stays(part, axes) else None for part in parts))


def _stays(condition: Condition, axes: Axes) -> bool:
    """Whether a view leaves the dimensions that a condition refers to in place."""
    parts = [part.otherwise if isinstance(part, Within) else part for part in condition]
    known = [part for part in parts if not isinstance(part, Document)]
    ranks = [2 if isinstance(part, Bound) and part.limit.steps else 1 for part in known]
    tensors = [value(node) for node in operands(known)]
    ranks += [tensor.dim() for tensor in tensors if isinstance(tensor, torch.Tensor)]
    return all(axes.get(dim) == (dim, 0) for dim in range(-max(ranks), 0))


def _gathered(reader: Interpreter, call: Call) -> Known | None:
    """A tensor indexed by positions, as in segments[batch, keys]."""
    known, places = reader.read(call.arguments["input"]), indices_of(reader.affine, call)
    if places is None:
        return None
    if isinstance(known, (int, float)):
        return known
    if isinstance(known, Affine):
        return None if known.tensors else at(known, places)
    return _ascending_at(known, places, call.node) if isinstance(known, Ascending) else None


def _ascending_at(known: Ascending, places: Sequence[Affine], node: Node) -> Ascending | None:
    """The elements of an ascending tensor at these places."""
    steps = places[known.dim].steps
    others = {dim for place in places if place is not places[known.dim] for dim in place.steps}
    dims = [dim for dim, step in steps.items() if step > 0 and dim not in others]
    ascends = len(dims) == len(steps) == 1
    return Ascending(node, dims[0], known.numbers) if ascends else None


#: The kinds of views and of indexing.
KINDS = ("same", "detach", "expand", "unsqueeze", "reshape", "slice", "item", "index")
STEPS: dict[str, Step] = dict.fromkeys(KINDS, _view)
