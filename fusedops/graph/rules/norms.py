"""What the rules of layer_norm and rms_norm share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from fusedops.graph.availability import KERNEL_DTYPES
from fusedops.graph.dialect import Call, outputs, value
from fusedops.graph.rule import Match, New


def match_norm(call: Call, with_statistics: str) -> Match | None:
    """The site of `call.name`, whose op has the output first; calls of the kind `with_statistics`
    have all outputs of the op."""
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


def refuse_norm_by_hand(match: Match) -> str | None:
    """The same of a norm that is written out."""
    arguments = match.call.arguments
    if None in arguments["normalized_shape"]:
        return "the length of its rows is not known at compile time"
    dtype = value(arguments["input"]).dtype
    return None if dtype in KERNEL_DTYPES else f"unsupported dtype {dtype}"


def emit_norm(match: Match, op: torch._ops.OpOverload) -> Iterator[New]:
    """`op` with the site's arguments; or with tensors cast to the dtype that eager gives."""
    arguments = match.call.arguments
    yield New(op, tuple(arguments.values()))
    # Autocast casts input and parameters to float32 on some devices: do the same in the open.
    wanted = value(next(iter(match.results))).dtype
    tensors = [name for name in ("input", "weight", "bias") if name in arguments]
    cast = {name: _cast(arguments[name], wanted) for name in tensors}
    yield New(op, tuple((arguments | cast).values()))


def _cast(argument: Any, dtype: torch.dtype) -> New | None:
    return None if argument is None else New(torch.ops.aten.to.dtype, (argument, dtype))
