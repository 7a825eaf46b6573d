"""rms_norm, with and without weight, over any normalized_shape.

before    y = torch.rms_norm(x, normalized_shape, weight, eps)
          y, rstd = aten._fused_rms_norm(x, normalized_shape, weight, eps)
after     y, rstd = torch.ops.fusedops.rms_norm(x, normalized_shape, weight, eps)
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fusedops.graph.dialect import Call
from fusedops.graph.rule import Match, New
from fusedops.graph.rules.norms import emit_norm, match_norm, refuse_norm


class RmsNorm:
    name = "rms_norm"

    def match(self, call: Call) -> Match | None:
        return match_norm(call, "fused_rms_norm") if call.name == self.name else None

    def guard(self, match: Match) -> str | None:
        return refuse_norm(match)

    def emit(self, match: Match) -> Iterator[New]:
        return emit_norm(match, torch.ops.fusedops.rms_norm.default)
