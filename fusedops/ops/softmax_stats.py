"""softmax in two steps, as ops: the statistics of each row, and the softmax from them.

softmax_stats computes max = max(x) and sum = sum(e^(x - max)); softmax_apply computes
y = e^(x - max) / sum.

Formulas: softmax_stats treats max as a constant, and d sum / dx = e^(x - max). For softmax_apply,
with g = dy y: dx = g, d max = -sum(g) and d sum = -sum(g) / sum. Composed they are the derivative
of softmax; max + log(sum) has the derivative of logsumexp.
"""

from __future__ import annotations

from typing import Any

import torch

from fusedops.ops import checks
from fusedops.ops.registration import vmap
from fusedops.ops.registration.autograd import register_autograd
from fusedops.ops.registration.saved import RESULT, Saved
from fusedops.ops.registration.signature import MaybeTensor
from fusedops.ops.registration.variants import register_fake

ops = torch.ops.fusedops


def shift_of(max: torch.Tensor) -> torch.Tensor:
    """Returns the number to subtract from scores, or from maxima of parts of a row, before the
    exponential: the row's maximum, or 0 where that is -inf, because -inf - -inf is NaN, and e^-inf
    is 0."""
    return max.masked_fill(max == -torch.inf, 0)


# --- fake kernels -------------------------------------------------------------------------------


def _fake_stats(call: Any) -> tuple[torch.Tensor, torch.Tensor]:
    op, dim = "softmax_stats", call.dim
    input = checks.check_given(op, "input", call.input)
    checks.check_dtype_of(op, "input", input)
    checks.check_dim(op, input, dim)
    checks.check(
        input.dim() == 0 or input.shape[dim] > 0,
        f"{op}: dim {dim} of an input of shape {list(input.shape)} is empty, wanted at least one "
        "element to take the maximum of",
    )
    shape, dtype = checks.statistics_shape(input, dim), checks.statistics_dtype(input.dtype)
    return input.new_empty(shape, dtype=dtype), input.new_empty(shape, dtype=dtype)


def _fake_apply(call: Any) -> torch.Tensor:
    op = "softmax_apply"
    input: torch.Tensor = call.input
    checks.check_dtype_of(op, "input", input)
    result = checks.result_dtype(op, input, call.dtype)
    checks.check_dim(op, input, call.dim)
    shape = checks.statistics_shape(input, call.dim)
    for name, statistic in (("max", call.max), ("sum", call.sum)):
        checks.check_statistic(op, name, statistic, ("input", input), shape, "softmax_stats")
    return input.new_empty(input.shape, dtype=result)


# --- derivatives --------------------------------------------------------------------------------


def _stats_formula(ctx: Any, _: None, grad_sum: MaybeTensor) -> tuple[MaybeTensor, ...]:
    if grad_sum is None:
        return (None,)
    (input, max), (dim,) = ctx.saved_tensors, ctx.settings
    if not torch.is_grad_enabled():
        # This takes one pass instead of two. Its derivative would divide by grad_sum, perhaps by 0.
        reciprocal = grad_sum.reciprocal()
        return (ops.softmax_apply.default(input, max, reciprocal, dim, input.dtype),)
    ones = torch.ones_like(max)
    exponentials = ops.softmax_apply.default(input, max, ones, dim, max.dtype)
    return ((grad_sum * exponentials).to(input.dtype),)


def _apply_formula(ctx: Any, grad_output: torch.Tensor) -> tuple[Any, ...]:
    (output, sum), (dim, dtype) = ctx.saved_tensors, ctx.settings
    product = grad_output.to(sum.dtype) * output.to(sum.dtype)
    total = product.sum(dim, keepdim=True)
    return product.to(dtype), -total, -total / sum


register_fake("softmax_stats", _fake_stats)
register_fake("softmax_apply", _fake_apply)
register_autograd("softmax_stats", _stats_formula, Saved(["input", "max"], ["dim"], ["max"]))
register_autograd("softmax_apply", _apply_formula, Saved([RESULT, "sum"], ["dim", "input.dtype"]))
vmap.register_rows("softmax_stats")
vmap.register_rows("softmax_apply")
