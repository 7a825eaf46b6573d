"""Computes norms of DTensors, over the last dimensions or over any single one.

A row that is divided among ranks is not gathered, but computed by torch's own functions and one
collective. For a norm without a mean, a row's sum of squares is all-reduced. For a norm with a
mean, the ranks exchange the mean of their parts and the sum of squares about it by an all-gather,
and merge them by the formula of Chan, Golub and LeVeque ("Algorithms for computing the sample
variance", 1983), in which no digits cancel. In the backward pass the one or two sums over a row are
all-reduced. With dropout, whose random numbers belong to whole rows, such rows are gathered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusedops.integrations.dtensor.call import Call, Rule
from fusedops.integrations.dtensor.dropout import draws_for_part, drops, multiplier
from fusedops.integrations.dtensor.partition import Dims, Partition, Result, Space, sum_of_parts
from fusedops.ops.checks import wide
from fusedops.ops.norm_kinds import NORM_OPS, NormKind, kind_of

#: The arguments and results with the dimensions of the input, of its rows, and of its columns.
_OF_INPUT = ("input", "residual", "sum", "grad_sum", "grad_output")
_OF_ROWS = ("mean", "rstd")
_OF_COLUMNS = ("weight", "bias")


def _sizes(call: Call) -> tuple[int, ...]:
    return tuple((call["input"] if "input" in call else call["sum"]).shape)


def _space(call: Call) -> Space:
    """Returns the Space that describes a call. With dropout every rank needs whole rows."""
    sizes = _sizes(call)
    reduced = call.reduced_dims(len(sizes))
    every = tuple(range(len(sizes)))
    statistic = tuple(None if dim in reduced else dim for dim in every)
    tensors: dict[str, Dims] = dict.fromkeys(_OF_INPUT, every)
    tensors |= dict.fromkeys(_OF_ROWS, statistic) | dict.fromkeys(_OF_COLUMNS, reduced)
    results = tuple(
        Result(tensors.get(name.removeprefix("grad_"), every), name in ("grad_weight", "grad_bias"))
        for name in call.results
    )
    deciding = tuple(name for name in ("sum", "residual", "input", "grad_output") if name in call)
    undivided = frozenset(reduced if drops(call) else ())
    return Space(sizes, tensors, results, deciding, frozenset(reduced), undivided)


# --- dropout ------------------------------------------------------------------------------------


def _local(call: Call, part: Partition, local: dict[str, Any]) -> Any:
    """Returns the results for a rank's part, where each rank has whole rows."""
    if not draws_for_part(call, part):
        return call.run(local)
    row_dim_count = len(call["normalized_shape"])
    if "sum" in local:
        return _backward_with_dropout(call, part, local, row_dim_count)
    residual = local["residual"]
    input = local["input"].to(torch.promote_types(local["input"].dtype, residual.dtype))
    sum = input * multiplier(call, part, input, row_dim_count) + residual
    # The op gets the rounded sum as its input, and a residual of zeros, which adds nothing.
    undropped = {"input": sum.to(input.dtype), "residual": torch.zeros_like(residual), "p": 0.0}
    return call.run(local | undropped)


def _backward_with_dropout(
    call: Call, part: Partition, local: dict[str, Any], row_dim_count: int
) -> Any:
    """Returns the gradients of a residual norm with dropout. The op runs without dropout, since it
    would number this rank's rows as if they were a whole tensor. It gives the gradient of the sum.
    The input's gradient is this gradient times the factors of dropout. ``row_dim_count`` is the
    number of dimensions that are normalised."""
    of_input, of_residual, *of_parameters = local["output_mask"]
    needed = [of_input or of_residual, False, *of_parameters]
    sum_dtypes = {"input_dtype": None, "residual_dtype": None}
    undropped = {"output_mask": needed, "p": 0.0, "seed": None, **sum_dtypes}
    grad, _, *grads = call.run(local | undropped)
    dropped = grad * multiplier(call, part, grad, row_dim_count) if of_input else grad
    return [dropped, grad, *grads]


# --- rows that are divided among ranks ----------------------------------------------------------


