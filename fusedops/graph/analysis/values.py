"""The values that capture recorded for nodes, and the numbers that are known of them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, get_plain_tensors
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass
from torch.utils._sympy.symbol import SymT, symbol_is_type

from fusedops.graph.analysis.nodes import packet
from fusedops.graph.analysis.writes import written

aten = torch.ops.aten


def value(argument: Any) -> Any:
    """Returns the value that capture recorded for a node (a fake tensor, a symbol, ...), or None.

    An argument that is not a node is returned unchanged.
    """
    if not isinstance(argument, Node):
        return argument
    return argument.meta.get("val", argument.meta.get("example_value"))


def hints(tensor: torch.Tensor) -> list[int] | None:
    """Returns a tensor's sizes at capture, or None if a symbol had no value then."""
    sizes = [n.node.hint if isinstance(n, torch.SymInt) else n for n in tensor.shape]
    return None if None in sizes else sizes


def bytes_of(tensor: torch.Tensor) -> int:
    """Returns the bytes of a tensor's elements at capture, or 0 if a size has no hint."""
    return math.prod(hints(tensor) or [0]) * tensor.dtype.itemsize


def fake_mode(node: Node) -> FakeTensorMode:
    """Returns the fake mode of the inputs of `node`. That of Dynamo's tracing context is not used:
    it is a new one by the time passes run."""
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
    """Returns `argument` as a Python number, or None.

    With dynamic=True module attributes such as eps are graph inputs. Reading one here adds a guard
    that makes it a constant of the compiled graph. Symbols that depend on a size are not read,
    because the graph would be compiled again for every length.
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
    """Returns whether a value is a Python number, or a symbol for one that depends on no size."""
    if isinstance(recorded, (torch.SymInt, torch.SymFloat)):
        return all(symbol_is_type(symbol, _NUMBER_SYMBOLS) for symbol in free_symbols(recorded))
    return isinstance(recorded, (int, float))


_NUMBER_SYMBOLS = (SymT.FLOAT, SymT.UNBACKED_FLOAT)


def rounded(number: float, dtype: torch.dtype) -> int | float:
    """Returns `number` rounded to `dtype`; the result is infinite if it is out of range."""
    with _disable_current_modes():
        return torch.tensor(number, dtype=torch.float64).to(dtype).item()


def number(argument: Any) -> int | float | None:
    """Returns `constant(argument)`, or the number that a tensor without dimensions is made from."""
    if isinstance(value(argument), torch.Tensor):
        return _tensor_number(argument) if isinstance(argument, Node) else None
    return constant(argument)


_TENSOR_OF_NUMBER = {torch.tensor, torch.scalar_tensor, aten.scalar_tensor}


_FULL = {torch.full, aten.full}


_UNCHANGED = {aten.lift_fresh_copy, aten.lift_fresh, aten.detach, aten.detach_, aten.clone}


def _tensor_number(node: Node) -> int | float | None:
    """Reads torch.tensor(2.0), torch.full((), 2.0), a constant that export lifted, and copies of
    them. Returns None if a call may write into the tensor."""
    tensor, target = value(node), packet(node)
    changed = any(written(user) and packet(user) not in _UNCHANGED for user in node.users)
    if tensor.dim() > 0 or changed:
        return None
    if target in _UNCHANGED:
        return _tensor_number(node.all_input_nodes[0])
    if target in _TENSOR_OF_NUMBER or target in _FULL:
        # The number is the argument 1 of full, after the shape, and 0 of the others.
        fill = node.args[target in _FULL] if len(node.args) > (target in _FULL) else None
        return rounded(fill, tensor.dtype) if isinstance(fill, (int, float)) else None
    recorded = getattr(tensor, "constant", None)  # a constant that export lifted
    return None if recorded is None else recorded.item()
