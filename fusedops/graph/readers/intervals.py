"""Turns bounds, which limit the columns of the scores that each row sees, into arguments of
masked_softmax: a diagonal, or a tensor with the first or last column of each row."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fusedops.graph.analysis.masks.positions import ROWS, Affine, Bound, Search, is_symbol
from fusedops.graph.analysis.values import value
from fusedops.graph.rule import OpCall

aten = torch.ops.aten
Scalar = int | Node | OpCall


def _rows_and_columns(scores: Node) -> tuple[Any, Any]:
    """Returns the last two sizes of the scores; a vector is one row."""
    rows, columns = (1, *value(scores).shape)[-2:]
    return rows, columns


def every_row_sees(bounds: Sequence[Bound], scores: Node) -> bool:
    """Returns whether each row of the scores is known to see at least one column."""
    rows, columns = _rows_and_columns(scores)
    for column in (bound.known_column for bound in bounds if bound.known_column is not None):
        is_before_end = statically_known_true(_in_last_row(column, rows) < columns)
        exists = statically_known_true(column.offset >= 0) and is_before_end
        if exists and all(_includes(bound, column, rows) for bound in bounds):
            return True
    starts = [bound.limit for bound in bounds if bound.is_start]
    ends = [bound.limit for bound in bounds if not bound.is_start]
    if not all(limit.is_index for limit in (*starts, *ends)):
        return False
    # A limit is constant or rises by 1 per row, so that the first or the last row decides.
    before_last = all(statically_known_true(_in_last_row(n, rows) < columns) for n in starts)
    positive = all(statically_known_true(end.offset > 0) for end in ends)
    ordered = all(_is_below(start, end, rows) for start in starts for end in ends)
    return before_last and positive and ordered and statically_known_true(columns > 0)


def _in_last_row(limit: Affine, rows: Any) -> Any:
    return limit.offset + limit.steps.get(ROWS, 0) * (rows - 1)


def _includes(bound: Bound, column: Affine, rows: Any) -> bool:
    """Returns whether `column` is known to be visible under a bound, in all rows."""
    if bound.known_column == column or not bound.limit.is_index:
        return bound.known_column == column
    # A column is visible under a start if start <= column, and under an end if column + 1 <= end.
    first, last = (bound.limit, column) if bound.is_start else (column + 1, bound.limit)
    return _is_below(first, last + 1, rows)


def _is_below(start: Affine, end: Affine, rows: Any) -> bool:
    """Returns whether start < end is known to hold in all rows. The difference is linear in the
    row's index, so that the first and the last row decide."""
    width = end - start
    ends = (width.offset, _in_last_row(width, rows))
    return all(statically_known_true(each > 0) for each in ends)


def arguments(bounds: Sequence[Bound], scores: Node) -> dict[str, Any]:
    """Returns the arguments of masked_softmax that make each row see only the columns within these
    bounds, by name."""
    needed = [bound for bound in bounds if not _is_implied(bound, scores)]
    diagonals = [bound for bound in needed if _is_diagonal(bound, scores)]
    starts = [bound.limit for bound in diagonals if bound.is_start]
    ends = [bound.limit - 1 for bound in diagonals if not bound.is_start]
    others = [bound for bound in needed if bound not in diagonals]
    return {
        "causal": bool(ends),
        "diagonal": _extreme(ends, least=True) if ends else 0,
        "lower_diagonal": _extreme(starts, least=False) if starts else None,
        "start": _joined(aten.maximum.default, [b for b in others if b.is_start], scores),
        "end": _joined(aten.minimum.default, [b for b in others if not b.is_start], scores),
    }


def _joined(
    join: Callable[..., Any], bounds: Sequence[Bound], scores: Node
) -> Node | OpCall | None:
    """Returns a tensor of each row's greatest start or least end, which `join` computes from two
    bounds; None if there are no bounds."""
    limits = [_tensor(bound.limit, scores) for bound in bounds]
    return functools.reduce(lambda a, b: OpCall(join, (a, b)), limits) if limits else None


