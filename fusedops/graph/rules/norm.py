"""Replaces layer_norm and rms_norm, with and without weight and bias, over any normalized_shape.

before    y = torch.layer_norm(x, normalized_shape, weight, bias, eps)
          y, mean, rstd = torch.native_layer_norm(x, normalized_shape, weight, bias, eps)
          y = torch.layer_norm(x.float(), normalized_shape, weight, bias, eps).to(x.dtype)
after     y, mean, rstd = torch.ops.fusedops.layer_norm(x, normalized_shape, weight, bias, eps)

before    y = torch.rms_norm(x, normalized_shape, weight, eps)
          y, rstd = aten._fused_rms_norm(x, normalized_shape, weight, eps)
after     y, rstd = torch.ops.fusedops.rms_norm(x, normalized_shape, weight, eps)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.nodes import outputs
from fusedops.graph.analysis.steps import cast_chain, only_user
from fusedops.graph.analysis.values import value
from fusedops.graph.availability import KERNEL_DTYPES
from fusedops.graph.readers.norm_chain import UNKNOWN_ROW
from fusedops.graph.rule import Match, OpCall, Rule, op_of


class Norm(Rule):
    """Replaces a call of the kind `name`, which returns the norm alone, or of the kind
    `with_statistics`, which returns the norm and then the statistics, as the op does."""

    def __init__(self, name: str, with_statistics: str) -> None:
        self.name, self.with_statistics = name, with_statistics

    def match(self, call: Call) -> Match | None:
        if call.kind == self.name:
            return _with_casts(call) or Match(call, call.name, {call.node: 0})
        if call.kind == self.with_statistics:
            return Match(call, call.name, outputs(call.node) or {})
        return None

    def refusal(self, match: Match) -> str | None:
        if not match.results:
            return "its outputs are used as one tuple"
        if match.call.arguments["eps"] is None:
            return "eps is not a number known at compile time"
        return unsupported_dtype(match)

    def emit(self, match: Match) -> Iterator[OpCall]:
        """Yields the op with the site's arguments, then with its tensors cast to eager's dtype."""
        op, arguments = op_of(match).op, match.call.arguments
        yield op_of(match)
        # A site with fused casts may have parameters wider than its result, which the second call
        # would round to the dtype of the result.
        if match.fused_nodes:
            return
        # On some devices autocast runs norms in float32. The casts give the op float32 operands
        # too.
        result = value(next(iter(match.results))).dtype
        tensors = [name for name in ("input", "weight", "bias") if name in arguments]
        cast = {name: _cast(arguments[name], result) for name in tensors}
        yield OpCall(op, tuple((arguments | cast).values()))


def unsupported_dtype(match: Match) -> str | None:
    """Returns why no kernel takes the dtype of a norm's input, or None if one does."""
    dtype = value(match.call.input).dtype
    return None if dtype in KERNEL_DTYPES else f"unsupported dtype {dtype}"


def unsupported_row(match: Match) -> str | None:
    """Returns why no op takes the rows of a norm, or None: either their length is not known at
    compile time, or no kernel takes their dtype."""
    is_unknown = None in match.call.arguments.get("normalized_shape", ())
    return UNKNOWN_ROW if is_unknown else unsupported_dtype(match)


def _with_casts(call: Call) -> Match | None:
    """Returns the match of norm(x.float()).to(x.dtype), which the op computes from x. Returns None
    if one of the two casts is missing."""
    cast = None if call.refusal else only_user(call.node, "cast")
    casts, input = cast_chain(call.input)
    if cast is None or not casts or cast.arguments["dtype"] != value(input).dtype:
        return None
    site = replace(call, node=cast.node, arguments=call.arguments | {"input": input})
    nodes = (*reversed(casts), call.node, cast.node)
    return Match(site, call.name, {cast.node: 0}, nodes)


def _cast(argument: Any, dtype: torch.dtype) -> OpCall | None:
    return None if argument is None else OpCall(torch.ops.aten.to.dtype, (argument, dtype))
