"""A branch: a function and its arguments. What was given as such, and what it returns or raises."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

Function = Callable[..., torch.Tensor]
Input = torch.Tensor | tuple[Any, ...]


class Branch(NamedTuple):
    function: Function
    arguments: tuple[Any, ...]


def as_branches(functions: Function | Sequence[Function], inputs: Sequence[Input]) -> list[Branch]:
    """Each function with its arguments; one function is that of every branch."""
    if isinstance(inputs, torch.Tensor):
        raise TypeError(
            "parallel_stack: inputs is one tensor, wanted one entry a function; "
            "pass inputs.unbind() for its slices"
        )
    inputs = _as_list("inputs", inputs)
    # A ModuleList is callable as every module is, but cannot be called.
    if callable(functions) and not isinstance(functions, torch.nn.ModuleList):
        functions = [functions] * len(inputs)
    functions = _as_list("functions", functions)
    if not functions:
        raise ValueError("parallel_stack: there are no functions, wanted at least one")
    if len(functions) != len(inputs):
        raise ValueError(
            f"parallel_stack: {len(functions)} functions and {len(inputs)} inputs, "
            "wanted one input a function"
        )
    pairs = enumerate(zip(functions, inputs, strict=True))
    return [_branch(index, function, entry) for index, (function, entry) in pairs]


def _as_list(name: str, given: Any) -> list[Any]:
    if not isinstance(given, Iterable):
        raise TypeError(
            f"parallel_stack: {name} is a {type(given).__name__}, wanted a list or another iterable"
        )
    return list(given)


def _branch(index: int, function: Function, entry: Input) -> Branch:
    if not callable(function):
        raise TypeError(
            f"parallel_stack: functions[{index}] is a {type(function).__name__}, wanted a callable"
        )
    if isinstance(entry, tuple):
        return Branch(function, entry)
    if isinstance(entry, (torch.Tensor, torch.fx.Proxy)):
        return Branch(function, (entry,))
    raise TypeError(
        f"parallel_stack: inputs[{index}] is a {type(entry).__name__}, wanted a tensor or a tuple "
        "of positional arguments"
    )


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in an argument, in tuples, lists and dicts too."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def common_device(branches: list[Branch]) -> torch.device:
    """The device of all branches; numbers that a branch keeps on the CPU do not count."""
    first: tuple[int, torch.device] | None = None
    for index, branch in enumerate(branches):
        devices = {tensor.device for tensor in tensors_in(branch.arguments)}
        for device in sorted(devices - {_CPU} or devices, key=str):
            first = first or (index, device)
            if device != first[1]:
                raise RuntimeError(
                    f"parallel_stack: branch {index} has inputs on {device}, wanted {first[1]} as "
                    f"branch {first[0]} has; move them with .to()"
                )
    return first[1] if first else _CPU


_CPU = torch.device("cpu")


def call(index: int, branch: Branch) -> torch.Tensor:
    """The result of a branch, which must be a tensor."""
    result = branch.function(*branch.arguments)
    if not isinstance(result, torch.Tensor):
        raise TypeError(
            f"parallel_stack: branch {index} returned a {type(result).__name__}, wanted a tensor"
        )
    return result


def raise_first(errors: dict[int, BaseException], branches: list[Branch]) -> None:
    """Raises the error of the first branch that has one, an interrupt before any other."""
    if not errors:
        return
    order = sorted(errors, key=lambda index: (isinstance(errors[index], Exception), index))
    first, others = errors[order[0]], order[1:]
    _add_note(first, f"parallel_stack: raised by {_describe(order[0], branches)}")
    for index in others:
        (*_, text) = traceback.format_exception_only(errors[index])
        _add_note(first, f"parallel_stack: {_describe(index, branches)} raised {text.rstrip()}")
    try:
        raise first
    finally:
        # The traceback holds this frame: without these lines error and tensors would be a cycle.
        errors.clear()
        del first


def _describe(index: int, branches: list[Branch]) -> str:
    function = branches[index].function
    try:
        name = function.__qualname__
    except Exception:  # most objects that can be called have none
        name = type(function).__name__
    return f"branch {index} ({name})"


def _add_note(error: BaseException, text: str) -> None:
    # BaseException.add_note, which is of Python 3.11. 3.10 keeps the note and does not print it.
    notes = [*getattr(error, "__notes__", ()), text]
    BaseException.__setattr__(error, "__notes__", notes)  # also where a class forbids it
