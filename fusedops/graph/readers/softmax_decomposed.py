"""Recognises softmaxes and log_softmaxes that several calls compute: quotients of exponentials, and
x - logsumexp(x)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.steps import (
    before_view_chain,
    call_of,
    difference,
    has_keepdim_shape,
    only_user,
    read_once,
    reduced_dims,
    same_value,
)
from fusedops.graph.analysis.values import value
from fusedops.graph.readers.exponentials import SEVERAL_DIMS, read_quotient, read_shift
from fusedops.graph.readers.softmax_chain import SoftmaxChain, decomposed, with_casts


def read_softmax_decomposed(call: Call) -> SoftmaxChain | None:
    """Returns the softmax or log_softmax that `call` computes, together with an exp and a cast that
    may follow it; None if `call` computes something else."""
    return read_once(call, "softmax", _read)


def _read(call: Call) -> SoftmaxChain | None:
    """Does the work of `read_softmax_decomposed`, which caches the result."""
    if call.refusal or not isinstance(value(call.node), torch.Tensor):
        return None
    operands = difference(call.node)
    chain = _read_log_softmax(call, *operands) if operands else read_quotient(call)
    exp = only_user(call.node, "exp") if operands and chain else None
    if chain and exp:
        chain = replace(chain, op="softmax", nodes=(*chain.nodes, exp.node))
    return with_casts(chain) if chain and not chain.refusal else chain


# --- x - logsumexp(x) -----------------------------------------------------------------------------


def _read_log_softmax(call: Call, x: Any, subtracted: Any) -> SoftmaxChain | None:
    """Returns the log_softmax that `call`, which is `x` - `subtracted`, computes, or None. Its
    forms are x - logsumexp(x), x - (m + log(sum(exp(x - m)))) with m = max(x), and x -
    log(sum(exp(x))), where `x` is itself a tensor minus its maximum."""
    if not isinstance(x, Node) or not isinstance(subtracted, Node):
        return None
    total = call_of(before_view_chain(subtracted), "logsumexp")
    if total is not None:
        dims = reduced_dims(total, value(x)) if same_value(total.arguments["input"], x) else None
        if dims is None or not has_keepdim_shape(subtracted, x, dims):
            return None
        refusal = SEVERAL_DIMS if len(dims) > 1 else None
        return decomposed("log_softmax", x, dims[0], call.node, refusal)
    return _of_shifted(call, x, subtracted) or _with_maximum_added(call, x, subtracted)


def _log_of_sum(node: Any) -> tuple[Node, int] | None:
    """Returns s and dim, if `node` is log(sum(exp(s), dim)), else None."""
    log = call_of(before_view_chain(node), "log")
    total = call_of(before_view_chain(log.arguments["input"]), "sum") if log else None
    exp = call_of(total.arguments["input"], "exp") if total else None
    dims = reduced_dims(total, value(exp.node)) if exp and total else None
    return (exp.arguments["input"], dims[0]) if exp and dims and len(dims) == 1 else None


def _of_shifted(call: Call, shifted: Node, subtracted: Node) -> SoftmaxChain | None:
    """Returns the log_softmax of x in s - log(sum(exp(s))), where s is x - max(x), or None."""
    log_of_sum = _log_of_sum(subtracted)
    if log_of_sum is None or not same_value(log_of_sum[0], shifted):
        return None
    return _log_softmax(call, *log_of_sum, subtracted)


def _with_maximum_added(call: Call, x: Node, subtracted: Node) -> SoftmaxChain | None:
    """Returns the log_softmax of x in x - (m + log(sum(exp(x - m)))), where m is max(x), or
    None."""
    both = call_of(subtracted, "add")
    operands = (both.arguments["input"], both.arguments["other"]) if both else ()
    for logarithm, maximum in (operands, operands[::-1]) if operands else ():
        log_of_sum = _log_of_sum(logarithm)
        shifted = difference(log_of_sum[0]) if log_of_sum else None
        if log_of_sum and shifted and same_value(shifted[0], x) and same_value(shifted[1], maximum):
            return _log_softmax(call, *log_of_sum, subtracted)
    return None


def _log_softmax(call: Call, shifted: Node, dim: int, subtracted: Node) -> SoftmaxChain | None:
    """Returns the log_softmax of x that `call` computes, where `shifted` is x - max(x). Returns
    None if `subtracted` does not have one number for each row."""
    shift = read_shift(shifted, dim)
    chain = decomposed("log_softmax", shift.input, dim, call.node, shift.refusal)
    return chain if has_keepdim_shape(subtracted, shifted, (dim,)) else None
