"""Recognises what several calls compute from rows: means, squares, and deviations from the mean."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch.fx import Node

from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.steps import (
    before,
    before_view_chain,
    call_of,
    difference,
    has_keepdim_shape,
    has_shape,
    known_count,
    known_number,
    reduced_dims,
    same_shape,
    same_value,
    tensor_and_number,
)
from fusedops.graph.analysis.values import value


def centred(node: Any) -> tuple[Node, tuple[int, ...]] | None:
    """Returns x and dims, if `node` is x - mean(x, dims), else None."""
    operands = difference(node)
    if operands is None:
        return None
    matching = (mean for mean in _row_means(operands[1]) if same_value(operands[0], mean[0]))
    return next(matching, None)


def is_square_of_mean(node: Any, input: Node) -> bool:
    """Returns whether `node` is mean(input, dims) ** 2."""
    square = call_of(node)
    base = base_of_square(square) if square else None
    return any(same_value(mean[0], input) for mean in _row_means(base))


def _row_means(node: Any) -> Iterator[tuple[Node, tuple[int, ...]]]:
    """Yields each x and dims for which `node` is mean(x, dims). The node has to broadcast to x, or
    to be an expansion to the shape of x."""
    kept = before(node, "expand")
    for mean in means(before_view_chain(kept)):
        for input, dims in (mean, before_views(*mean)):
            if has_keepdim_shape(kept, input, dims) and (kept is node or same_shape(node, input)):
                yield input, dims


def means(node: Any) -> Iterator[tuple[Node, tuple[int, ...]]]:
    """Yields x and dims, if `node` is mean(x, dims). If x is itself a mean of a tensor z, also
    yields z and the dimensions of z over which the two means are taken."""
    call = _mean(node)
    input: Any = call.arguments["input"] if call else None
    dims = reduced_dims(call, value(input)) if call else None
    if not dims:
        return
    yield input, dims
    for source, inner in means(input):
        shape = value(source).shape
        left = [dim for dim in range(len(shape)) if dim not in inner]
        if has_keepdim_shape(input, source, inner):
            left = list(range(len(shape)))
        elif not has_shape(input, [shape[dim] for dim in left]):
            # A view between the means has changed the dimensions.
            continue
        yield source, tuple(sorted({*inner, *(left[dim] for dim in dims)}))


def before_views(input: Node, dims: tuple[int, ...]) -> tuple[Node, tuple[int, ...]]:
    """Returns the tensor before the order-keeping views that end in `input`, and the dimensions of
    that tensor whose elements are those along `dims` of `input`. For x.view(n, -1) and dimension 1,
    these are all dimensions of x but the first. Returns `input` and `dims` themselves if `dims` are
    not the last dimensions, or if a size is not known."""
    source = before_view_chain(input)
    shape, sizes = value(input).shape, value(source).shape
    row = known_count(value(input), dims)
    if source is input or row is None or dims != tuple(range(len(shape) - len(dims), len(shape))):
        return input, dims
    for first in reversed(range(len(sizes))):
        last = tuple(range(first, len(sizes)))
        if known_count(value(source), last) == row:
            return source, last
    return input, dims


def _mean(node: Any) -> Call | None:
    """Returns the call whose input and dimensions are those of the mean `node`: the call of mean
    itself, of var_mean if `node` is var_mean(x)[1], or of sum if `node` is sum(x) / N."""
    return call_of(node, "mean") or _mean_beside_variance(node) or _sum_over_size(node)


def _mean_beside_variance(node: Any) -> Call | None:
    """Returns the var_mean or std_mean whose mean is `node`."""
    item = call_of(node, "item")
    pair = call_of(item.arguments["input"]) if item and item.arguments["index"] == 1 else None
    return pair if pair is not None and pair.kind in ("var_mean", "std_mean") else None


def _sum_over_size(node: Any) -> Call | None:
    """Returns the sum in sum(x, dims) / N or sum(x, dims) * (1 / N), if a row has N elements."""
    call = call_of(node)
    if call is None or call.kind not in ("div", "mul"):
        return None
    summed, factor = tensor_and_number(call)
    total = call_of(before_view_chain(summed), "sum")
    dims = reduced_dims(total, value(total.arguments["input"])) if total else None
    if total is None or dims is None:
        return None
    count = known_count(value(total.arguments["input"]), dims)
    number = known_number(factor)
    if count is None or not number:
        return None
    columns = number if call.kind == "div" else 1 / number
    return total if math.isclose(columns, count) else None


def base_of_square(call: Call) -> Node | None:
    """Returns the tensor that a call squares, by square, by pow with exponent 2, or by a product
    with itself; None for other calls. If that tensor is abs(x), the result is x, which has the same
    square."""
    base = call.arguments.get("input")
    is_square = (
        call.kind == "square"
        or (call.kind == "pow" and call.arguments["exponent"] in (2, 2.0))
        or (call.kind == "mul" and same_value(base, call.arguments["other"]))
    )
    return before(base, "abs") if is_square else None
