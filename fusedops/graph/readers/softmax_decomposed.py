"""Recognises softmaxes and log_softmaxes that several calls compute: quotients of exponentials and
their sum, and x - logsumexp(x).

exp(x - m) / sum(exp(x - m))                  where m is the maximum of a row (`maximum_of`)
exp(x - m) / (sum(exp(x - m)) + exp(t - m))   where t is a sink: one more score of the row, whose
                                              probability is dropped, such as 0 in softmax1
e / sum(e), e = exp(x - m) * mask             where the mask hides columns
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.selections import filled_number, fillings, same_number, without_guard
from fusedops.graph.analysis.steps import (
    before,
    before_view_chain,
    broadcasts,
    call_of,
    difference,
    has_keepdim_shape,
    is_number,
    known_number,
    only_user,
    operand_of,
    output_of,
    read_once,
    reduced_dims,
    same_value,
    tensor_and_number,
)
from fusedops.graph.analysis.values import constant, value
from fusedops.graph.readers.softmax_chain import Hidden, SoftmaxChain, decomposed, with_casts

NO_MAXIMUM = "exp without the maximum subtracted overflows where softmax does not"
OTHER_MAXIMUM = "what is subtracted before exp is not known to be the maximum of its rows"
ADDED_TO_SUM = "what is added to the sum of the exponentials is not lost in its rounding"
SEVERAL_DIMS = "no op computes a softmax over several dimensions"
NOT_A_MASK = "its exponentials are multiplied by numbers that are not known to be 0 and 1"
OVERFLOWS = "in float16, the exponential of the sink overflows where the op does not"


@read_once
def read_softmax_decomposed(call: Call) -> SoftmaxChain | None:
    """Returns the softmax or log_softmax that `call` computes, together with an exp and a cast that
    may follow it; None if `call` computes something else."""
    if call.refusal or not isinstance(value(call.node), torch.Tensor):
        return None
    operands = difference(call.node)
    chain = _read_log_softmax(call, *operands) if operands else _read_quotient(call)
    exp = only_user(call.node, "exp") if operands and chain else None
    if chain and exp:
        chain = replace(chain, op="softmax", nodes=(*chain.nodes, exp.node))
    return with_casts(chain) if chain and not chain.refusal else chain


# --- exponentials and their sum -------------------------------------------------------------------


def _read_quotient(call: Call) -> SoftmaxChain | None:
    """Returns the softmax that `call` computes as a quotient, as a product with a reciprocal, or by
    F.normalize; None if it computes something else."""
    if call.kind == "normalize":
        return _read_normalize(call)
    for numerator, divisor in _quotients(call):
        divisor = before(divisor, "expand")
        total = _read_denominator(divisor)
        if total is None or not same_value(numerator, total.summed):
            continue
        if has_keepdim_shape(divisor, numerator, total.dims):
            return _softmax(call, total)
    return None


def _read_normalize(call: Call) -> SoftmaxChain | None:
    """Returns the softmax in F.normalize(exp(x - max), p=1, dim), or None. The softmax is refused
    if eps, the lower limit of the sum, is above 1. A lower eps has no effect, since the sum
    contains exp(max - max) = 1."""
    dim, eps = call.arguments["dim"], known_number(call.arguments["eps"])
    is_sum, rank = call.arguments["p"] == 1, value(call.input).dim()
    if not is_sum or not isinstance(dim, int) or not rank or eps is None:
        return None
    return _softmax(call, _with_limit(_Total(call.input, (dim % rank,)), eps, eps <= 1))


def _quotients(call: Call) -> Iterator[tuple[Any, Any]]:
    """Yields the numerator and divisor of a quotient, or each way to read a product as one."""
    if call.kind == "div":
        yield call.operands
    for numerator, factor in call.orders if call.kind == "mul" else ():
        inverse = _inverted(factor)
        if inverse is not None:
            yield numerator, inverse


def _inverted(node: Any) -> Any:
    """Returns s, if `node` is 1 / s, else None."""
    call = call_of(node, "reciprocal", "pow", "mul", "div")
    if call is None or call.kind == "reciprocal":
        return call.input if call else None
    if call.kind == "pow":
        return call.input if constant(call.arguments["exponent"]) == -1 else None
    if call.kind == "mul":  # export decomposes 1 / x into reciprocal(x) * 1
        factor, one = tensor_and_number(call)
        return _inverted(factor) if known_number(one) == 1 else None
    one, divisor = call.operands
    return divisor if one in (1, 1.0) else None


# --- the divisor ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Total:
    """A sum of exponentials, and what is added to it.

    sink_exponent: t - m, if a sink t adds the term exp(t - m) to the sum; else None.
    floor: a positive number that is added to the sum, or that is its lower limit; 0 if there is
        none. The sum alone is at least 1, since it contains exp(max - max).
    """

    summed: Node
    dims: tuple[int, ...]
    sink_exponent: Node | None = None
    floor: float = 0.0
    refusal: str | None = None


def _read_denominator(node: Any, steps: int = 4) -> _Total | None:
    """Returns the sum of exponentials that `node` is, or None. Fewer than `steps` additions and
    lower limits may follow the sum. A lower limit of at most 1 has no effect, because the sum
    contains exp(max - max) = 1."""
    call = call_of(before_view_chain(node), "sum", "norm", "add", "clamp", "maximum")
    if call is None or steps == 0:
        return None
    if call.kind in ("sum", "norm"):
        return _summed(call)
    if call.kind == "add":
        return _with_addend(call, steps - 1)
    tensor, limit = tensor_and_number(call)
    floor = known_number(call.arguments.get("min", limit))
    if floor is None or call.arguments.get("max") is not None:
        return None
    total = _read_denominator(tensor, steps - 1)
    return _with_limit(total, floor, floor <= 1) if total else None


def _summed(call: Call) -> _Total | None:
    """Returns the total that a sum computes, or a norm with p=1, which is a sum too for numbers
    that are positive. Returns None for others, such as a sum of integers, which are no
    exponentials."""
    summed = call.input
    if not value(summed).is_floating_point():
        return None
    dims = reduced_dims(call, value(summed))
    is_sum = call.kind == "sum" or constant(call.arguments["p"]) == 1
    return _Total(summed, dims) if dims and is_sum else None


def _with_addend(call: Call, steps: int) -> _Total | None:
    """Returns the total in sum + eps, or in sum + exp(t - m), where t is a sink; else None. The
    total is refused if eps is so large that adding it to a sum of 1 or more may change the rounded
    result."""
    first, other = tensor_and_number(call)
    if is_number(other):
        total = _read_denominator(first, steps)
        eps = known_number(other) if total else None
        if total is None or eps is None:
            return None
        rounding = torch.finfo(value(call.node).dtype).eps / 4
        return _with_limit(total, eps, 0 <= eps <= rounding)
    for summed, term in call.orders:
        exp = call_of(before_view_chain(term), "exp")
        total = _read_denominator(summed, steps) if exp else None
        if exp is not None and total is not None and total.sink_exponent is None:
            return replace(total, sink_exponent=exp.input)
    return None


def _with_limit(total: _Total, floor: float, has_no_effect: bool) -> _Total:
    """Returns `total` with the number `floor`, which is added to the sum or is its lower limit. The
    total is refused unless `floor` has no effect."""
    refusal = total.refusal or (None if has_no_effect else ADDED_TO_SUM)
    return replace(total, floor=max(total.floor, floor), refusal=refusal)


# --- the exponentials -----------------------------------------------------------------------------


def _softmax(call: Call, total: _Total) -> SoftmaxChain | None:
    """Returns the softmax whose exponentials `total` sums, or None if it sums other numbers."""
    exponential = _exponential(total.summed)
    if exponential is None:
        return None
    scores, hidden, refusal = exponential
    if len(total.dims) > 1:
        return SoftmaxChain("softmax", scores, total.dims[0], (call.node,), refusal=SEVERAL_DIMS)
    (dim,) = total.dims
    shift = _read_shift(scores, dim, total.sink_exponent, hidden)
    if hidden is not None and not shift.is_masked and total.floor > 0:
        refusal = ADDED_TO_SUM  # a mask may hide the maximum, so that the sum may be below 1
    if shift.sink is not None and value(call.node).dtype == torch.float16:
        refusal = OVERFLOWS
    chain = SoftmaxChain(
        "softmax",
        shift.input,
        dim,
        (call.node,),
        sink=shift.sink,
        hidden=hidden,
        zeroes_hidden_rows=total.floor > 0 and shift.sink is None and shift.gives_zeros,
        refusal=shift.refusal or total.refusal or refusal,
    )
    return decomposed(chain)


def _exponential(node: Any) -> tuple[Node, Hidden | None, str | None] | None:
    """Returns (s, mask, refusal) if `node` is exp(s), exp(s) with 0 in the columns that a mask
    hides, or exp(s) times a tensor; else None. `mask` is None if there is none. `refusal` says why
    no op computes the product, if the tensor is not a bool mask, and is None otherwise."""
    call = call_of(node, "exp", "mul", "where", "masked_fill")
    if call is None or call.kind == "exp":
        return (call.input, None, None) if call else None
    for operand, factor in call.orders if call.kind == "mul" else ():
        if (exp := call_of(operand, "exp")) is not None:
            return _masked(exp, factor, node)
    for operand, fill, condition, hides in fillings(call):
        exp = call_of(operand, "exp")
        if exp is not None and filled_number(fill) == 0 and isinstance(condition, Node):
            return exp.input, Hidden(condition, hides, node), None
    return None


def _masked(exp: Call, factor: Any, node: Node) -> tuple[Node, Hidden | None, str | None] | None:
    """Returns s, the mask and the refusal of exp(s) * factor, as `_exponential` does. The product
    is refused unless the factor is a bool mask, cast or not. Returns None if `factor` is a number.
    """
    scores = exp.input
    if not isinstance(value(factor), torch.Tensor) or is_number(factor):
        return None
    mask = before(factor, "cast")
    if value(mask).dtype != torch.bool:
        return scores, None, NOT_A_MASK
    return scores, Hidden(mask, hides=False, node=node), None


# --- the maximum ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shift:
    """The difference x - m, where m is the maximum of the row x, or of x and the sink.

    input: the tensor x.
    is_masked: whether m is the maximum of only those columns that the mask does not hide.
    gives_zeros: whether the exponentials of a row of -inf are 0, and not NaN.
    """

    input: Node
    refusal: str | None = None
    sink: Node | float | None = None
    is_masked: bool = False
    gives_zeros: bool = False


def _read_shift(
    node: Node, dim: int, sink_exponent: Node | None = None, hidden: Hidden | None = None
) -> _Shift:
    """Reads `node` as x minus the maximum of x over `dim`, and `sink_exponent` as a sink minus the
    same maximum. The maximum may leave out the columns that `hidden` hides. The result has a
    refusal if `node` or `sink_exponent` is something else."""
    operands = difference(node)
    if operands is None:
        return _Shift(node, NO_MAXIMUM)
    x, subtracted = operands
    if not isinstance(x, Node) or not isinstance(subtracted, Node):
        return _Shift(node, OTHER_MAXIMUM)
    sink = _sink(sink_exponent, subtracted, x, dim) if sink_exponent is not None else None
    if sink_exponent is not None and sink is None:
        return _Shift(x, ADDED_TO_SUM)
    row_maximum = subtracted if sink is None else _without_sink(subtracted, sink)
    maximum, is_guarded = maximum_of(row_maximum)
    maximised = before(maximum.input, "detach") if maximum else None
    is_masked = hidden is not None and _is_masked(maximised, x, hidden)
    if maximum is None or not (is_masked or same_value(maximised, x)):
        return _Shift(x, OTHER_MAXIMUM)
    kept = has_keepdim_shape(subtracted, x, (dim,))
    is_of_rows = reduced_dims(maximum, value(x)) == (dim,) and kept
    # In a row without a visible column, e = exp(x - max) is inf or NaN. where(mask, e, 0) replaces
    # that by 0, but e * mask does not.
    is_product = hidden is not None and call_of(hidden.node, "mul") is not None
    refusal = None if is_of_rows else OTHER_MAXIMUM
    gives_zeros = is_guarded or (is_masked and not is_product)
    return _Shift(x, refusal, sink, is_masked, gives_zeros)


def _is_masked(node: Any, x: Node, hidden: Hidden) -> bool:
    """Returns whether `node` is x with -inf in the hidden columns."""
    return any(
        (hides, filled_number(fill)) == (hidden.hides, -math.inf)
        and same_value(condition, hidden.mask)
        and same_value(operand, x)
        for operand, fill, condition, hides in fillings(call_of(node))
    )


def _sink(sink_exponent: Node, subtracted: Node, x: Node, dim: int) -> Node | float | None:
    """Returns t if `sink_exponent` is t - m, and 0 if it is -m, where m is `subtracted`. Returns
    None if it is neither, or if t is not one number for each row of x."""
    negated = operand_of(before_view_chain(sink_exponent), "neg")
    if _is_same(negated, subtracted):
        return 0.0
    logit, m = difference(before_view_chain(sink_exponent)) or (None, None)
    if not _is_same(m, subtracted):
        return None
    tensor = value(logit)
    if not isinstance(tensor, torch.Tensor):
        return known_number(logit)
    is_of_rows = tensor.dim() > 0 and statically_known_true(tensor.shape[-1] == 1)
    # Beside an m without the dimension of the columns, t [heads, 1] has a number for each head.
    is_aligned = statically_known_true(tensor.numel() == 1) or has_keepdim_shape(m, x, (dim,))
    return logit if is_of_rows and is_aligned and broadcasts(logit, x) else None


def _is_same(a: Any, b: Any) -> bool:
    """Returns whether two nodes have the same elements in the same order, in any shape."""
    return same_value(before_view_chain(a), before_view_chain(b))


def _without_sink(node: Node, sink: Node | float) -> Any:
    """Returns m, the maximum of the row alone, if `node` is the maximum of m and the sink; else
    `node`."""
    call = call_of(before(node, "detach"))
    if call is None:
        return node
    arguments = call.arguments
    if call.kind == "relu":
        return arguments["input"] if sink == 0 else node
    if call.kind == "clamp":
        is_limit = known_number(arguments.get("min")) == sink and arguments.get("max") is None
        return arguments["input"] if is_limit else node
    for m, limit in call.orders if call.kind == "maximum" else ():
        if same_number(limit, sink, value(node).dtype) or same_value(limit, sink):
            return m
    return node


def maximum_of(node: Any) -> tuple[Call | None, bool]:
    """Returns the call that computes a maximum, if `node` is its result: an amax, a max, or the
    values of a max with indices; else None. The maximum may be detached, because a softmax does not
    depend on what is subtracted. Another number may replace a maximum of -inf, because this changes
    only rows that are -inf everywhere. Also returns whether another number does."""
    is_guarded, last = False, None
    while node is not last:
        last = node
        node = before(before_view_chain(node), "detach")
        is_guarded |= without_guard(node) is not node
        node = without_guard(node)
    return output_of(node, 0, "max") or call_of(node, "amax", "max"), is_guarded


# --- x - logsumexp(x) -----------------------------------------------------------------------------


def _read_log_softmax(call: Call, x: Any, subtracted: Any) -> SoftmaxChain | None:
    """Returns the log_softmax that `call`, which is `x` - `subtracted`, computes, or None. Its
    forms are x - logsumexp(x), x - (m + log(sum(exp(x - m)))) with m = max(x), and x -
    log(sum(exp(x))), where `x` is itself a tensor minus its maximum."""
    if not isinstance(x, Node) or not isinstance(subtracted, Node):
        return None
    total = call_of(before_view_chain(subtracted), "logsumexp")
    if total is not None:
        dims = reduced_dims(total, value(x)) if same_value(total.input, x) else None
        if dims is None or not has_keepdim_shape(subtracted, x, dims):
            return None
        refusal = SEVERAL_DIMS if len(dims) > 1 else None
        return decomposed(SoftmaxChain("log_softmax", x, dims[0], (call.node,), refusal=refusal))
    log_sum = read_log_sum(subtracted)
    if log_sum is None or not same_value(log_sum.input, x):
        return None
    dim, refusal = log_sum.dim, log_sum.refusal
    chain = SoftmaxChain("log_softmax", log_sum.logits, dim, (call.node,), refusal=refusal)
    return decomposed(chain) if has_keepdim_shape(subtracted, x, (dim,)) else None


@dataclass(frozen=True)
class LogSum:
    """The logarithm of the sum of exponentials of `input` over `dim`, which several calls compute.

    logits: x, if `input` is x - max(x); else `input`.
    refusal: why it is not known to be what logsumexp computes, or None.
    """

    input: Node
    logits: Node
    dim: int
    refusal: str | None


def read_log_sum(node: Any) -> LogSum | None:
    """Returns what m + log(sum(exp(x - m))) with m = max(x), or log(sum(exp(y))) with y = x - m
    computes; None if `node` is something else."""
    node = before_view_chain(node)
    summands = call_of(node, "add")
    for logarithm, maximum in summands.orders if summands else ((node, None),):
        shifted, dim = _log_of_sum(logarithm) or (None, 0)
        # The exponents are x - m if m is added to the logarithm, and else y.
        input, subtracted = difference(shifted) or (None, None) if summands else (shifted, None)
        if shifted and input and (summands is None or _is_same(subtracted, maximum)):
            shift = _read_shift(shifted, dim)
            return LogSum(input, shift.input, dim, shift.refusal)
    return None


def _log_of_sum(node: Any) -> tuple[Node, int] | None:
    """Returns s and dim, if `node` is log(sum(exp(s), dim)), else None."""
    logged = operand_of(before_view_chain(node), "log")
    total = call_of(before_view_chain(logged), "sum")
    exp = call_of(total.input, "exp") if total else None
    dims = reduced_dims(total, value(exp.node)) if exp and total else None
    return (exp.input, dims[0]) if exp and dims and len(dims) == 1 else None
