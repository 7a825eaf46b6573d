"""Interprets comparisons of the positions of rows and columns as the columns that each row sees.

In a mask of attention a row is a query and a column is a key; positions are integer tensors.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.masks.interpreter import (
    Ascending,
    Interpreter,
    Known,
    Magnitude,
    Quotient,
    Step,
)
from fusedops.graph.analysis.masks.positions import (
    COLUMNS,
    ROWS,
    Affine,
    Bound,
    Document,
    Leaf,
    Search,
    Selectable,
    TwoValued,
    Within,
    at_most_zero,
    column_of_zero,
    elementwise,
    is_selectable,
)
from fusedops.graph.analysis.masks.views import Pick, pick_of
from fusedops.graph.analysis.steps import upstream
from fusedops.graph.analysis.storages import written_before_read
from fusedops.graph.analysis.values import are_equal, rounded, value

_RELATIONS = {name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}


def _comparison(reader: Interpreter, call: Call) -> Known | None:
    """Returns what is known of a comparison's result, or None. Numbers, and tensors whose elements
    take at most two different values, are compared value by value. A comparison of positions gives
    bounds on the columns that a row sees. Positions whose order is not known in general may have a
    known order within one document of a packed sequence (`_ordered_in_document`)."""
    a, b = map(reader.read, call.operands)
    if is_selectable(a) and is_selectable(b):
        first, other = map(value, call.operands)
        a, b = _as_compared(a, first, other), _as_compared(b, other, first)
        return elementwise(_RELATIONS[call.kind], a, b)
    # Each order is x <= y or the opposite: a < b is not b <= a, and a > b is not a <= b.
    operands, negated = call.orders[call.kind in ("ge", "lt")], call.kind in ("lt", "gt", "ne")
    x, y = map(reader.position, operands)
    if call.kind in ("eq", "ne"):
        truth = _equal(reader, x, y)
        if isinstance(truth, TwoValued):
            truth = _with_known_column(truth, *map(reader.read, call.operands))
    else:
        truth = _at_most(x, y)
        if truth is None:
            truth = _ordered_in_document(reader, operands, negated, call.node)
    return elementwise(operator.not_, truth) if negated else truth


def _as_compared(operand: Selectable, argument: Any, other: Any) -> Selectable:
    """Returns an operand as torch compares it. torch rounds a number to the dtype of the
    floating-point tensor `other`, so that an element 0.9 of a float32 tensor equals the number
    0.9."""
    is_single = not isinstance(argument, torch.Tensor) or argument.dim() == 0
    is_beside_floats = isinstance(other, torch.Tensor) and other.dtype.is_floating_point
    if is_single and is_beside_floats and isinstance(operand, (int, float)):
        return rounded(operand, other.dtype)
    return operand


def _ordered_in_document(
    reader: Interpreter, operands: tuple[Any, Any], negated: bool, node: Node
) -> TwoValued | None:
    """Returns where the first operand is at most the second, if their difference contains the
    position of a column in its document minus the position of a row, or the reverse, as in
    position_ids[:, None, :] <= position_ids[:, :, None]; else None. `node` is this comparison or,
    if `negated`, the opposite one."""
    first, other = map(reader.affine, operands)
    if first is None or other is None:
        return None
    difference = first - other
    tensors = [term for term in difference.tensors if isinstance(term, Node)]
    columns = [term for term in tensors if Affine(terms={term: 1}).varies_over_columns]
    rows = [term for term in tensors if term not in columns]
    if len(columns) != 1 or len(rows) != 1 or len(difference.tensors) != 2:
        return None
    document = _document(pick_of(reader, rows[0]), pick_of(reader, columns[0]))
    step = difference.terms[columns[0]]
    if document is None or difference.terms[rows[0]] != -step:
        return None
    numbers = Affine(terms={columns[0]: step, rows[0]: -step})
    # Within a document of a packed sequence, positions rise by one from column to column, so that
    # the difference of two positions is the difference of their indices.
    ordered = at_most_zero(difference - numbers + document.difference * step)
    return _within(document, ordered, node, negated) if isinstance(ordered, TwoValued) else None


def _document(rows: Pick, columns: Pick) -> Document | None:
    """Returns the document that the numbers of rows and of columns define, such as positions within
    a packed sequence. Returns None unless both numbers are elements of one tensor, at places that
    differ in the last index alone."""
    same = rows.source is columns.source and rows.places[:-1] == columns.places[:-1]
    return Document(rows.source, rows.places, columns.places) if same and rows.places else None


def _within(document: Document, ordered: TwoValued, node: Node, negated: bool) -> TwoValued:
    """Returns `ordered`, which says where `node` is True (False if `negated`), with every bound
    limited to `document`. A limited bound holds only for columns of the row's own document. In a
    mask that does not hide the other documents, the tensor `node` itself takes the place of the
    bounds."""

    limited = {}
    for holds, condition in ordered.conditions.items():
        bounds = [part for part in condition or () if isinstance(part, Bound)]
        fallback = Leaf(node, negated=holds is negated)
        limited[holds] = tuple(Within(document, bound, fallback) for bound in bounds) or None
    return TwoValued(limited)


def _with_known_column(equal: TwoValued, x: Known | None, y: Known | None) -> TwoValued:
    """Returns `equal`, the condition x == y, with the `known_column` of its bounds set if x and y
    are quotients with the same divisor. This column is the one in which the dividends are equal,
    since the quotients are equal there too."""
    if not isinstance(x, Quotient) or not isinstance(y, Quotient) or x.divisor != y.divisor:
        return equal
    column = column_of_zero(x.affine - y.affine)
    bounds = [part for part in equal.conditions[True] or () if isinstance(part, Bound)]
    known = tuple(replace(bound, known_column=column) for bound in bounds)
    return TwoValued({**equal.conditions, True: known})


def _at_most(x: Any, y: Any) -> Selectable | None:
    """Returns where x <= y, if that is in one interval of each row's columns, or outside of one;
    else None."""
    if isinstance(x, Affine) and isinstance(y, Affine):
        return at_most_zero(x - y)
    if isinstance(x, Quotient) and isinstance(y, Affine):  # a // n <= y means a <= y * n + n - 1
        return at_most_zero(x.affine - y * x.divisor + (1 - x.divisor))
    if isinstance(x, Affine) and isinstance(y, Quotient):  # x <= b // n means x * n <= b
        return at_most_zero(x * y.divisor - y.affine)
    if isinstance(x, Magnitude) and isinstance(y, Affine):  # |s| <= y means s <= y and -s <= y
        return elementwise(operator.and_, at_most_zero(x.affine - y), at_most_zero(-x.affine - y))
    if isinstance(x, Affine) and isinstance(y, Magnitude):  # x <= |s| means not (|s| <= x - 1)
        return elementwise(operator.not_, _at_most(y, x - 1))
    return None


def _equal(reader: Interpreter, x: Any, y: Any) -> Selectable | None:
    """Returns where x == y, or None if that is not known. If one of the two ascends along the
    columns, searchsorted finds the columns; otherwise x == y is read as x <= y and y <= x. |s| == y
    is not known, because it holds in two columns, which are no interval."""
    for keys, rows in ((x, y), (y, x)):
        if isinstance(keys, Ascending) and keys.dim == COLUMNS and isinstance(rows, Affine):
            return _searched_bounds(reader, keys, rows)
    if isinstance(x, Magnitude) or isinstance(y, Magnitude):
        return None
    return elementwise(operator.and_, _at_most(x, y), _at_most(y, x))


def _searched_bounds(reader: Interpreter, keys: Ascending, rows: Affine) -> TwoValued | None:
    """Returns where the ascending `keys` equal the row's number, which is between two bounds that
    searchsorted finds. Returns None unless searchsorted accepts both tensors, and none of the
    tensors that they depend on is written before it is read."""
    row = next(iter(rows.terms), None)
    if not isinstance(row, Node) or rows != Affine(terms={row: 1}):
        return None
    calls = upstream(keys.node, until=set()) | upstream(row, until=set())
    if not _can_search(keys.node, row) or written_before_read(calls, set(), keys.node):
        return None
    document = _document(pick_of(reader, row), pick_of(reader, keys.node))
    column = column_of_zero(document.difference) if document else None
    start, end = (Affine(terms={Search(keys.node, row, right): 1}) for right in (False, True))
    bounds = (
        Bound(start, is_start=True, known_column=column),
        Bound(end, is_start=False, known_column=column),
    )
    if document is None or keys.numbers is None:
        return TwoValued({True: bounds, False: None})
    documents = replace(document, numbers=keys.numbers)
    return TwoValued({True: (*bounds, documents), False: None})


def _can_search(keys: Node, rows: Node) -> bool:
    """Returns whether torch.searchsorted accepts `keys` as its sorted sequences, and the transposed
    `rows` as the numbers to find. For this, all rows of a batch must have the same keys."""
    sorted_keys, numbers = value(keys), value(rows)
    if not isinstance(numbers, torch.Tensor) or sorted_keys.dtype != numbers.dtype:
        return False
    if not sorted_keys.dim() == numbers.dim() > 1:
        return False
    one_row = statically_known_true(sorted_keys.shape[ROWS] == 1)
    return one_row and are_equal(sorted_keys.shape[:-2], numbers.shape[:-2])


STEPS: dict[str, Step] = dict.fromkeys(_RELATIONS, _comparison)
