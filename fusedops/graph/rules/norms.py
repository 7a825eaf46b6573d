"""Helpers shared by the rules for layer_norm and rms_norm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

from fusedops.graph.availability import KERNEL_DTYPES
from fusedops.graph.ir.dialect import Call, outputs, value
from fusedops.graph.ir.steps import call_of, last_dims, same_value
from fusedops.graph.rules.rule import Match, OpCall


def match_norm(call: Call, with_statistics: str) -> Match | None:
    """The site of a norm call. The op's first output is the norm; calls of the kind
    `with_statistics` have all of its outputs."""
    if call.kind == call.name:
        return Match(call, call.name, {call.node: 0})
    if call.kind == with_statistics:
        return Match(call, call.name, outputs(call.node) or {})
    return None


def refuse_norm(match: Match) -> str | None:
    """Why a norm must not be replaced, or None."""
    arguments = match.call.arguments
    if not match.results:
        return "its outputs are used as one tuple"
    if arguments["eps"] is None:
        return "eps is not a number known at compile time"
    dtype = value(arguments["input"]).dtype
    return None if dtype in KERNEL_DTYPES else f"unsupported dtype {dtype}"


def refuse_norm_decomposed(match: Match) -> str | None:
    """Why a decomposed norm must not be replaced, or None."""
    arguments = match.call.arguments
    if None in arguments["normalized_shape"]:
        return "the length of its rows is not known at compile time"
    dtype = value(arguments["input"]).dtype
    return None if dtype in KERNEL_DTYPES else f"unsupported dtype {dtype}"


def emit_norm(match: Match, op: torch._ops.OpOverload) -> Iterator[OpCall]:
    """The op with the site's arguments; then with tensors cast to the dtype of eager's result."""
    arguments = match.call.arguments
    yield OpCall(op, tuple(arguments.values()))
    # On some devices autocast casts input and parameters to float32; these casts are explicit.
    result = value(next(iter(match.results))).dtype
    tensors = [name for name in ("input", "weight", "bias") if name in arguments]
    cast = {name: _cast(arguments[name], result) for name in tensors}
    yield OpCall(op, tuple((arguments | cast).values()))


def _cast(argument: Any, dtype: torch.dtype) -> OpCall | None:
    return None if argument is None else OpCall(torch.ops.aten.to.dtype, (argument, dtype))


# --- statistics computed by several calls of a graph ----------------------------------------------


def centred(node: Any) -> tuple[Node, tuple[int, ...]] | None:
    """x and dims, if `node` is x - mean(x, dims)."""
    shifted = call_of(node, "sub")
    mean = _mean(shifted.arguments["other"]) if shifted else None
    if shifted is None or mean is None:
        return None
    input = mean.arguments["input"]
    if not same_value(shifted.arguments["input"], input):
        return None
    dims = last_dims(mean, value(input))
    return (input, dims) if dims else None


def _mean(node: Any) -> Call | None:
    return call_of(node, "mean") or item_of_var_mean(node, 1)


def item_of_var_mean(node: Any, index: int) -> Call | None:
    """The var_mean whose result of that index is `node`, or None."""
    item = call_of(node, "item")
    if item is None or item.arguments["index"] != index:
        return None
    return call_of(item.arguments["input"], "var_mean")


def base_of_square(call: Call) -> Node | None:
    """The tensor that a call squares: by square, by pow with exponent 2, or by a product with
    itself. None if it does not."""
    base = call.arguments.get("input")
    is_square = (
        call.kind == "square"
        or (call.kind == "pow" and call.arguments["exponent"] in (2, 2.0))
        or (call.kind == "mul" and same_value(base, call.arguments["other"]))
    )
    return base if is_square else None
