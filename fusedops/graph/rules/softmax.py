"""softmax and log_softmax, in any spelling, over any dim.

before    y = torch.softmax(x, dim, dtype=dtype)
after     y = torch.ops.fusedops.softmax(x, dim, dtype)
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fusedops.graph.availability import KERNEL_DTYPES
from fusedops.graph.dialect import Call, value
from fusedops.graph.rule import Match, New


class Softmax:
    name = "softmax"

    def match(self, call: Call) -> Match | None:
        if call.kind not in ("softmax", "log_softmax"):
            return None
        return Match(call, call.kind, {call.node: None})

    def guard(self, match: Match) -> str | None:
        arguments = match.call.arguments
        if not isinstance(arguments["dim"], int):
            return "dim is not a number known at compile time"
        given = value(arguments["input"]).dtype
        computed = arguments["dtype"] or given
        if computed not in KERNEL_DTYPES:
            return f"unsupported dtype {computed}"
        integer = not (given.is_floating_point or given.is_complex)
        return None if integer or given in KERNEL_DTYPES else f"unsupported dtype {given}"

    def emit(self, match: Match) -> Iterator[New]:
        op = getattr(torch.ops.fusedops, match.op).default
        arguments = match.call.arguments
        yield New(op, (arguments["input"], arguments["dim"], arguments["dtype"]))
        # Autocast runs softmax in float32 on some devices: say so, then the op does the same.
        yield New(op, (arguments["input"], arguments["dim"], value(match.call.node).dtype))