@dataclass(frozen=True)
class _SplitNorm:
    """Holds a norm whose rows are divided: its kind, its call, and this rank's arguments
    `local`."""

    kind: NormKind
    call: Call
    part: Partition
    local: dict[str, Any]

    @classmethod
    def of(cls, call: Call, part: Partition, local: dict[str, Any]) -> _SplitNorm:
        return cls(kind_of(call.overload._schema.name), call, part, local)

    @property
    def dims(self) -> tuple[int, ...]:
        return self.call.reduced_dims(len(self.part.sizes))

    @property
    def cols(self) -> int:
        return math.prod(self.part.sizes[dim] for dim in self.dims)

    def row_sums(self, *values: torch.Tensor) -> Sequence[torch.Tensor]:
        """Returns the sum of each of ``values`` over a row, by one all-reduce."""
        sums = torch.stack([value.sum(self.dims, keepdim=True) for value in values])
        return self.part.all_reduce(sums, self.dims).unbind()

    def moments(self, input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the mean of each row and the sum of squares about it. Takes one all-gather."""
        count = math.prod(input.shape[dim] for dim in self.dims)
        mean_of_part = input.sum(self.dims, keepdim=True) / max(count, 1)
        squares_of_part = (input - mean_of_part).square().sum(self.dims, keepdim=True)
        means, squares = self.part.all_gather((mean_of_part, squares_of_part), self.dims)
        sizes = self._sizes_of_parts(means)
        mean = sum_of_parts(means * sizes) / max(self.cols, 1)
        return mean, sum_of_parts(squares + sizes * (means - mean).square())

    def _sizes_of_parts(self, like: torch.Tensor) -> torch.Tensor | int:
        """Returns how many elements of a row each part has. If all parts have the same number, the
        result is an int, because a tensor of numbers would have to be copied to a GPU."""
        first, *others = self.part.counts(self.dims)
        if all(count == first for count in others):
            return first
        return like.new_tensor([first, *others]).view(-1, *[1] * (like.dim() - 1))

    def column(self, name: str, dtype: torch.dtype) -> torch.Tensor | float:
        """Returns the weight plus its offset, or the bias, in a shape that broadcasts to the input.
        Returns 1 if there is no weight, and 0 if there is no bias."""
        parameter = self.local.get(name)
        if parameter is None:
            return 1.0 if name == "weight" else 0.0
        offset = self.local.get("weight_offset", 0.0) if name == "weight" else 0.0
        sizes = [1] * len(self.part.sizes)
        for dim, size in zip(self.dims, parameter.shape, strict=True):
            sizes[dim] = size
        column: torch.Tensor = parameter.to(dtype).view(sizes) + offset
        return column


def _split_forward(call: Call, part: Partition, local: dict[str, Any]) -> Any:
    """Returns this rank's part of the results of a forward op, where rows are divided."""
    norm, input = _SplitNorm.of(call, part, local), local["input"]
    if "residual" in local:
        input = input + local["residual"]
    centered = wide(input)
    statistics = []
    if norm.kind.has_mean:
        mean, squares = norm.moments(centered)
        centered = centered - mean
        statistics = [mean]
    else:
        (squares,) = norm.row_sums(centered.square())
    rstd = norm.kind.scale.rstd(squares, norm.cols, local["eps"])
    normalized = centered * rstd
    if local.get("rounds_normalized"):
        normalized = normalized.to(input.dtype).to(rstd.dtype)
    output = normalized * norm.column("weight", rstd.dtype) + norm.column("bias", rstd.dtype)
    every = [output, *([input] if "residual" in local else []), *statistics, rstd]
    # A variant without statistics returns fewer results. The statistics are the last ones.
    return every[0] if len(call.results) == 1 else every[: len(call.results)]


def _split_backward(call: Call, part: Partition, local: dict[str, Any]) -> Any:
    """Returns this rank's part of the gradients, where rows are divided."""
    norm = _SplitNorm.of(call, part, local)
    input = local["sum"] if "sum" in local else local["input"]
    rstd, dy = local["rstd"], wide(local["grad_output"])
    centered = wide(input) - local["mean"] if norm.kind.has_mean else wide(input)
    normalized = centered * rstd
    grad = _projected(norm, dy * norm.column("weight", rstd.dtype), normalized, rstd)
    if local.get("grad_sum") is not None:
        grad = grad + local["grad_sum"]
    rows = [dim for dim in range(input.dim()) if dim not in norm.dims]
    of_weight, of_bias = (t.sum(rows) if rows else t for t in (dy * normalized, dy))
    by_name = {
        "grad_input": grad,
        "grad_residual": grad,
        "grad_weight": of_weight,
        "grad_bias": of_bias,
    }
    return [by_name[name] for name in call.results]


def _projected(
    norm: _SplitNorm, g: torch.Tensor, normalized: torch.Tensor, rstd: torch.Tensor
) -> torch.Tensor:
    """Returns the gradient of a norm's input, rstd * (g - mean(g) - n * along_n(g)), where g is the
    gradient of the normalised values n. fusedops/ops/norm_kinds.py derives the formula."""
    *total, products = norm.row_sums(*([g] if norm.kind.has_mean else []), g * normalized)
    along_n = norm.kind.scale.along_n(products, rstd, norm.cols, norm.local.get("eps", 0.0))
    shift = total[0] / norm.cols if total else 0.0
    return rstd * (g - shift - normalized * along_n)


_FORWARD = Rule(_space, _local, _split_forward)
_BACKWARD = Rule(_space, _local, _split_backward)
RULES = {op.name.removeprefix("_"): _BACKWARD if op.is_backward else _FORWARD for op in NORM_OPS}
