"""Reads calls that select between a tensor and a number: lower limits, and guards against
infinities."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from fusedops.graph.analysis import storages
from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.steps import call_of, known_number
from fusedops.graph.analysis.values import rounded, value

#: Comparison -> whether its first operand is the larger one where it holds.
_FIRST_IS_LARGER = {"gt": True, "ge": True, "lt": False, "le": False}
#: Test -> whether it holds for finite numbers. For -inf it has the opposite result.
_HOLDS_IF_FINITE = {"isfinite": True, "isinf": False, "isneginf": False}
#: Comparison `x ? -inf` -> whether it holds for finite x. For x = -inf it has the opposite result.
_HOLDS_IF_FINITE_VS_NEG_INF = {"gt": True, "ne": True, "eq": False, "le": False}
#: Kind -> the number that fills its result.
_FILLS = {"zeros": 0.0, "ones": 1.0}


def filled_number(argument: Any) -> float | None:
    """Returns the number that an operand is, or that fills it if it is a tensor, rounded to its
    dtype. Returns None if the number is not known, or if a call writes into the tensor or a view of
    it."""
    call = call_of(argument, "full", *_FILLS)
    if call is None:
        return known_number(argument)
    if value(argument).is_complex() or storages.writers_of(argument):
        return None
    fill = known_number(_FILLS.get(call.kind, call.arguments.get("fill_value")))
    return None if fill is None else float(rounded(fill, value(argument).dtype))


def same_number(a: Any, b: Any, dtype: torch.dtype) -> bool:
    """Returns whether two operands are, or are filled with, a number that is the same in `dtype`.
    Without the rounding to `dtype` they would differ: the float32 tensor full_like(x, 1e-12) is
    filled with a number that is not quite Python's 1e-12."""
    first, other = filled_number(a), filled_number(b)
    if first is None or other is None:
        return False
    return rounded(first, dtype) == rounded(other, dtype)


def maximum_with_number(call: Call) -> tuple[Any, float] | None:
    """Returns x and eps, if the call is their maximum in one of the forms max(x, eps), where(x >
    eps, x, eps) and x.masked_fill(x < eps, eps); else None."""
    if call.kind == "max":
        other = call.arguments.get("other", call.arguments.get("dim"))
        limit = filled_number(other) if isinstance(value(other), torch.Tensor) else None
        return None if limit is None else (call.input, limit)
    for x, limit, condition, fills in fillings(call):
        comparison, eps = call_of(condition, *_FIRST_IS_LARGER), filled_number(limit)
        if comparison is None or eps is None:
            continue
        # The call is a maximum if it takes, where the comparison holds, the operand that is the
        # larger one there, and elsewhere the other operand.
        x_is_second = _FIRST_IS_LARGER[comparison.kind] is fills
        compared_x, compared_limit = comparison.orders[x_is_second]
        if x is compared_x:
            same = same_number(limit, compared_limit, value(call.node).dtype)
            return (x, eps) if same else None
    return None


def without_guard(node: Any) -> Any:
    """Returns x, if `node` is x with a finite number in place of -inf, else `node`. The call may be
    where, masked_fill, clamp or nan_to_num, the last of which also replaces NaN and inf."""
    call = call_of(node)
    if call is None or not isinstance(value(node), torch.Tensor):
        return node
    dtype = value(node).dtype
    if call.kind == "nan_to_num":
        # Without this argument the lowest number of the dtype is the fill.
        fill = call.arguments.get("neginf")
        return call.input if fill is None or _is_finite(fill, dtype) else node
    if call.kind == "clamp" and dtype.is_floating_point:
        least = known_number(call.arguments.get("min"))
        lowest = torch.finfo(dtype).min
        is_lowest = least is not None and -math.inf < least <= lowest
        is_guard = is_lowest and call.arguments.get("max") is None
        return call.input if is_guard else node
    for x, fill, condition, fills in fillings(call):
        if _is_finite(fill, dtype) and holds_if_finite(condition, x) is (not fills):
            return x
    return node


def _is_finite(fill: Any, dtype: torch.dtype) -> bool:
    """Returns whether an operand is, or is filled with, a number that is finite in `dtype`."""
    number = filled_number(fill)
    return number is not None and math.isfinite(rounded(number, dtype))


def holds_if_finite(condition: Any, x: Any) -> bool | None:
    """Returns True if a condition holds for finite x and not for -inf, False if it holds for -inf
    and not for finite x, else None."""
    call = call_of(condition)
    if call is None:
        return None
    if call.kind == "not":
        inner = holds_if_finite(call.input, x)
        return None if inner is None else not inner
    # Export writes isinf(x) as abs(x) == inf.
    size = call_of(call.input, "abs") if call.kind in ("eq", "ne") else None
    if (size.input if size else call.input) is not x:
        return None
    if call.kind in _HOLDS_IF_FINITE_VS_NEG_INF:
        infinity = math.inf if size else -math.inf
        is_infinity = filled_number(call.arguments["other"]) == infinity
        return _HOLDS_IF_FINITE_VS_NEG_INF[call.kind] if is_infinity else None
    return _HOLDS_IF_FINITE.get(call.kind)


def fillings(call: Call | None) -> Iterator[tuple[Any, Any, Any, bool]]:
    """Yields both ways to read a where or masked_fill as a tensor that is filled: the tensor, what
    fills it, the condition, and whether it is filled where the condition holds, or elsewhere."""
    if call is not None and (selected := selection(call)):
        condition, taken, other = selected
        yield taken, other, condition, False
        yield other, taken, condition, True


def selection(call: Call) -> tuple[Any, Any, Any] | None:
    """Returns the condition of a where or masked_fill, the operand taken where it holds, and the
    operand taken elsewhere; None for other calls."""
    arguments = call.arguments
    if call.kind == "where":
        return arguments.get("condition"), arguments.get("input"), arguments.get("other")
    if call.kind == "masked_fill":
        return arguments.get("mask"), arguments.get("value"), arguments.get("input")
    return None
