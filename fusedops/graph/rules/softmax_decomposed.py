"""Decomposed softmax, with the maximum subtracted.

before    e = torch.exp(x - x.amax(dim, keepdim=True))
          y = e / e.sum(dim, keepdim=True)
after     y = torch.ops.fusedops.softmax(x, dim)

Without the subtraction of the maximum, exp overflows where the op does not, so that the results
differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from fusedops.graph.ir.dialect import Call, constant, users, value
from fusedops.graph.ir.steps import call_of, same_value, upstream
from fusedops.graph.rules.rule import Match, OpCall, Rule
from fusedops.graph.rules.softmax import (
    SoftmaxChain,
    emit_softmax,
    match_softmax,
    refuse_softmax,
    with_casts,
)

NO_MAXIMUM = "exp without the maximum subtracted overflows where softmax does not"


class SoftmaxDecomposed(Rule):
    """A decomposed softmax."""

    def match(self, call: Call) -> Match | None:
        chain = read_softmax_decomposed(call)
        if chain is not None:
            return match_softmax(chain)
        return _unstable(call)

    def guard(self, match: Match) -> str | None:
        return refuse_softmax(match)

    def emit(self, match: Match) -> Iterator[OpCall]:
        return emit_softmax(match)


def read_softmax_decomposed(call: Call) -> SoftmaxChain | None:
    """The softmax whose division `call` is, or None."""
    quotient = _exp_and_sum(call)
    if quotient is None:
        return None
    exp, total = quotient
    shifted = call_of(exp.arguments["input"], "sub")
    maximum = _maximum(shifted.arguments["other"]) if shifted else None
    if shifted is None or maximum is None:
        return None
    x = shifted.arguments["input"]
    if not same_value(maximum.arguments["input"], x):
        return None
    dim = _dim(maximum, x)
    if dim is None or dim != _dim(total, x):
        return None
    nodes = upstream(call.node, until={x})
    if any(not nodes.issuperset(users(node)) for node in nodes - {call.node}):
        return None
    return with_casts(SoftmaxChain("softmax", x, dim, None, tuple(sorted(nodes))))


def _unstable(call: Call) -> Match | None:
    """exp(x) / exp(x).sum(dim, keepdim=True), a site that is reported but not replaced."""
    quotient = _exp_and_sum(call)
    if quotient is None or call_of(quotient[0].arguments["input"], "sub") is not None:
        return None
    x = quotient[0].arguments["input"]
    dim = _dim(quotient[1], x)
    if dim is None:
        return None
    site = Call("softmax", "softmax", call.node, {"input": x, "dim": dim}, NO_MAXIMUM)
    return Match(site, "softmax", {call.node: None})


def _exp_and_sum(call: Call) -> tuple[Call, Call] | None:
    """The exp and the sum in exp / sum(exp)."""
    if call.kind != "div" or call.obstacle:
        return None
    exp, total = call_of(call.arguments["input"], "exp"), call_of(call.arguments["other"], "sum")
    if exp is None or total is None or total.arguments.get("dtype") is not None:
        return None
    return (exp, total) if same_value(exp.node, total.arguments["input"]) else None


def _maximum(node: Any) -> Call | None:
    """The maximum that `node` is: an amax, a max, or the values of a max with indices."""
    item = call_of(node, "item")
    if item is not None:
        return call_of(item.arguments["input"], "max") if item.arguments["index"] == 0 else None
    return call_of(node, "amax") or call_of(node, "max")


def _dim(reduction: Call, reduced: Any) -> int | None:
    """The dimension of a reduction with keepdim=True; for a vector its only dimension."""
    tensor, given = value(reduced), reduction.arguments.get("dim")
    if not isinstance(tensor, torch.Tensor) or tensor.dim() == 0:
        return None
    if isinstance(given, (list, tuple)) and len(given) == 1:
        given = given[0]
    if tensor.dim() == 1 and given in (None, [], ()):
        return 0
    dim = constant(given) if reduction.arguments.get("keepdim") is True else None
    return dim % tensor.dim() if isinstance(dim, int) else None
