"""Checks arguments before an op is called: their types, and values that are converted for the op,
such as a window. Its errors name the argument, which those of Python and torch do not. The ops
check all else."""

from __future__ import annotations

import difflib
import operator
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from fusedops.ops import checks

#: An op's diagonals, sums of a number of keys and a size, have 64 bits.
_MOST_KEYS = 2**62


def wrong(function: str, name: str, value: Any, wanted: str) -> TypeError:
    """Returns the error for an argument of the wrong type. It shows the value of the argument, but
    only the type of a tensor, which may have many elements."""
    got = f"a {type(value).__name__}" if isinstance(value, torch.Tensor) else reprlib.repr(value)
    return TypeError(f"{function}: {name} is {got}, wanted {wanted}")


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Returns a question with the candidate that is most like ``name``, or "" if none is."""

    def plain(name: str) -> str:
        return name.rpartition(".")[2].replace("_", "").lower()

    # softmax and softmax_ are both "softmax" here. A dict keeps the last entry of a key, which in
    # reversed order is the first candidate.
    names = {plain(name): name for name in reversed([*candidates])}
    close = difflib.get_close_matches(plain(name), names, n=1)
    return f"; did you mean {names[close[0]]!r}?" if close else ""


def number(function: str, name: str, value: Any) -> float:
    """Returns ``value`` as a float. Refuses strings, and tensors that require grad, though float()
    takes them."""
    if type(value) is float:
        return value
    if isinstance(value, torch.Tensor) and value.requires_grad:
        raise TypeError(
            f"{function}: {name} is a tensor that requires grad, which it would get none of here; "
            "wanted a number, as .item() gives it"
        )
    if isinstance(value, (str, bytes)):  # float() would parse them
        raise wrong(function, name, value, "a number")
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise wrong(function, name, value, "a number") from None


def optional_number(function: str, name: str, value: Any) -> float | None:
    return None if value is None else number(function, name, value)


def floating(function: str, name: str, dtype: Any) -> None:
    """Raises unless ``dtype`` is a torch.dtype that the ops can return."""
    if not isinstance(dtype, torch.dtype):
        raise wrong(function, name, dtype, "a torch.dtype")
    checks.check_dtype(function, name, dtype, "convert it, or pass dtype=")


def tensor(function: str, name: str, value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise wrong(function, name, value, "a tensor")
    return value


def tensors(function: str, name: str, values: Any) -> list[Any]:
    """Returns ``values`` as a list. Refuses a single tensor, which could be iterated over."""
    if type(values) is list:
        return values
    if isinstance(values, (torch.Tensor, str)) or not isinstance(values, Iterable):
        raise wrong(function, name, values, "a list of tensors")
    return list(values)


def shape(function: str, name: str, values: Any) -> list[int]:
    if not isinstance(values, Iterable):
        raise wrong(function, name, values, "a list of sizes, as [8]")
    return list(values)


def sizes(function: str, name: str, value: Any) -> tuple[int, ...]:
    """Returns the sizes of a module's parameters; an int is one size."""
    sizes_of_value = tuple(value) if isinstance(value, Iterable) else (value,)
    try:
        converted = tuple(map(operator.index, sizes_of_value))
    except TypeError:
        converted = (-1,)
    if not all(0 <= size < 2**63 for size in converted):
        raise wrong(function, name, value, "a size or a list of sizes, as [8]")
    return converted


def one_of(name: str, value: Any, words: Sequence[Any]) -> None:
    """Raises if ``value`` is not one of ``words``."""
    try:
        is_one = value in words
    except (ValueError, RuntimeError):  # an array or tensor, which is compared by element
        is_one = False
    if not is_one:
        *first, last = map(repr, words)
        raise ValueError(f"{name} is {value!r}, wanted {', '.join(first)} or {last}")


def window(value: Any, causal: Any) -> tuple[int, int]:
    """Returns how many keys a query sees to the left and right of its own, at most 2^62, which is
    more than a tensor has. An int is refused unless ``causal`` is set; a pair never is. With
    ``causal`` the caller ignores the number to the right."""
    if type(value) is int and value > 0:
        if causal:
            return min(value - 1, _MOST_KEYS), 0
        raise ValueError(
            f"window is {value}, a number of keys up to the query's own, wanted causal beside it, "
            "or a pair (left, right)"
        )
    is_pair = isinstance(value, (tuple, list)) and len(value) == 2
    if not is_pair or not all(type(keys) is int and keys >= 0 for keys in value):
        raise ValueError(
            f"window is {value!r}, wanted None, a number of keys above 0, or a pair (left, right) "
            "of numbers from 0 on"
        )
    left, right = value
    return min(left, _MOST_KEYS), min(right, _MOST_KEYS)
