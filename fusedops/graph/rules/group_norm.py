"""Replaces a group_norm that has one group by layer_norm over whole images, which has the same
results.

before    y = torch.group_norm(x, 1, weight, bias, eps)
after     y, mean, rstd = torch.ops.fusedops.layer_norm(
              x, x.shape[1:], weight[:, None, None].expand(x.shape[1:]), bias..., eps)

The expanded weight and bias are as large as an image. The policy counts their bytes when it decides
whether the replacement pays.
"""

from __future__ import annotations

from typing import Any

import torch

from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.values import known_size, value
from fusedops.graph.rule import Match, OpCall, Rule

GROUPS = "normalises groups of channels, which no op does for more than one group"
aten = torch.ops.aten


class GroupNorm(Rule):
    """Replaces a call of group_norm that has one group."""

    name = "group_norm"

    def match(self, call: Call) -> Match | None:
        if call.kind != "group_norm" or not isinstance(value(call.node), torch.Tensor):
            return None
        original = call.arguments
        row = [known_size(size) for size in value(call.node).shape[1:]]
        arguments = {
            "input": original["input"],
            "normalized_shape": row,
            "weight": _expanded(original["weight"], row),
            "bias": _expanded(original["bias"], row),
            "eps": original["eps"],
        }
        refusal = call.refusal or (None if original["num_groups"] == 1 else GROUPS)
        site = Call("layer_norm", "layer_norm", call.node, arguments, refusal)
        return Match(site, {call.node: 0}, (call.node,))


def _expanded(parameter: Any, row: list[int | None]) -> OpCall | None:
    """Returns the call that expands a parameter, which has one element for each channel, to the
    shape of a row. Returns None if there is no parameter."""
    if parameter is None:
        return None
    of_channels = OpCall(aten.reshape.default, (parameter, [-1] + [1] * (len(row) - 1)))
    return OpCall(aten.expand.default, (of_channels, row))
