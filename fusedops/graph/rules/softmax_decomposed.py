"""Decomposed softmax and log_softmax, with the maximum subtracted.

before    e = torch.exp(x - x.amax(dim, keepdim=True))
          y = e / e.sum(dim, keepdim=True)
          y = torch.exp(x - torch.logsumexp(x, dim, keepdim=True))
after     y = torch.ops.fusedops.softmax(x, dim)

before    s = x - x.amax(dim, keepdim=True)
          y = s - torch.log(torch.exp(s).sum(dim, keepdim=True))
          y = x - torch.logsumexp(x, dim, keepdim=True)
after     y = torch.ops.fusedops.log_softmax(x, dim)

Without the subtraction of the maximum, exp overflows where the op does not, so that the results
differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from fusedops.graph.ir.dialect import Call, users, value
from fusedops.graph.ir.steps import (
    call_of,
    has_kept_shape,
    known_number,
    only_user,
    reduced_dim,
    same_value,
    tensor_and_number,
    upstream,
    without_views,
)
from fusedops.graph.rules.rule import Match, OpCall, Rule
from fusedops.graph.rules.softmax import (
    SoftmaxChain,
    emit_softmax,
    match_softmax,
    refuse_softmax,
    with_casts,
)

NO_MAXIMUM = "exp without the maximum subtracted overflows where softmax does not"
OTHER_MAXIMUM = "what is subtracted before exp is not known to be the maximum of its rows"
SHARED = "something else uses an intermediate result"
ADDED_TO_SUM = "what is added to the sum of the exponentials is not lost in its rounding"


@dataclass(frozen=True)
class _Decomposed:
    """A decomposed softmax or log_softmax of `input` over `dim`, whose last call is `last`."""

    op: str
    input: Node
    dim: int
    last: Node
    obstacle: str | None = None

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(sorted(upstream(self.last, until={self.input})))

    @property
    def is_shared(self) -> bool:
        own = set(self.nodes)
        return any(not own.issuperset(users(node)) for node in own - {self.last})


class SoftmaxDecomposed(Rule):
    """A decomposed softmax or log_softmax."""

    def match(self, call: Call) -> Match | None:
        found = _read(call)
        if found is None:
            return None
        obstacle = found.obstacle or (SHARED if found.is_shared else None)
        if obstacle is None:
            return match_softmax(_chain(found))
        site = Call(found.op, found.op, found.last, _arguments(found), obstacle)
        return Match(site, found.op, {found.last: None})

    def guard(self, match: Match) -> str | None:
        return refuse_softmax(match)

    def emit(self, match: Match) -> Iterator[OpCall]:
        return emit_softmax(match)


def _arguments(found: _Decomposed) -> dict[str, Any]:
    return {"input": found.input, "dim": found.dim, "dtype": None}


def read_softmax_decomposed(call: Call) -> SoftmaxChain | None:
    """The softmax or log_softmax whose last call, but for exp and casts, `call` is; or None."""
    found = _read(call)
    return None if found is None or found.obstacle or found.is_shared else _chain(found)


def _chain(found: _Decomposed) -> SoftmaxChain:
    return with_casts(SoftmaxChain(found.op, found.input, found.dim, None, found.nodes))


def _read(call: Call) -> _Decomposed | None:
    if call.obstacle or not isinstance(value(call.node), torch.Tensor):
        return None
    if call.kind == "sub":
        found = _read_logarithm(call)
        exp = only_user(call.node, "exp") if found else None
        return replace(found, op="softmax", last=exp.node) if found and exp else found
    return _read_quotient(call)


# --- exp(x - max) / sum ---------------------------------------------------------------------------


def _read_quotient(call: Call) -> _Decomposed | None:
    for exp, divisor in _quotients(call):
        total, obstacle = _sum(divisor)
        summed = total.arguments["input"] if total else None
        if total is None or call_of(exp, "exp") is None or not same_value(exp, summed):
            continue
        given = call_of(exp).arguments["input"]  # type: ignore[union-attr]
        dim = reduced_dim(total, value(given))
        if dim is not None and has_kept_shape(divisor, given, (dim,)):
            input, reason = _shifted(given, dim)
            return _Decomposed("softmax", input, dim, call.node, reason or obstacle)
    return None


def _quotients(call: Call) -> Iterator[tuple[Any, Any]]:
    """The numerator and the divisor of a quotient, or of a product with a reciprocal."""
    if call.kind not in ("mul", "div"):
        return
    first, other = call.arguments["input"], call.arguments["other"]
    if call.kind == "div":
        yield first, other
        return
    for numerator, factor in ((first, other), (other, first)):
        inverse = _inverted(factor)
        if inverse is not None:
            yield numerator, inverse


def _inverted(node: Any) -> Any:
    """s, if `node` is 1 / s."""
    inverse = call_of(node, "reciprocal")
    if inverse is not None:
        return inverse.arguments["input"]
    product = call_of(node, "mul")  # export decomposes 1 / x into reciprocal(x) * 1
    if product is not None:
        factor, one = tensor_and_number(product)
        return _inverted(factor) if known_number(one) == 1 else None
    quotient = call_of(node, "div")
    is_inverse = quotient is not None and quotient.arguments["input"] in (1, 1.0)
    return quotient.arguments["other"] if quotient and is_inverse else None


def _sum(divisor: Any) -> tuple[Call | None, str | None]:
    """The sum that a divisor is, also one with an eps that its rounding loses: it is at least 1,
    because the largest exponential is. And why it cannot be replaced."""
    node, obstacle = without_views(divisor), None
    call = call_of(node)
    if call is not None and call.kind in ("add", "clamp", "maximum"):
        node, eps = tensor_and_number(call)
        least = call.arguments.get("min", eps)
        known = known_number(least) if call.arguments.get("max") is None else None
        if known is None:
            return None, None
        rounding = torch.finfo(value(call.node).dtype).eps / 4
        lost = 0 <= known <= rounding if call.kind == "add" else known <= 1
        obstacle = None if lost else ADDED_TO_SUM
        node = without_views(call.arguments["input"] if call.kind == "clamp" else node)
    total = call_of(node, "sum")
    dtype = total.arguments.get("dtype") if total else None
    same = total is not None and dtype in (None, value(total.arguments["input"]).dtype)
    return (total if same else None), obstacle


def _shifted(node: Any, dim: int) -> tuple[Node, str | None]:
    """x where `node` is x - max(x), over `dim`; and the reason why it cannot be replaced."""
    shift = call_of(node, "sub")
    maximum = maximum_of(shift.arguments["other"]) if shift else None
    if shift is None:
        return node, NO_MAXIMUM
    x = shift.arguments["input"]
    if maximum is None or not same_value(_undetached(maximum.arguments["input"]), x):
        return node, OTHER_MAXIMUM
    kept = has_kept_shape(shift.arguments["other"], x, (dim,))
    is_of_rows = reduced_dim(maximum, value(x)) == dim and kept
    return x, None if is_of_rows else OTHER_MAXIMUM


def maximum_of(node: Any) -> Call | None:
    """The maximum that `node` is: an amax, a max, or the values of a max with indices, which may be
    detached, because a softmax does not depend on what is subtracted."""
    node = without_views(_undetached(without_views(node)))
    item = call_of(node, "item")
    if item is not None:
        return call_of(item.arguments["input"], "max") if item.arguments["index"] == 0 else None
    return call_of(node, "amax") or call_of(node, "max")


def _undetached(node: Any) -> Any:
    call = call_of(node, "detach")
    return call.arguments["input"] if call else node


# --- x - logsumexp(x) -----------------------------------------------------------------------------


def _read_logarithm(call: Call) -> _Decomposed | None:
    x, subtracted = call.arguments["input"], call.arguments["other"]
    if not isinstance(x, Node) or not isinstance(subtracted, Node):
        return None
    total = call_of(without_views(subtracted), "logsumexp")
    if total is not None:
        dim = reduced_dim(total, value(x)) if same_value(total.arguments["input"], x) else None
        kept = dim is not None and has_kept_shape(subtracted, x, (dim,))
        return _Decomposed("log_softmax", x, dim, call.node) if dim is not None and kept else None
    return _of_shifted(call, x, subtracted) or _with_maximum_added(call, x, subtracted)


def _log_of_sum(node: Any) -> tuple[Node, Call] | None:
    """s and the sum, if `node` is log(sum(exp(s)))."""
    log = call_of(without_views(node), "log")
    total = call_of(without_views(log.arguments["input"]), "sum") if log else None
    exp = call_of(total.arguments["input"], "exp") if total else None
    plain = total is not None and total.arguments.get("dtype") is None
    return (exp.arguments["input"], total) if exp and total and plain else None


def _of_shifted(call: Call, shifted: Node, subtracted: Node) -> _Decomposed | None:
    """s - log(sum(exp(s))), where s is x - max(x)."""
    found = _log_of_sum(subtracted)
    if found is None or not same_value(found[0], shifted):
        return None
    dim = reduced_dim(found[1], value(shifted))
    if dim is None or not has_kept_shape(subtracted, shifted, (dim,)):
        return None
    input, reason = _shifted(shifted, dim)
    return _Decomposed("log_softmax", input, dim, call.node, reason)


def _with_maximum_added(call: Call, x: Node, subtracted: Node) -> _Decomposed | None:
    """x - (m + log(sum(exp(x - m)))), where m is max(x)."""
    both = call_of(subtracted, "add")
    operands = (both.arguments["input"], both.arguments["other"]) if both else ()
    for logarithm, maximum in (operands, operands[::-1]) if operands else ():
        found = _log_of_sum(logarithm)
        shift = call_of(found[0], "sub") if found else None
        dim = reduced_dim(found[1], value(x)) if found else None
        if found is None or shift is None or dim is None:
            continue
        same = same_value(shift.arguments["input"], x)
        if same and same_value(shift.arguments["other"], maximum):
            input, reason = _shifted(found[0], dim)
            kept = has_kept_shape(subtracted, x, (dim,))
            return _Decomposed("log_softmax", input, dim, call.node, reason) if kept else None
    return None
