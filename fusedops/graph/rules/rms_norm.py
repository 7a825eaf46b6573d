"""rms_norm, with and without weight, over any normalized_shape.

before    y = torch.rms_norm(x, normalized_shape, weight, eps)
          y, rstd = aten._fused_rms_norm(x, normalized_shape, weight, eps)
after     y, rstd = torch.ops.fusedops.rms_norm(x, normalized_shape, weight, eps)
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fusedops.graph.analysis.calls import Call
from fusedops.graph.readers.statistics import emit_norm, match_norm, refuse_norm
from fusedops.graph.rule import Match, OpCall, Rule


class RmsNorm(Rule):
    """A call of rms_norm, with or without its statistic as an output."""

    def match(self, call: Call) -> Match | None:
        return match_norm(call, "fused_rms_norm") if call.name == self.name else None

    def guard(self, match: Match) -> str | None:
        return refuse_norm(match)

    def emit(self, match: Match) -> Iterator[OpCall]:
        return emit_norm(match, torch.ops.fusedops.rms_norm.default)
