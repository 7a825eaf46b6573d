"""Replaces a norm over channels and two permutations, one that makes the channels the last
dimension and one that moves them back.

before    y = torch.layer_norm(x.permute(0, 2, 3, 1), (channels,), weight, bias, eps)
          y = y.permute(0, 3, 1, 2).contiguous()
after     y, mean, rstd = torch.ops.fusedops.spatial_layer_norm(x, 1, weight, bias, eps)

The norm can be any that another rule finds. If the model does not make the result contiguous, its
channels stay side by side in memory. The other rule's op can then run on the permuted image without
a copy, so that this rule does not match.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.fx.experimental.symbolic_shapes import statically_known_true

from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.steps import before, call_of, only_user, permutation
from fusedops.graph.analysis.values import value
from fusedops.graph.rule import Match, Rule, ordered_arguments


class PermutedNorm(Rule):
    """Replaces a norm that another rule finds, together with the permutations before and after
    it."""

    def __init__(self, norm: Rule) -> None:
        self.norm, self.name = norm, f"permuted_{norm.name}"

    def match(self, call: Call) -> Match | None:
        norm = self.norm.match(call)
        if norm is None or not _is_spatial(norm) or self.norm.refusal(norm):
            return None
        (result,) = norm.results
        input = norm.call.input
        permuted = call_of(before(input, "same"))
        restored = only_user(result)
        if permuted is None or restored is None:
            return None
        order, back = permutation(permuted.node), permutation(restored.node)
        if order is None or back is None or not _moves_channels(order, back):
            return None
        copy = only_user(restored.node, "same")
        last = copy.node if copy else restored.node
        # The channels are side by side in memory, so that the other rule's op needs no copy.
        if statically_known_true(value(last).stride(order[-1]) == 1):
            return None
        op = f"spatial_{norm.op}"
        given = norm.call.arguments | {"input": permuted.input, "dim": order[-1]}
        arguments = ordered_arguments(op, given)
        nodes = {permuted.node, input, *norm.nodes, result, restored.node, last}
        return Match(Call(op, op, last, arguments), {last: 0}, tuple(sorted(nodes)))


def _is_spatial(norm: Match) -> bool:
    """Returns whether the norm is over a single dimension, and a `spatial_` op computes it too."""
    arguments: Mapping[str, Any] = norm.call.arguments
    has_variant = arguments.get("weight_offset") or arguments.get("rounds_normalized")
    is_plain = not norm.call.refusal and not has_variant
    is_shared = norm.op in ("layer_norm", "rms_norm") and is_plain
    row = arguments.get("normalized_shape")
    one_dim = isinstance(row, (list, tuple)) and len(row) == 1
    return is_shared and one_dim and list(norm.results.values()) == [0]


def _moves_channels(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Returns whether the permutation `before` makes another dimension the last, and `after` is its
    inverse."""
    rank = len(before)
    return before[-1] != rank - 1 and [before[dim] for dim in after] == list(range(rank))
