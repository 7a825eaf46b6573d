"""layer_norm, with and without affine parameters, over any normalized_shape.

before    y = torch.layer_norm(x, normalized_shape, weight, bias, eps)
          y, mean, rstd = torch.native_layer_norm(x, normalized_shape, weight, bias, eps)
          y = torch.layer_norm(x.float(), normalized_shape, weight, bias, eps).to(x.dtype)
after     y, mean, rstd = torch.ops.fusedops.layer_norm(x, normalized_shape, weight, bias, eps)
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fusedops.graph.analysis.calls import Call
from fusedops.graph.readers.statistics import emit_norm, match_norm, refuse_norm
from fusedops.graph.rule import Match, OpCall, Rule


class LayerNorm(Rule):
    """A call of layer_norm, with or without its statistics as outputs."""

    def match(self, call: Call) -> Match | None:
        return match_norm(call, "native_layer_norm") if call.name == self.name else None

    def guard(self, match: Match) -> str | None:
        return refuse_norm(match)

    def emit(self, match: Match) -> Iterator[OpCall]:
        return emit_norm(match, torch.ops.fusedops.layer_norm.default)
