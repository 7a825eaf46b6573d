"""Interprets calls on numbers: aranges, constants and arithmetic.

Each function takes a call, and returns what is known of the tensor that it computes (`Known`), or
None if nothing is. An affine number is a sum of multiples of the tensor's indices and a constant.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from torch.fx import Node

from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.masks.interpreter import (
    INTEGERS,
    Ascending,
    Interpreter,
    Known,
    Magnitude,
    Quotient,
    Step,
)
from fusedops.graph.analysis.masks.positions import (
    COLUMNS,
    Affine,
    Bound,
    TwoValued,
    conditions_of,
    elementwise,
    is_logical,
    is_selectable,
)
from fusedops.graph.analysis.steps import call_of, number, reduced_dims, same_shape
from fusedops.graph.analysis.values import value


def _arange(reader: Interpreter, call: Call) -> Known | None:
    """Interprets arange: its integers rise by a known number from one column to the next."""
    start, step = (reader.affine(call.arguments[name]) for name in ("start", "step"))
    if start is None or step is None or step.terms:
        return None
    is_integer = value(call.node).dtype in INTEGERS and not start.tensors
    return start + Affine(steps={COLUMNS: step.constant}) if is_integer else None


def _arithmetic(compute: Callable[[Any, Any], Any]) -> Step:
    """Returns the function that interprets `compute` of two operands. For numbers and tensors with
    at most two values (bools too), it computes the result of each pair of values. Integers that are
    affine in the indices stay affine in sums, differences and products with a number. Otherwise
    nothing is known."""

    def step(reader: Interpreter, call: Call) -> Known | None:
        a, b = map(reader.read, call.operands)
        if is_selectable(a) and is_selectable(b):
            return elementwise(compute, a, b)
        if value(call.node).dtype not in INTEGERS:
            return None
        if compute is operator.mul:
            a, b = (b, a) if type(a) is int else (a, b)
            return a * b if isinstance(a, Affine) and type(b) is int else None
        x, y = map(reader.affine, call.operands)
        result: Affine | None = None if x is None or y is None else compute(x, y)
        return result

    return step


def _floor_quotient(reader: Interpreter, call: Call) -> Known | None:
    dividend, divisor = map(reader.read, call.operands)
    if not isinstance(dividend, Affine) or not isinstance(divisor, int):
        return None
    return Quotient(dividend, divisor) if divisor > 0 else None


def _magnitude(reader: Interpreter, call: Call) -> Known | None:
    signed = reader.read(call.input)
    return Magnitude(signed) if isinstance(signed, Affine) else None


def _cumulative_sum(reader: Interpreter, call: Call) -> Known | None:
    """Interprets cumsum. The cumulative sums of a constant are affine in the index along the summed
    dimension, and the cumulative sums of numbers >= 0 ascend along this dimension."""
    added, dim = reader.read(call.input), call.arguments["dim"]
    tensor = value(call.node)
    if tensor.dtype not in INTEGERS or type(dim) is not int or tensor.dim() == 0:
        return None
    dim = dim % tensor.dim() - tensor.dim()
    if isinstance(added, int):
        return Affine(int(added), {dim: int(added)}) if added else 0
    if not isinstance(added, TwoValued) or min(added.conditions) < 0:
        return None
    return Ascending(call.node, dim, _without_jumps(call) if dim == COLUMNS else None)


def _without_jumps(count: Call) -> Node | None:
    """Returns x, if `count` is (x.diff(prepend=...) != 1).cumsum(-1), else None. The sum counts the
    jumps of x: from a column to the next, either x rises by one or the sum grows."""
    jumps = call_of(count.input, "ne")
    differences = call_of(jumps.input, "diff") if jumps else None
    if jumps is None or differences is None or _differenced_dim(differences) != COLUMNS:
        return None
    x: Node = differences.input
    rises_by_one = number(jumps.arguments["other"]) == 1 and same_shape(x, count.node)
    return x if rises_by_one and differences.arguments.get("append") is None else None


def _differenced_dim(call: Call) -> int | None:
    """Returns the dimension, counted from the end, along which a diff subtracts from each element
    the one before it. Returns None if the dimension is not known, or if the call takes differences
    of differences (n > 1)."""
    tensor, dim = value(call.input), call.arguments.get("dim", -1)
    once = call.arguments.get("n", 1) == 1 and type(dim) is int and tensor.dim() > 0
    return dim % tensor.dim() - tensor.dim() if once else None


def _differences(reader: Interpreter, call: Call) -> Known | None:
    """Interprets diff: numbers that rise evenly have equal differences, which are one number."""
    dim, input = _differenced_dim(call), reader.affine(call.input)
    if dim is None or input is None or input.tensors or call.arguments.get("append") is not None:
        return None
    step = input.steps.get(dim, 0)
    # The first difference is equal to the others only if the number that is prepended is the one
    # that the input would have at index -1.
    before = input + Affine(-step, {dim: -step})
    prepended = call.arguments.get("prepend")
    one_more = same_shape(call.input, call.node)
    is_even = prepended is None or (one_more and reader.affine(prepended) == before)
    return step if is_even else None


def _count_below(reader: Interpreter, call: Call) -> Known | None:
    """Interprets bucketize, which counts the boundaries below each number. This count ascends along
    the dimension along which the numbers do."""
    boundaries = call.arguments.get("sorted_sequence", call.arguments.get("boundaries"))
    if not isinstance(boundaries, Node) or value(boundaries).dim() != 1:
        return None
    return _ascending_as(reader, call.input, call.node)


def _count_reached(reader: Interpreter, call: Call) -> Known | None:
    """Interprets (columns >= limits[:, None]).sum(0), which counts the limits that each column has
    reached. This count ascends from column to column."""
    reached = reader.read(call.input)
    parts = conditions_of(reached).get(True) if is_logical(reached) else None
    dims = reduced_dims(call, value(call.input))
    rank = value(call.input).dim()
    if not parts or not dims or rank - 1 in dims or value(call.node).dtype not in INTEGERS:
        return None
    ascends = all(isinstance(part, Bound) and part.is_start for part in parts)
    return Ascending(call.node, COLUMNS) if ascends else None


def _repeated(reader: Interpreter, call: Call) -> Known | None:
    """Interprets repeat_interleave. The result ascends if the call repeats ascending numbers. A
    call whose only argument is `repeats` does so: it repeats the indices 0, 1, ..."""
    input, repeats = call.input, call.arguments.get("repeats")
    if input is None or repeats is None:
        return Ascending(call.node, COLUMNS)
    return _ascending_as(reader, input, call.node) if value(input).dim() == 1 else None


def _ascending_as(reader: Interpreter, argument: Any, node: Node) -> Ascending | None:
    """Returns `node` as a tensor that ascends along the dimension along which `argument` does; None
    if `argument` is not known to ascend, or varies along several dimensions."""
    numbers = reader.affine(argument)
    if numbers is None or numbers.tensors or value(node).dtype not in INTEGERS:
        return None
    dims = [dim for dim, step in numbers.steps.items() if step > 0]
    return Ascending(node, dims[0]) if len(dims) == len(numbers.steps) == 1 else None


STEPS: dict[str, Step] = {
    "arange": _arange,
    "full": lambda reader, call: number(call.arguments.get("fill_value")),
    "zeros": lambda reader, call: 0,
    "ones": lambda reader, call: 1,
    "add": _arithmetic(operator.add),
    "sub": _arithmetic(operator.sub),
    "mul": _arithmetic(operator.mul),
    "floordiv": _floor_quotient,
    "abs": _magnitude,
    "cumsum": _cumulative_sum,
    "diff": _differences,
    "bucketize": _count_below,
    "sum": _count_reached,
    "repeat_interleave": _repeated,
}
