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

from dataclasses import replace

import torch

from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.nodes import outputs
from fusedops.graph.analysis.steps import cast_chain, only_user
from fusedops.graph.analysis.values import dtype_of, value
from fusedops.graph.availability import kernels_take
from fusedops.graph.rule import Match, OpCall, Rule

aten = torch.ops.aten


class Norm(Rule):
    """Replaces a call of the kind `name`, which returns the norm alone, or of the kind
    `with_statistics`, which returns the norm and then the statistics, as the op does."""

    def __init__(self, name: str, with_statistics: str) -> None:
        self.name, self.with_statistics = name, with_statistics

    def match(self, call: Call) -> Match | None:
        if call.kind == self.name:
            return _with_casts(call) or Match(call, {call.node: 0}, (call.node,))
        if call.kind == self.with_statistics:
            return Match(call, outputs(call.node) or {}, (call.node,))
        return None

    def refusal(self, match: Match) -> str | None:
        if not match.results:
            return "its outputs are used as one tuple"
        if match.call.arguments["eps"] is None:
            return "eps is not a number known at compile time"
        return super().refusal(match)

    def emit(self, match: Match) -> OpCall:
        """Returns the op with the site's arguments, or with its tensors cast to the dtype of
        eager's result if the op would give another one, or takes no parameters of their dtype."""
        call, arguments = super().emit(match), match.call.arguments
        result = value(next(iter(match.results))).dtype
        tensors = [name for name in ("input", "weight", "bias") if arguments.get(name) is not None]
        takes = all(kernels_take(dtype_of(arguments[name])) for name in tensors)
        # A site with fused casts may have parameters wider than its result, to whose dtype these
        # casts would round them.
        if len(match.nodes) > 1 or (takes and dtype_of(match.call.input) == result):
            return call
        # On some devices autocast runs norms in float32. The casts give the op float32 operands
        # too.
        cast = {name: OpCall(aten.to.dtype, (arguments[name], result)) for name in tensors}
        return replace(call, args=tuple((arguments | cast).values()))


def _with_casts(call: Call) -> Match | None:
    """Returns the match of norm(x.float()).to(x.dtype), which the op computes from x. Returns None
    if one of the two casts is missing."""
    cast = None if call.refusal else only_user(call.node, "cast")
    casts, input = cast_chain(call.input)
    if cast is None or not casts or cast.arguments["dtype"] != value(input).dtype:
        return None
    site = replace(call, node=cast.node, arguments=call.arguments | {"input": input})
    nodes = (*reversed(casts), call.node, cast.node)
    return Match(site, {cast.node: 0}, nodes)
