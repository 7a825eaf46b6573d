"""Reads the values that capture recorded for nodes, most of which are fake tensors, and what is
known of the sizes and strides of these tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch._guards import CompileContext
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, get_plain_tensors
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import (
    free_symbols,
    is_concrete_int,
    statically_known_true,
)
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass
from torch.utils._sympy.symbol import SymT, symbol_is_type


def value(argument: Any) -> Any:
    """Returns the value that capture recorded for a node (a fake tensor, a symbol, ...), or None.

    An argument that is not a node is returned unchanged.
    """
    if not isinstance(argument, Node):
        return argument
    return argument.meta.get("val", argument.meta.get("example_value"))


def dtype_of(argument: Any) -> torch.dtype | None:
    """Returns the dtype of a tensor, or None for any other argument."""
    return getattr(value(argument), "dtype", None)


def hints(tensor: torch.Tensor) -> list[int] | None:
    """Returns a tensor's sizes at capture, or None if a symbol had no value then."""
    return _hints(tensor.shape)


def stride_hints(tensor: torch.Tensor) -> list[int] | None:
    """Returns a tensor's strides at capture, or None if a symbol had no value then."""
    return _hints(tensor.stride())


def _hints(numbers: Sequence[int | torch.SymInt]) -> list[int] | None:
    found = [n.node.hint if isinstance(n, torch.SymInt) else n for n in numbers]
    return None if None in found else found


def sizes_are_symbols(tensor: torch.Tensor) -> bool:
    """Returns whether sizes that may change from call to call were recorded as symbols. In graphs
    of `torch.fx.symbolic_trace` all sizes are numbers, namely those of the example inputs."""
    mode = getattr(tensor, "fake_mode", None)
    return mode is None or mode.shape_env is not None


def are_equal(sizes: Sequence[Any], others: Sequence[Any]) -> bool:
    """Returns whether sizes or strides are known to be equal, without adding a guard."""
    pairs = zip(sizes, others, strict=False)
    return len(sizes) == len(others) and all(statically_known_true(m == n) for m, n in pairs)


def known_size(size: int | torch.SymInt) -> int | None:
    """Returns a size as a number, or None where that would add a guard."""
    return int(size) if is_concrete_int(size) else None


def lasting_strides(tensor: torch.Tensor) -> tuple[int | torch.SymInt, ...]:
    """Returns a tensor's strides. If all sizes are recorded as numbers (see `sizes_are_symbols`),
    strides of dimensions of size 1 are left out: the graph may later run on larger sizes, for which
    these strides would be wrong."""
    if sizes_are_symbols(tensor):
        return tensor.stride()
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple(stride for size, stride in pairs if size != 1)


def bytes_of(tensor: torch.Tensor) -> int:
    """Returns the bytes of a tensor's elements at capture; 0 if a size has no hint."""
    sizes = hints(tensor)
    return 0 if sizes is None else math.prod(sizes) * tensor.dtype.itemsize


def fake_mode(node: Node) -> FakeTensorMode:
    """Returns the fake mode of the inputs of `node`, one of which has to be a fake tensor. The mode
    of Dynamo's tracing context is not used, because it is a new one by the time passes run."""
    values = (value(argument) for argument in node.all_input_nodes)
    plain = (tensor for recorded in values for tensor in _plain_tensors(recorded))
    return next(recorded.fake_mode for recorded in plain if isinstance(recorded, FakeTensor))


def _plain_tensors(recorded: Any) -> list[Any]:
    """Returns the plain tensors inside a subclass such as DTensor; any other value is returned as
    the single element of a list."""
    if not is_traceable_wrapper_subclass(recorded):
        return [recorded]
    tensors: list[Any] = []
    get_plain_tensors(recorded, out=tensors)
    return tensors


def constant(argument: Any) -> int | float | None:
    """Returns `argument` as a Python number, or None if it is no number, or one that is not known.

    With dynamic=True module attributes such as eps are graph inputs. Reading one here adds a guard
    that makes it a constant of the compiled graph. Symbols that depend on a size, and numbers that
    have changed, are not read, because the graph would be compiled again for every value.
    """
    recorded = value(argument)
    if not is_readable(recorded):
        return None
    if isinstance(recorded, torch.SymInt):
        return int(recorded)
    if isinstance(recorded, torch.SymFloat):
        return float(recorded)
    return recorded if isinstance(recorded, (int, float)) else None


def is_readable(recorded: Any) -> bool:
    """Returns whether a value is a Python number, or a symbol for one that depends on no size and
    on no element of a tensor (elements have no value yet when the graph is compiled), and that is
    not known to change."""
    if isinstance(recorded, (torch.SymInt, torch.SymFloat)):
        symbols = free_symbols(recorded)
        are_floats = all(symbol_is_type(symbol, SymT.FLOAT) for symbol in symbols)
        return are_floats and not (symbols and _floats_are_symbols_once_they_change())
    return isinstance(recorded, (int, float))


def _floats_are_symbols_once_they_change() -> bool:
    """Returns whether Dynamo took floats for constants when it compiled the frame first, so that
    only one that has changed since, as a temperature that is annealed, is a symbol. With
    dynamic=True all floats are symbols."""
    is_dynamo = CompileContext.current_compile_id() is not None
    return is_dynamo and torch._dynamo.config.assume_static_by_default


def rounded(number: float, dtype: torch.dtype) -> int | float:
    """Returns `number` rounded to `dtype`; infinity if a float dtype cannot represent it."""
    with _disable_current_modes():
        return torch.tensor(number, dtype=torch.float64).to(dtype).item()
