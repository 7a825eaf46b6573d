"""Makes branches, which are functions with their arguments, checks what they return, and reports
their errors."""

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
    """Returns a branch for each pair of a function and its arguments. If there is only one
    function, every branch gets it. Raises TypeError or ValueError for arguments of parallel_stack
    that do not fit together."""
    if isinstance(inputs, torch.Tensor):
        raise TypeError(
            "parallel_stack: inputs is one tensor, wanted one entry a function; "
            "pass inputs.unbind() for its slices"
        )
    inputs = _as_list("inputs", inputs)
    # A ModuleList is callable like every module, but stands for a list of functions.
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


def _as_list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, Iterable):
        raise TypeError(
            f"parallel_stack: {name} is of type {type(value).__name__}, wanted a list or another "
            "iterable"
        )
    return list(value)


def _branch(index: int, function: Function, entry: Input) -> Branch:
    if not callable(function):
        raise TypeError(
            f"parallel_stack: functions[{index}] is of type {type(function).__name__}, wanted a "
            "callable"
        )
    if isinstance(entry, tuple):
        return Branch(function, entry)
    if isinstance(entry, (torch.Tensor, torch.fx.Proxy)):
        return Branch(function, (entry,))
    raise TypeError(
        f"parallel_stack: inputs[{index}] is of type {type(entry).__name__}, wanted a tensor or a "
        "tuple of positional arguments"
    )


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors in an argument of a branch, also those inside of tuples, lists and
    dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def common_device(branches: list[Branch]) -> torch.device:
    """Returns the device of the tensors among the arguments of all branches, or the CPU if there
    are none. Raises RuntimeError if branches have different devices. In a branch that has tensors
    on another device, tensors on the CPU do not count."""
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
    """Runs a branch and returns its result. Raises TypeError if this is not a tensor."""
    result = branch.function(*branch.arguments)
    if not isinstance(result, torch.Tensor):
        raise TypeError(
            f"parallel_stack: branch {index} returned a {type(result).__name__}, wanted a tensor"
        )
    return result


def raise_first(errors: dict[int, BaseException], branches: list[Branch]) -> None:
    """Raises the error of the first branch that failed, with the errors of the others as notes. An
    interrupt, such as KeyboardInterrupt, precedes other errors. Clears ``errors``. Does nothing if
    there are no errors."""
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
        # The error's traceback refers to this frame, which refers to the error. Without these lines
        # this reference cycle would keep the tensors in the traceback's frames alive.
        errors.clear()
        del first


def _describe(index: int, branches: list[Branch]) -> str:
    function = branches[index].function
    try:
        name = function.__qualname__
    except Exception:  # callable objects, such as modules, have no __qualname__
        name = type(function).__name__
    return f"branch {index} ({name})"


def _add_note(error: BaseException, text: str) -> None:
    # BaseException.add_note needs Python 3.11. On 3.10 the note is kept, but not printed.
    notes = [*getattr(error, "__notes__", ()), text]
    # The base class's __setattr__ works also for classes that forbid setting attributes.
    BaseException.__setattr__(error, "__notes__", notes)
