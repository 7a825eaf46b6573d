"""Computes softmax and log_softmax of DTensors.

A row that is divided among ranks is not gathered. In the forward pass each rank computes the
statistics of its part, which are a maximum and a sum of exponentials. The ranks exchange them by
one all-gather of 8 bytes for each row and rank (16 for float64). In the backward pass the sum over
a row that occurs in the gradient's formula (fusedops/ops/softmax.py) is all-reduced, which is 4
bytes for each row (8 for float64).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from fusedops.integrations.dtensor.call import Call, Rule
from fusedops.integrations.dtensor.partition import Dims, Partition, Result, Space, sum_of_parts
from fusedops.ops.checks import statistics_dtype, statistics_shape, wide
from fusedops.ops.softmax_stats import shift_of

ops = torch.ops.fusedops

Statistics = tuple[torch.Tensor, torch.Tensor]


def _rows_space(*deciding_tensors: str, reduces: bool = True) -> Callable[[Call], Space]:
    """Returns a function that describes a call by a `Space`. The placements of the arguments
    ``deciding_tensors`` decide how the space is divided, the most important first, and the shape of
    the first one gives its sizes. Arguments and results have all dimensions of the space, except
    the statistics ``max`` and ``sum``, whose size along ``dim`` is 1. ``reduces`` says whether the
    op reduces over ``dim``, so that ranks have to communicate where ``dim`` is divided."""

    def space(call: Call) -> Space:
        sizes = tuple(call[deciding_tensors[0]].shape)
        dim = _dim(call)
        every = tuple(range(len(sizes)))
        statistic = tuple(None if d == dim else d for d in every)
        shapes: dict[str, Dims] = {
            name: every for name in ("input", "output", "grad_output", "out")
        }
        shapes |= {"max": statistic, "sum": statistic}
        results = tuple(Result(shapes.get(name, every)) for name in call.results)
        reduced = frozenset((dim,)) if reduces else frozenset()
        return Space(sizes, shapes, results, deciding_tensors, reduced)

    return space


def _dim(call: Call) -> int:
    tensor = call["input"] if "input" in call else call["output"]
    dim: int = call["dim"] % max(tensor.dim(), 1)
    return dim


# --- rows that are divided among ranks ----------------------------------------------------------


def local_statistics(input: torch.Tensor, dim: int) -> Statistics:
    """Returns the maximum and the sum of exp(input - maximum) of this rank's part of each row."""
    if input.shape[dim] > 0:
        max, sum = ops.softmax_stats.default(input, dim)
        return max, sum
    shape, dtype = statistics_shape(input, dim), statistics_dtype(input.dtype)
    return input.new_full(shape, -math.inf, dtype=dtype), input.new_zeros(shape, dtype=dtype)


def merged(maxima: torch.Tensor, sums: torch.Tensor) -> Statistics:
    """Returns the maximum and the sum of exponentials of whole rows from those of their parts,
    which lie along the first dimension."""
    max = maxima.amax(0)
    return max, sum_of_parts(sums * (maxima - shift_of(max)).exp())


def _statistics(part: Partition, input: torch.Tensor, dim: int) -> Statistics:
    return merged(*part.all_gather(local_statistics(input, dim), (dim,)))


def _split_stats(call: Call, part: Partition, local: dict[str, Any]) -> Statistics:
    return _statistics(part, local["input"], _dim(call))


def _split_softmax(call: Call, part: Partition, local: dict[str, Any]) -> torch.Tensor:
    input, dim, dtype = _converted(local), _dim(call), local.get("dtype")
    result: torch.Tensor = ops.softmax_apply.default(
        input, *_statistics(part, input, dim), dim, dtype
    )
    return result


def _split_log_softmax(call: Call, part: Partition, local: dict[str, Any]) -> torch.Tensor:
    input = _converted(local)
    max, sum = _statistics(part, input, _dim(call))
    return input - max - sum.log()


def _converted(local: dict[str, Any]) -> torch.Tensor:
    input: torch.Tensor = local["input"]
    return input if local.get("dtype") is None else input.to(local["dtype"])


def _split_softmax_backward(call: Call, part: Partition, local: dict[str, Any]) -> torch.Tensor:
    y: torch.Tensor = local["output"]
    product, dim = wide(local["grad_output"]) * y, _dim(call)
    total = part.all_reduce(product.sum(dim, keepdim=True), (dim,))
    return product - y * total


def _split_log_softmax_backward(call: Call, part: Partition, local: dict[str, Any]) -> torch.Tensor:
    g: torch.Tensor = local["grad_output"]
    y, dim = wide(local["output"]), _dim(call)
    total = part.all_reduce(g.sum(dim, keepdim=True, dtype=y.dtype), (dim,))
    return g - y.exp() * total


def _rules() -> dict[str, Rule]:
    of_input, of_gradient = _rows_space("input"), _rows_space("output", "grad_output")
    rules = {
        "softmax_stats": Rule(of_input, compute_split_rows=_split_stats),
        "softmax_apply": Rule(_rows_space("input", reduces=False)),
    }
    for op, split, backward in (
        ("softmax", _split_softmax, _split_softmax_backward),
        ("log_softmax", _split_log_softmax, _split_log_softmax_backward),
    ):
        rules |= {
            op: Rule(of_input, None, split),
            f"{op}_": Rule(of_input, None, split, "input"),
            f"{op}_out": Rule(of_input, None, split, "out"),
            f"{op}_backward": Rule(of_gradient, None, backward),
            f"{op}_backward_": Rule(of_gradient, None, backward, "grad_output"),
        }
    return rules


RULES = _rules()
