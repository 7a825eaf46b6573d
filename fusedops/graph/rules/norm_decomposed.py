"""What the rules for decomposed norms have in common."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import torch

from fusedops.graph.analysis.calls import Call
from fusedops.graph.readers.norm_chain import arguments_of, continued, input_of, read_norm
from fusedops.graph.readers.statistics import UNKNOWN_ROW, refuse_norm_decomposed
from fusedops.graph.rule import Match, OpCall, Rule, op_of


class NormDecomposed(Rule):
    """A norm written as several calls, for which one of `ops` is the op."""

    ops: ClassVar[tuple[str, ...]]

    def match(self, call: Call) -> Match | None:
        norm = read_norm(call)
        if norm is None or norm.op not in self.ops:
            return None
        # The longest chain whose result has the dtype of the input, cast or not.
        ends = [(longer, input_of(longer)) for longer in continued(norm)]
        norm, input = next(((n, i) for n, i in reversed(ends) if i), (norm, None))
        obstacle = norm.obstacle
        if input is None:
            obstacle = obstacle or "no op supports its combination of dtypes"
        if norm.has_factors and None in norm.over.known_row:
            obstacle = obstacle or UNKNOWN_ROW
        if norm.is_shared:
            obstacle = obstacle or "something else uses an intermediate result"
        arguments = arguments_of(norm, input or norm.input)
        site = Call(norm.op, norm.op, norm.last, arguments, obstacle)
        order = norm.over.order(norm.kind)
        return Match(site, norm.op, {norm.last: 0}, norm.nodes, order=order)

    def guard(self, match: Match) -> str | None:
        return refuse_norm_decomposed(match)

    def emit(self, match: Match) -> Iterator[OpCall]:
        call = op_of(match)
        if match.order is None:
            yield call
        else:
            permuted = OpCall(torch.ops.aten.permute.default, (call.args[0], list(match.order)))
            yield replace(call, args=(permuted, *call.args[1:]))