def _is_implied(bound: Bound, scores: Node) -> bool:
    """Returns whether a bound is known to hide no column of any row, so that it is not needed."""
    if not bound.limit.is_index:
        return False
    rows, columns = _rows_and_columns(scores)
    if not bound.is_start:
        return statically_known_true(bound.limit.offset >= columns)
    return statically_known_true(_in_last_row(bound.limit, rows) <= 0)


def _is_diagonal(bound: Bound, scores: Node) -> bool:
    """Returns whether a row sees the columns before a diagonal, or those from a diagonal on, so
    that a number describes the bound. In scores of one row, every limit that depends on no tensor
    is a diagonal."""
    if value(scores).dim() < 2 or not bound.limit.is_index:
        return False
    return ROWS in bound.limit.steps or statically_known_true(value(scores).shape[ROWS] == 1)


def _extreme(limits: Sequence[Affine], least: bool) -> Scalar:
    """Returns the least or the greatest of the limits, in the first row. If their order is not
    known at compile time, the result is a call that the graph computes."""
    is_better = operator.le if least else operator.ge
    best, offset = _scalar(limits[0]), limits[0].offset
    for limit in limits[1:]:
        if statically_known_true(is_better(offset, limit.offset)):
            continue
        if statically_known_true(is_better(limit.offset, offset)):
            best, offset = _scalar(limit), limit.offset
        else:
            choose: Callable[..., Any] = torch.sym_min if least else torch.sym_max
            best, offset = OpCall(choose, (best, _scalar(limit))), choose(offset, limit.offset)
    return best


def _scalar(limit: Affine) -> Scalar:
    """Returns the part of a limit that is a number or a symbol: its value in the first row, without
    the terms that are tensors."""
    total: Scalar = limit.constant
    for symbol, times in limit.terms.items():
        if isinstance(symbol, Search) or not is_symbol(symbol):
            continue
        product = symbol if times == 1 else OpCall(operator.mul, (symbol, times))
        total = product if total == 0 else OpCall(operator.add, (product, total))
    return total


#: The terms of limits, which are elements of tensors times a number, are clamped to +-2^61, so that
#: a sum of up to three fits an int64. Models mark rows without a limit by the largest int, to which
#: 1 cannot be added.
_FARTHEST = 2**61


def _tensor(limit: Affine, scores: Node) -> Node | OpCall:
    """Returns a limit as a tensor with one number for each row: the tensor has no dimension for the
    columns."""
    offset = _scalar(limit)
    is_number_alone = offset == 0 and list(limit.terms.values()) == [1]
    total: Node | OpCall | None = None
    for term in limit.tensors:
        times = limit.terms[term]
        number = _searched(term) if isinstance(term, Search) else _without_columns(term)
        if not (is_number_alone or isinstance(term, Search)):
            most = _FARTHEST // max(1, abs(times))
            if value(term).dtype != torch.int64:
                number = OpCall(aten.to.dtype, (number, torch.int64))
            number = OpCall(aten.clamp.default, (number, -most, most))
        product = number if times == 1 else OpCall(aten.mul.Tensor, (number, times))
        total = product if total is None else OpCall(aten.add.Tensor, (total, product))
    if total is None:
        kwargs = {"dtype": torch.int64, "device": value(scores).device}
        return OpCall(aten.scalar_tensor.default, (offset,), kwargs)
    return total if offset == 0 else OpCall(aten.add.Tensor, (total, offset))


def _without_columns(rows: Node) -> Node | OpCall:
    """Returns the tensor `rows`, which has one number for each row, without its last dimension,
    which has size 1."""
    return OpCall(aten.squeeze.dim, (rows, -1)) if value(rows).dim() else rows


def _searched(search: Search) -> OpCall:
    """Returns the call of searchsorted that finds the limit of each row among the keys."""
    rows = OpCall(aten.transpose.int, (search.rows, -1, -2))
    # searchsorted itself would also copy operands that are not contiguous, but it would warn.
    operands = (OpCall(aten.contiguous.default, (one,)) for one in (search.keys, rows))
    positions = OpCall(aten.searchsorted.Tensor, tuple(operands), {"right": search.right})
    return OpCall(aten.squeeze.dim, (positions, -2))
