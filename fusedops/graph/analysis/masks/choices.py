"""Tensors with two values, such as 0 and -inf, and calls on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fusedops.graph.analysis.masks.positions import Logical, Truth, both

Number = int | float


@dataclass(frozen=True)
class Choice:
    """A tensor with the value `yes` where `truth` is True, else `no`."""

    truth: Truth
    yes: Number
    no: Number

    @property
    def swapped(self) -> Choice:
        return Choice(self.truth.inverted, self.no, self.yes)


Chosen = Number | Truth | Choice


def chosen(truth: Logical, yes: Number, no: Number) -> Number | Choice:
    if isinstance(truth, bool):
        return yes if truth else no
    return Choice(truth, yes, no) if yes != no else yes


def combined(compute: Callable[[Any, Any], Number], a: Chosen, b: Chosen) -> Number | Choice | None:
    """compute(a, b); None if it has more than two values, or two as in an exclusive or."""
    x, y = _as_choice(a), _as_choice(b)
    if x is None and y is None:
        return compute(a, b)
    if x is not None and y is not None:
        return _of_both(compute, x, y)
    if x is not None:
        return chosen(x.truth, compute(x.yes, b), compute(x.no, b))
    assert y is not None
    return chosen(y.truth, compute(a, y.yes), compute(a, y.no))


def _of_both(compute: Callable[[Any, Any], Number], a: Choice, b: Choice) -> Number | Choice | None:
    """compute(a, b), if three of the four combinations of values have the same result."""
    for x in (a, a.swapped):
        for y in (b, b.swapped):
            rest = {compute(x.yes, y.no), compute(x.no, y.yes), compute(x.no, y.no)}
            if len(rest) == 1:
                return chosen(both(x.truth, y.truth), compute(x.yes, y.yes), rest.pop())
    return None


def selected(condition: Logical, yes: Chosen, no: Chosen) -> Chosen | None:
    """torch.where(condition, yes, no)."""
    if isinstance(condition, bool):
        return yes if condition else no
    if not isinstance(no, (int, float)):
        condition, yes, no = condition.inverted, no, yes
    if not isinstance(no, (int, float)):
        return None
    otherwise = no
    return combined(lambda here, given: given if here else otherwise, condition, yes)


def _as_choice(known: Chosen) -> Choice | None:
    if isinstance(known, Truth):
        return Choice(known, True, False)
    return known if isinstance(known, Choice) else None
