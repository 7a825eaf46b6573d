"""Recognises a softmax or log_softmax, with the casts and the `exp` that belong to it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from fusedops.graph.analysis import storages
from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.nodes import is_private, users
from fusedops.graph.analysis.selections import filled_number, fillings, holds_if_finite
from fusedops.graph.analysis.steps import (
    call_of,
    cast_chain,
    has_keepdim_shape,
    only_user,
    reduced_dims,
    upstream,
)
from fusedops.graph.analysis.values import value

SHARED = "something else uses an intermediate result"
ZEROES = (
    "gives zeros, not NaN, where a whole row is -inf; only masked_softmax does so, over the last "
    "dimension, and where hidden columns are -inf too"
)


@dataclass(frozen=True)
class Hidden:
    """Columns that a softmax hides by setting their exponentials to 0, not their scores to -inf.

    mask: a bool tensor.
    hides: whether `mask` is True for the hidden columns; otherwise it is True for the others.
    node: the call that sets the exponentials of hidden columns to 0.
    """

    mask: Node
    hides: bool
    node: Node


@dataclass(frozen=True)
class SoftmaxChain:
    """A softmax that was found in a graph.

    op: "softmax" or "log_softmax".
    dtype: the dtype of the computation, or None for that of `input`.
    nodes: the calls that compute it, including casts, in program order.
    sink: one more logit for each row, whose probability is dropped. The sink is a number, or a
        tensor whose last dimension has size 1.
    hidden: the columns whose probabilities are 0 because of a mask; None if there is none.
    zeroes_hidden_rows: whether a row of -inf alone becomes zeros, and not NaN.
    refusal: why no op computes this softmax, or None.
    """

    op: str
    input: Node
    dim: Any
    nodes: tuple[Node, ...]
    dtype: torch.dtype | None = None
    sink: Node | float | None = None
    hidden: Hidden | None = None
    zeroes_hidden_rows: bool = False
    refusal: str | None = None

    @property
    def needs_masks(self) -> bool:
        """Whether masked_softmax is the only op that computes this softmax."""
        return self.sink is not None or self.hidden is not None or self.zeroes_hidden_rows

    @property
    def last(self) -> Node:
        return self.nodes[-1]


def read_softmax(call: Call) -> SoftmaxChain | None:
    """Returns the softmax that `call` computes, with its casts, and with the `exp` of a
    log_softmax; None if `call` computes something else."""
    if call.kind not in ("softmax", "log_softmax", "safe_softmax"):
        return None
    chain = SoftmaxChain(
        call.kind.removeprefix("safe_"),
        call.input,
        call.arguments["dim"],
        (call.node,),
        call.arguments["dtype"],
        zeroes_hidden_rows=call.kind == "safe_softmax",
        refusal=call.refusal,
    )
    if call.refusal or not isinstance(value(call.node), torch.Tensor):
        return chain
    exp = only_user(call.node, "exp") if call.kind == "log_softmax" else None
    if exp is not None:
        chain = replace(chain, op="softmax", nodes=(call.node, exp.node))
    return with_casts(chain)


def with_zeroed_rows(chain: SoftmaxChain) -> SoftmaxChain:
    """Returns `chain`, a softmax over the last dimension, including the calls that make zeros of
    rows of -inf alone, if there are any. Export's decompositions have them for
    `aten._safe_softmax`: where(not any(not (x == -inf)), 0, softmax(x))."""
    readers = [user for user in users(chain.last) if storages.reads_memory(user, chain.last)]
    guard = call_of(readers[0], "where", "masked_fill") if len(readers) == 1 else None
    for input, fill, condition, fills in fillings(guard):
        is_zeroed = input is chain.last and fills and filled_number(fill) == 0
        if guard and is_zeroed and _is_infinite_row(condition, chain.input):
            nodes = (guard.node,)
            whole = decomposed(replace(chain, nodes=nodes, zeroes_hidden_rows=True))
            return chain if whole.refusal else whole
    return chain


def _is_infinite_row(condition: Any, input: Node) -> bool:
    """Returns whether a condition holds for the rows of `input` that are -inf alone."""
    negated, call = False, call_of(condition)
    while call is not None and call.kind == "not":
        negated, call = not negated, call_of(call.input)
    if call is None or call.kind not in ("any", "all"):
        return False
    is_any, tensor = call.kind == "any", value(input)
    columns = (tensor.dim() - 1,)
    of_rows = reduced_dims(call, tensor) == columns and has_keepdim_shape(call.node, input, columns)
    return of_rows and (negated, holds_if_finite(call.input, input)) == (is_any, is_any)


def decomposed(chain: SoftmaxChain) -> SoftmaxChain:
    """Returns a softmax that several calls compute, and of which `chain` has only the last one,
    with all of them, unless it is refused. It gets a refusal if something else uses the result of a
    call before the last."""
    if chain.refusal:
        return chain
    operands = (chain.input, chain.sink, chain.hidden.mask if chain.hidden else None)
    calls = upstream(chain.last, until={node for node in operands if isinstance(node, Node)})
    refusal = None if is_private(calls, chain.last) else SHARED
    return replace(chain, nodes=tuple(sorted(calls)), refusal=refusal)


def with_casts(chain: SoftmaxChain) -> SoftmaxChain:
    """Returns the softmax together with the casts before it that widen its input, and with the cast
    of its result back to the input's dtype. The cast of the result is not included if the model
    computes in float64 for another input dtype, or in a dtype of a smaller range than the input's,
    because the op would then give other values."""
    casts, input = cast_chain(chain.input)
    result = value(chain.last).dtype
    if casts:
        chain = replace(chain, input=input, dtype=result, nodes=(*reversed(casts), *chain.nodes))
    cast = only_user(chain.last, "cast")
    dtype = value(chain.input).dtype
    changes = (result == torch.float64 and dtype != result) or loses_range(dtype, result)
    if cast is not None and cast.arguments["dtype"] == dtype and not changes:
        chain = replace(chain, dtype=None, nodes=(*chain.nodes, cast.node))
    return chain


def loses_range(dtype: torch.dtype, converted: torch.dtype) -> bool:
    """Returns whether numbers that are finite in `dtype` may be infinite in `converted`."""
    return dtype.is_floating_point and torch.finfo(dtype).max > torch.finfo(converted).max
