"""Interprets views of tensors, and tensors that are indexed by integer tensors, and finds the
tensor from which these pick their elements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.masks.interpreter import Ascending, Interpreter, Known, Step, changed
from fusedops.graph.analysis.masks.positions import (
    Affine,
    Bound,
    Condition,
    Document,
    Places,
    TwoValued,
    Within,
    operands,
    without_short_dims,
)
from fusedops.graph.analysis.steps import call_of
from fusedops.graph.analysis.values import constant, value

# --- the dimensions of a view ---------------------------------------------------------------------

#: Maps each dimension of a view, counted from the end (-1 is the last), to the dimension of the
#: viewed tensor and the first index along it. Dimensions that the view adds are absent.
DimMap = dict[int, tuple[int, Any]]
#: The kinds of calls that are views, perhaps with other strides.
_VIEWS = ("same", "detach", "expand", "unsqueeze", "reshape", "slice", "item")


def dim_map_of(call: Call) -> DimMap | None:
    """Returns the dimension map of a view, or None for calls that may skip or reorder elements."""
    source = value(call.input)
    if call.kind not in _VIEWS or not isinstance(source, torch.Tensor):
        return None
    return _reshaped(call, source) if call.kind == "reshape" else _indexed(call, source)


def _reshaped(call: Call, source: torch.Tensor) -> DimMap | None:
    """Returns the dimension map of a view that only adds or removes dimensions of size 1; None for
    any other reshape."""
    result = value(call.node)
    old, new = _long_dims(source), _long_dims(result)
    if len(old) != len(new):
        return None
    pairs = list(zip(new, old, strict=True))
    if not all(statically_known_true(result.shape[m] == source.shape[n]) for m, n in pairs):
        return None
    both_have = range(-min(source.dim(), result.dim()), 0)
    short = {d: (d, 0) for d in both_have if d not in new and d not in old}
    return short | {m: (n, 0) for m, n in pairs}


def _long_dims(tensor: torch.Tensor) -> list[int]:
    """Returns the dimensions whose size is not known to be 1."""
    dims = range(-tensor.dim(), 0)
    return [dim for dim in dims if not statically_known_true(tensor.shape[dim] == 1)]


def _indexed(call: Call, source: torch.Tensor) -> DimMap | None:
    """Returns the dimension map of a view that is source[index] (`_index_of`). Returns None if an
    item of the index is neither a slice nor None nor an ellipsis, or if the first index of a slice
    (`_start`) is not known."""
    items = _index_of(call, source.dim())
    if items is None or not all(each in (None, ...) or isinstance(each, slice) for each in items):
        return None
    missing = source.dim() - sum(isinstance(item, slice) for item in items)
    place = items.index(...) if ... in items else len(items)
    items[place : place + 1] = [slice(None)] * missing
    starts = [_start(item) for item in items if item is not None]
    if None in starts:
        return None
    dims = [at - len(items) for at, item in enumerate(items) if item is not None]
    places = zip(dims, range(-len(dims), 0), starts, strict=True)
    return {dim: (old, start) for dim, old, start in places}


def _index_of(call: Call, rank: int) -> list[Any] | None:
    """Returns the items of the index by which a view reads a tensor of this rank, or None if its
    dimension is not known. The end of a slice is left out, since it moves no element."""
    arguments = call.arguments
    if call.kind == "item":
        index = arguments["index"]
        return list(index) if isinstance(index, (tuple, list)) else [index]
    if call.kind not in ("unsqueeze", "slice"):
        return []
    dim = constant(arguments.get("dim", 0))
    if not isinstance(dim, int):
        return None
    if call.kind == "unsqueeze":
        return [slice(None)] * (dim % (rank + 1)) + [None]
    part = slice(arguments.get("start"), None, arguments.get("step"))
    return [slice(None)] * (dim % rank) + [part]


def _start(part: slice) -> Any:
    """Returns the first index of a slice. Returns None if the slice has a step other than 1, or if
    that index may be negative, since it then counts from the end."""
    if part.step not in (None, 1):
        return None
    start = 0 if part.start is None else part.start
    recorded = value(start)
    counted = isinstance(recorded, (int, torch.SymInt)) and statically_known_true(recorded >= 0)
    return start if counted and isinstance(start, (int, Node)) else None


# --- where a call reads its input -----------------------------------------------------------------


@dataclass(frozen=True)
class Pick:
    """A tensor that consists of the elements of `source` at `places`. Each place is a function of
    the indices in that tensor."""

    source: Node
    places: Places


def pick_of(reader: Interpreter, node: Node) -> Pick:
    """Returns the tensor from which views and indexing pick the elements of `node`, and the places
    of these elements in that tensor. If `node` is not known to be picked from another tensor, it
    counts as picked from itself."""
    call, sizes = call_of(node), value(node).shape
    places = _places_of(reader, call) if call else None
    source, picked_at = node, [Affine(steps={dim: 1}) for dim in range(-len(sizes), 0)]
    if call is not None and places is not None:
        picked = pick_of(reader, call.input)
        found = [place for one in picked.places if (place := _at(one, places)) is not None]
        if len(found) == len(picked.places):
            source, picked_at = picked.source, found
    return Pick(source, tuple(without_short_dims(place, sizes) for place in picked_at))


def _places_of(reader: Interpreter, call: Call) -> Mapping[int, Affine] | None:
    """Returns the index along each dimension of its input at which a view, or an indexing by
    integer tensors, reads this input, in terms of the indices in the call's result. Dimensions that
    a view lacks, or whose first index is not known, are left out. Returns None for other calls."""
    dim_map = dim_map_of(call)
    if dim_map is None:
        return _indices_of(reader, call) if call.kind in ("item", "index") else None
    return {
        old: first + Affine(steps={dim: 1})
        for dim, (old, start) in dim_map.items()
        if (first := reader.affine(start)) is not None
    }


def _indices_of(reader: Interpreter, call: Call) -> Mapping[int, Affine] | None:
    """Returns the indices in tensor[i, j, ...] with an affine integer for each dimension. Returns
    None for other indices, and if one may be negative, since it then counts from the end."""
    index, source = call.arguments.get("index"), value(call.input)
    items = index if isinstance(index, (tuple, list)) else [index]
    if not isinstance(source, torch.Tensor) or len(items) != source.dim():
        return None
    places = [place for item in items if (place := reader.affine(item)) is not None]
    are_nonnegative = all(not place.tensors and (place + 1).is_positive for place in places)
    if len(places) != len(items) or not are_nonnegative:
        return None
    return dict(zip(range(-len(places), 0), places, strict=True))


def _at(number: Affine, places: Mapping[int, Affine]) -> Affine | None:
    """Returns `number`, which depends on the indices in a tensor, in terms of the indices in the
    result of a call that reads the tensor at `places`. Returns None if the number depends on the
    elements of tensors, or on a dimension that is not in `places`."""
    if number.tensors or not places.keys() >= number.steps.keys():
        return None
    total = replace(number, steps={})
    for dim, step in number.steps.items():
        total = total + places[dim] * step
    return total


# --- what is known of the result ------------------------------------------------------------------


def _view(reader: Interpreter, call: Call) -> Known | None:
    """Interprets a view, or the elements that a tensor has at integer indices, as in
    segments[batch, keys]."""
    operand, places = reader.read(call.input), _places_of(reader, call)
    if places is None:
        return None
    if isinstance(operand, (int, float)):
        return operand
    if isinstance(operand, Ascending):
        return _ascending_at(operand, places, call.node)
    if isinstance(operand, Affine):
        return _at(operand, places)
    dim_map = dim_map_of(call)
    if operand is None or dim_map is None:
        return None
    if isinstance(operand, TwoValued):
        kept = {dim for dim in dim_map if dim_map[dim] == (dim, 0) and _keeps_size(call, dim)}
        return TwoValued({each: _viewed(found, kept) for each, found in operand.conditions.items()})
    return changed(operand, lambda affine: _at(affine, places))


def _keeps_size(call: Call, dim: int) -> bool:
    """Returns whether a dimension has the same size before and after a view, or has size 1 before
    it, so that no element depends on that index. A slice that keeps the first index is a change
    too: mask[:1] may be broadcast later where mask is not."""
    before, after = (value(node).shape[dim] for node in (call.input, call.node))
    return statically_known_true(before == after) or statically_known_true(before == 1)


def _viewed(condition: Condition | None, kept: set[int]) -> Condition | None:
    """Returns the condition of a view's elements. It is no longer known if it refers to a dimension
    that the view moves or cuts, and that is therefore not in `kept`."""
    if condition is None:
        return None
    parts = [part.fallback if isinstance(part, Within) else part for part in condition]
    bounds_and_leaves = [part for part in parts if not isinstance(part, Document)]
    ranks = [2 if isinstance(part, Bound) and part.limit.steps else 1 for part in bounds_and_leaves]
    tensors = [value(node) for node in operands(bounds_and_leaves)]
    ranks += [tensor.dim() for tensor in tensors if isinstance(tensor, torch.Tensor)]
    return condition if kept.issuperset(range(-max(ranks), 0)) else None


def _ascending_at(
    ascending: Ascending, places: Mapping[int, Affine], node: Node
) -> Ascending | None:
    """Returns `node`, which has the elements of `ascending` at `places`, as a tensor that ascends;
    None if it may not ascend."""
    steps = places[ascending.dim].steps if ascending.dim in places else {}
    others = {d for dim, place in places.items() if dim != ascending.dim for d in place.steps}
    dims = [dim for dim, step in steps.items() if step > 0 and dim not in others]
    ascends = len(dims) == len(steps) == 1
    return Ascending(node, dims[0], ascending.numbers) if ascends else None


STEPS: dict[str, Step] = dict.fromkeys((*_VIEWS, "index"), _view)
