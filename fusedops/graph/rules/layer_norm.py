"""layer_norm, with and without affine parameters, over any normalized_shape.

before    y = torch.layer_norm(x, normalized_shape, weight, bias, eps)
          y, mean, rstd = torch.native_layer_norm(x, normalized_shape, weight, bias, eps)
after     y, mean, rstd = torch.ops.fusedops.layer_norm(x, normalized_shape, weight, bias, eps)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from fusedops.graph.availability import KERNEL_DTYPES
from fusedops.graph.dialect import Call, outputs, value
from fusedops.graph.rule import Match, New


class LayerNorm:
    name = "layer_norm"

    def match(self, call: Call) -> Match | None:
        if call.kind == "layer_norm":
            return Match(call, "layer_norm", {call.node: 0})
        if call.kind == "native_layer_norm":
            return Match(call, "layer_norm", outputs(call.node) or {})
        return None

    def guard(self, match: Match) -> str | None:
        arguments = match.call.arguments
        if not match.results:
            return "its three outputs are used as one tuple"
        if arguments["eps"] is None:
            return "eps is not a number known at compile time"
        dtype = value(arguments["input"]).dtype
        return None if dtype in KERNEL_DTYPES else f"unsupported dtype {dtype}"

    def emit(self, match: Match) -> Iterator[New]:
        op = torch.ops.fusedops.layer_norm.default
        arguments = match.call.arguments
        yield New(op, tuple(arguments.values()))
        # Autocast casts input and parameters to float32 on some devices: do the same in the open.
        wanted = value(next(iter(match.results))).dtype
        cast = {name: _cast(arguments[name], wanted) for name in ("input", "weight", "bias")}
        yield New(op, tuple((arguments | cast).values()))


def _cast(argument: Any, dtype: torch.dtype) -> New | None:
    return None if argument is None else New(torch.ops.aten.to.dtype, (argument, dtype))
