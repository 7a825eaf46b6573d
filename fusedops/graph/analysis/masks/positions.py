"""Defines what masks are made of: integers that are affine in the indices of rows and columns, and
the conditions that follow from comparing them.

A mask over the positions of queries and keys is a comparison of such integers: `keys <= queries`
of two broadcast aranges is `j - i <= 0`, which says that row i sees the columns before i + 1. A
`Bound` is such a comparison. A `TwoValued` tensor, such as a bool tensor or a mask that is added,
has the conditions under which its elements have each value: bounds, bool tensors of which nothing
is known (`Leaf`), and conditions about the documents of a packed sequence (`Document`, `Within`).
Nothing is computed, so that sizes may be symbols.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, TypeGuard, TypeVar

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fusedops.graph.analysis.values import value

ROWS, COLUMNS = -2, -1


@dataclass(frozen=True)
class Search:
    """An integer for each row, which searchsorted finds: how many of the row's keys are less than
    the row's number, or if `right`, how many are at most that number. The keys ascend along the
    columns."""

    keys: Node
    rows: Node
    right: bool


Term = Node | Search
Key = TypeVar("Key")


@dataclass(frozen=True)
class Affine:
    """An integer tensor: constant + sum of steps[d] * (index along d) + sum of terms[t] * t.

    steps: dimension -> the step along it. Dimensions count from the end (-1 is the last), so that
        broadcasting, which adds dimensions in front, does not renumber them.
    terms: term -> its factor. Terms are symbolic integers, and integer tensors of which nothing is
        known.
    """

    constant: int = 0
    steps: Mapping[int, int] = field(default_factory=dict)
    terms: Mapping[Term, int] = field(default_factory=dict)

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return replace(self, constant=self.constant + other)
        steps, terms = _summed(self.steps, other.steps), _summed(self.terms, other.terms)
        return Affine(self.constant + other.constant, steps, terms)

    def __mul__(self, factor: int) -> Affine:
        steps = {dim: factor * step for dim, step in self.steps.items() if factor}
        terms = {term: factor * times for term, times in self.terms.items() if factor}
        return Affine(factor * self.constant, steps, terms)

    def __neg__(self) -> Affine:
        return self * -1

    def __sub__(self, other: Affine | int) -> Affine:
        return self + -other

    @property
    def varies_over_columns(self) -> bool:
        return COLUMNS in self.steps or not all(map(_is_one_per_row, self.terms))

    @property
    def is_index(self) -> bool:
        """Whether each element is the row's index plus a constant, or the constant alone. Symbols,
        such as a sequence length, count as constants."""
        return not self.tensors and self.steps in ({}, {ROWS: 1})

    @property
    def tensors(self) -> list[Term]:
        """The terms that are tensors."""
        return [term for term in self.terms if not is_symbol(term)]

    @property
    def offset(self) -> int | torch.SymInt:
        """The value of the element whose indices are all 0. No term may be a tensor."""
        total: int | torch.SymInt = self.constant
        for term, times in self.terms.items():
            total = total + times * value(term)
        return total

    @property
    def is_positive(self) -> bool | None:
        """True if all elements are known to be above 0, False if all of them are known to be at
        most 0, else None."""
        if self.tensors:
            return None
        steps = self.steps.values()
        if all(step >= 0 for step in steps) and statically_known_true(self.offset > 0):
            return True
        if all(step <= 0 for step in steps) and statically_known_true(self.offset <= 0):
            return False
        return None


def without_short_dims(affine: Affine, sizes: Sequence[int | torch.SymInt]) -> Affine:
    """Returns `affine`, a tensor of these sizes, without its steps along dimensions of size 1,
    where the only index is 0."""
    long = {d: n for d, n in affine.steps.items() if not statically_known_true(sizes[d] == 1)}
    return replace(affine, steps=long)


def _summed(first: Mapping[Key, int], other: Mapping[Key, int]) -> dict[Key, int]:
    sums = {key: first.get(key, 0) + other.get(key, 0) for key in (*first, *other)}
    return {key: total for key, total in sums.items() if total}


def is_symbol(term: Term) -> bool:
    return isinstance(term, Node) and not isinstance(value(term), torch.Tensor)


def _is_one_per_row(term: Term) -> bool:
    """Returns whether a term has the same value for all columns of a row."""
    if isinstance(term, Search) or is_symbol(term):
        return True
    shape = value(term).shape
    return not shape or statically_known_true(shape[COLUMNS] == 1)


#: For each dimension of a tensor, the index at which it is read, in terms of the result's indices.
Places = tuple[Affine, ...]


@dataclass(frozen=True)
class Bound:
    """A limit of the columns that each row sees. It sees those from `limit` on if `is_start`, else
    those before `limit`.

    known_column: a column that each row sees whatever values the tensors in `limit` have, provided
        that the scores have a column of that index; None if no such column is known.
    """

    limit: Affine
    is_start: bool
    known_column: Affine | None = None


@dataclass(frozen=True)
class Leaf:
    """A bool tensor of which nothing is known, or its negation."""

    node: Node
    negated: bool = False


@dataclass(frozen=True)
class Document:
    """The condition that a row sees only columns of its own document, which is one of the texts
    packed into one sequence. Each row and each column has a number, which is the element of
    `numbers` at its place in `rows` or `columns`. Within a document these numbers rise by one from
    column to column."""

    numbers: Node
    rows: Places
    columns: Places

    @property
    def difference(self) -> Affine:
        """The column's number minus the row's."""
        return self.columns[-1] - self.rows[-1]


@dataclass(frozen=True)
class Within:
    """A bound that holds only for columns of the row's own document. In a mask that does not also
    have `document` as a condition, the bool tensor `fallback` takes the place of the bound."""

    document: Document
    bound: Bound
    fallback: Leaf


Part = Bound | Leaf | Document | Within
Condition = tuple[Part, ...]


def column_of_zero(number: Affine) -> Affine | None:
    """Returns the column in which `number` is 0, if that column is the row's index plus a constant,
    or a constant alone; else None."""
    step = number.steps.get(COLUMNS, 0)
    column = (number + Affine(steps={COLUMNS: -step})) * -step
    return column if abs(step) == 1 and column.is_index else None


def resolved(condition: Condition) -> tuple[Bound | Leaf, ...]:
    """Returns a condition as bounds and bool tensors alone. A bound that holds only within a
    document (`Within`) is kept if the condition also requires that row and column are in this
    document (`Document`), else its `fallback` replaces it. The `Document` parts are left out."""
    documents = [part for part in condition if isinstance(part, Document)]
    parts: list[Bound | Leaf] = []
    for part in condition:
        if isinstance(part, Within):
            part = part.bound if part.document in documents else part.fallback
        if not isinstance(part, Document) and part not in parts:
            parts.append(part)
    return tuple(parts)


def at_most_zero(affine: Affine) -> bool | TwoValued | None:
    """Returns where affine <= 0 holds, if that is everywhere, nowhere, in each row's columns before
    a limit, or in those from a limit on. Returns None if none of these is known."""
    step = affine.steps.get(COLUMNS, 0)
    rest = affine + Affine(steps={COLUMNS: -step})
    if step == 0:
        return None if rest.is_positive is None else not rest.is_positive
    # For column j, -j + rest <= 0 holds from column `rest` on, and j + rest <= 0 before 1 - rest.
    limit = rest if step < 0 else -rest + 1
    one_per_row = limit.is_index or not (limit.steps or limit.varies_over_columns)
    if abs(step) != 1 or not one_per_row:
        return None
    is_start = step < 0
    return TwoValued({True: (Bound(limit, is_start),), False: (Bound(limit, not is_start),)})


def operands(parts: Iterable[Bound | Leaf]) -> Iterator[Node]:
    """Yields the nodes that a condition refers to."""
    for part in parts:
        for term in [part.node] if isinstance(part, Leaf) else part.limit.terms:
            yield from (term.keys, term.rows) if isinstance(term, Search) else (term,)


# --- tensors with two values, such as True and False, or 0 and -inf -------------------------------

Number = int | float


@dataclass(frozen=True)
class TwoValued:
    """A tensor with two values.

    conditions: maps each value to the condition under which an element has it, namely that every
        part of the condition holds; to None if that is not known.
    """

    conditions: Mapping[Number, Condition | None]

    def with_leaf(self, node: Node) -> TwoValued:
        """Returns this bool tensor with `node`, which computes it, as a `Leaf` in place of each
        condition that is not known."""
        conditions = dict(self.conditions)
        for holds, condition in self.conditions.items():
            if condition is None:
                conditions[holds] = (Leaf(node, negated=not holds),)
        return TwoValued(conditions)


Selectable = Number | TwoValued


def is_selectable(operand: Any) -> TypeGuard[Selectable]:
    """Returns whether an operand is known to have at most two values."""
    return isinstance(operand, (int, float, TwoValued))


def is_logical(operand: Any) -> TypeGuard[bool | TwoValued]:
    """Returns whether an operand is known to be a bool tensor."""
    return is_selectable(operand) and all(isinstance(each, bool) for each in conditions_of(operand))


def conditions_of(operand: Selectable) -> Mapping[Number, Condition | None]:
    """Returns the values of an operand, with the condition under which it has each of them."""
    return operand.conditions if isinstance(operand, TwoValued) else {operand: ()}


def elementwise(compute: Callable[..., Number], *operands: Any) -> Selectable | None:
    """Returns `compute` of operands of at most two values. A result that a single combination of
    their values has occurs exactly where the conditions of these values hold. Where a result occurs
    that several combinations have is not known, because a `Condition` cannot say "or". Returns None
    for other operands, for more than two results, and if none is that of a single combination."""
    if not all(map(is_selectable, operands)):
        return None
    found: dict[Number, list[Condition | None]] = defaultdict(list)
    for combination in product(*(conditions_of(operand).items() for operand in operands)):
        numbers, conditions = zip(*combination, strict=True)
        found[compute(*numbers)].append(_conjunction(conditions))
    if len(found) == 1:
        return next(iter(found))
    is_known = len(found) == 2 and any(len(conditions) == 1 for conditions in found.values())
    cases = {result: each[0] if len(each) == 1 else None for result, each in found.items()}
    return TwoValued(cases) if is_known else None


def _conjunction(conditions: Iterable[Condition | None]) -> Condition | None:
    """Returns the condition that all of these hold, or None if one of them is not known."""
    parts: list[Part] = []
    for condition in conditions:
        if condition is None:
            return None
        parts += [part for part in condition if part not in parts]
    return tuple(parts)


def selected(condition: Any, yes: Any, no: Any) -> Selectable | None:
    """Returns torch.where(condition, yes, no), or None if not enough is known of an operand, if
    neither `yes` nor `no` is a number, or if the result has more than two values."""
    if not is_logical(condition) or not is_selectable(yes) or not is_selectable(no):
        return None
    if isinstance(condition, bool):
        return yes if condition else no
    if isinstance(yes, TwoValued) and isinstance(no, TwoValued):
        return None
    return elementwise(lambda holds, a, b: a if holds else b, condition, yes, no)
