"""Describes tensors with two values, such as 0 and -inf, and computes calls on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fusedops.graph.analysis.masks.positions import BoolTensor, Logical, both

Number = int | float


@dataclass(frozen=True)
class TwoValued:
    """A tensor with the value `yes` where `truth` is True, else `no`."""

    truth: BoolTensor
    yes: Number
    no: Number

    @property
    def swapped(self) -> TwoValued:
        """The same tensor, described by the opposite of `truth`."""
        return TwoValued(self.truth.inverted, self.no, self.yes)


Selectable = Number | BoolTensor | TwoValued


def two_valued(truth: Logical, yes: Number, no: Number) -> Number | TwoValued:
    """Returns torch.where(truth, yes, no), which is a number if only one of the values occurs."""
    if isinstance(truth, bool):
        return yes if truth else no
    return TwoValued(truth, yes, no) if yes != no else yes


def elementwise(
    compute: Callable[[Any, Any], Number], a: Selectable, b: Selectable
) -> Number | TwoValued | None:
    """Returns compute(a, b) for operands of at most two values. Returns None if both have two, and
    fewer than three of the four pairs of values have the same result (see `_elementwise_pair`)."""
    x, y = _as_two_valued(a), _as_two_valued(b)
    if x is None and y is None:
        return compute(a, b)
    if x is not None and y is not None:
        return _elementwise_pair(compute, x, y)
    if x is not None:
        return two_valued(x.truth, compute(x.yes, b), compute(x.no, b))
    assert y is not None
    return two_valued(y.truth, compute(a, y.yes), compute(a, y.no))


def _elementwise_pair(
    compute: Callable[[Any, Any], Number], a: TwoValued, b: TwoValued
) -> Number | TwoValued | None:
    """Returns compute(a, b), or None unless three of the four pairs of values have the same result.
    If they do, the result has two values, and the fourth pair occurs exactly where two conditions
    both hold."""
    for x in (a, a.swapped):
        for y in (b, b.swapped):
            rest = {compute(x.yes, y.no), compute(x.no, y.yes), compute(x.no, y.no)}
            if len(rest) == 1:
                return two_valued(both(x.truth, y.truth), compute(x.yes, y.yes), rest.pop())
    return None


def selected(condition: Logical, yes: Selectable, no: Selectable) -> Selectable | None:
    """Returns torch.where(condition, yes, no), or None if neither `yes` nor `no` is a number, or if
    the result has more than two values."""
    if isinstance(condition, bool):
        return yes if condition else no
    if not isinstance(no, (int, float)):
        condition, yes, no = condition.inverted, no, yes
    if not isinstance(no, (int, float)):
        return None
    number = no
    return elementwise(lambda here, taken: taken if here else number, condition, yes)


def _as_two_valued(operand: Selectable) -> TwoValued | None:
    if isinstance(operand, BoolTensor):
        return TwoValued(operand, yes=True, no=False)
    return operand if isinstance(operand, TwoValued) else None
