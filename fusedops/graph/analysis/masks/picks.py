"""Finds which elements of a tensor are picked by views of it, and by indexing it with integer
tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.masks.positions import Affine, Places, without_short_dims
from fusedops.graph.analysis.steps import call_of
from fusedops.graph.analysis.values import value
from fusedops.graph.analysis.views import DimMap, dim_map_of

#: A function that returns an argument as an affine number (`Affine`), or None if it is not one.
Reader = Callable[[Any], Affine | None]


@dataclass(frozen=True)
class Pick:
    """A tensor that consists of the elements of `source` at `places`. Each place is a function of
    the indices in that tensor."""

    source: Node
    places: Places


def pick_of(read: Reader, node: Node) -> Pick:
    """Returns the tensor from which views and indexing pick the elements of `node`, and the places
    of these elements in that tensor. If `node` is not known to be picked from another tensor, it
    counts as picked from itself."""
    call, sizes = call_of(node), value(node).shape
    move = _move(read, call) if call else None
    source, places = node, [Affine(steps={dim: 1}) for dim in range(-len(sizes), 0)]
    if call is not None and move is not None:
        picked = pick_of(read, call.arguments["input"])
        moved = [place for one in picked.places if (place := move(one)) is not None]
        if len(moved) == len(picked.places):
            source, places = picked.source, moved
    return Pick(source, tuple(without_short_dims(place, sizes) for place in places))


def _move(read: Reader, call: Call) -> Callable[[Affine], Affine | None] | None:
    """Returns a function that takes a number which depends on the indices in a call's input, and
    returns the same number in terms of the indices in the call's result. Returns None if the call
    is neither a view with a known dimension map nor an indexing by integer tensors."""
    dim_map = dim_map_of(call)
    if dim_map is not None:
        return lambda number: through_view(read, number, dim_map)
    indices = indices_of(read, call)
    return None if indices is None else lambda number: at(number, indices)


def indices_of(read: Reader, call: Call) -> Places | None:
    """Returns the indices in a call tensor[i, j, ...] with an affine integer for each dimension.
    Returns None for other calls, and if an index may be negative, since it then counts from the
    end."""
    if call.kind not in ("item", "index"):
        return None
    index, source = call.arguments.get("index"), value(call.arguments["input"])
    items = index if isinstance(index, (tuple, list)) else [index]
    if not isinstance(source, torch.Tensor) or len(items) != source.dim():
        return None
    places = [place for item in items if (place := read(item)) is not None]
    if len(places) != len(items):
        return None
    are_nonnegative = all(not place.tensors and (place + 1).is_positive for place in places)
    return tuple(places) if are_nonnegative else None


def at(number: Affine, indices: Sequence[Affine]) -> Affine:
    """Returns `number`, which depends on a tensor's indices, with `indices` in their place."""
    total = replace(number, steps={})
    for dim, step in number.steps.items():
        total = total + indices[dim] * step
    return total


def through_view(read: Reader, number: Affine, dim_map: DimMap) -> Affine | None:
    """Returns `number`, which depends on the indices in a tensor, in terms of the indices in a view
    of that tensor. Returns None if the number depends on the elements of tensors, or on a dimension
    that the view lacks or whose first index is not known."""
    places = {old: (dim, start) for dim, (old, start) in dim_map.items()}
    if number.tensors or not places.keys() >= number.steps.keys():
        return None
    moved = replace(number, steps={places[old][0]: step for old, step in number.steps.items()})
    for old, step in number.steps.items():
        start = read(places[old][1])
        if start is None:
            return None
        moved = moved + start * step
    return moved
