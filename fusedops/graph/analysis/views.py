"""Reads which dimensions of a tensor a view has, and at which index it begins along each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.values import constant, value

#: Maps each dimension of a view, counted from the end (-1 is the last), to the dimension of the
#: viewed tensor and the first index along it. Dimensions that the view adds are absent.
DimMap = dict[int, tuple[int, Any]]


def dim_map_of(call: Call) -> DimMap | None:
    """Returns the dimension map of a view, or None for calls that may skip or reorder elements."""
    find = _DIM_MAPS.get(call.kind)
    source = value(call.arguments.get("input"))
    return find(call, source) if find and isinstance(source, torch.Tensor) else None


def _unchanged(call: Call, source: torch.Tensor) -> DimMap:
    return {dim: (dim, 0) for dim in range(-source.dim(), 0)}


def _unsqueezed(call: Call, source: torch.Tensor) -> DimMap | None:
    dim, rank = constant(call.arguments["dim"]), source.dim() + 1
    if not isinstance(dim, int):
        return None
    return _in_order([d for d in range(rank) if d != dim % rank], rank)


def _in_order(places: Sequence[int], rank: int) -> DimMap:
    """Returns the dimension map of a view with `rank` dimensions. The dimensions at `places` are
    those of the viewed tensor, in the same order and with the same indices. The view adds the
    others."""
    count = len(places)
    return {place - rank: (old - count, 0) for old, place in enumerate(places)}


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


def _sliced(call: Call, source: torch.Tensor) -> DimMap | None:
    """Returns the dimension map of aten.slice; None if its dimension or its first index (`_start`)
    is not known. The end of a slice does not matter, since it moves no element."""
    arguments = call.arguments
    rank, start = source.dim(), _start(slice(arguments.get("start"), None, arguments.get("step")))
    dim = constant(arguments.get("dim", 0))
    if start is None or not isinstance(dim, int):
        return None
    place = dim % rank - rank
    return _unchanged(call, source) | {place: (place, start)}


def _indexed(call: Call, source: torch.Tensor) -> DimMap | None:
    """Returns the dimension map of tensor[index]. Returns None if an item of the index is neither a
    slice nor None nor an ellipsis, or if the first index of a slice (`_start`) is not known."""
    index = call.arguments["index"]
    items = list(index) if isinstance(index, (tuple, list)) else [index]
    if not all(item is None or item is ... or isinstance(item, slice) for item in items):
        return None
    missing = source.dim() - sum(isinstance(item, slice) for item in items)
    place = items.index(...) if ... in items else len(items)
    items[place : place + 1] = [slice(None)] * missing
    starts = [_start(item) for item in items if item is not None]
    if None in starts:
        return None
    places = [at for at, item in enumerate(items) if item is not None]
    dim_map = _in_order(places, len(items))
    return {dim: (old, starts[old]) for dim, (old, _) in dim_map.items()}


def _start(part: slice) -> Any:
    """Returns the first index of a slice. Returns None if the slice has a step other than 1, or if
    that index may be negative, since it then counts from the end."""
    if part.step not in (None, 1):
        return None
    start = 0 if part.start is None else part.start
    recorded = value(start)
    counted = isinstance(recorded, (int, torch.SymInt)) and statically_known_true(recorded >= 0)
    return start if counted and isinstance(start, (int, Node)) else None


_DIM_MAPS = {
    **dict.fromkeys(("same", "detach", "expand"), _unchanged),
    "unsqueeze": _unsqueezed,
    "reshape": _reshaped,
    "slice": _sliced,
    "item": _indexed,
}
