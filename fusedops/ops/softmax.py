"""softmax and log_softmax as ops: fake kernels, derivative formulas, autocast and vmap rules.

Formulas: with y = softmax(x) and s = sum(g y), the gradient is y (g - s); with y = log_softmax(x)
it is g - exp(y) sum(g). Both are linear in g, so derivatives of every order follow from the ops and
a few torch functions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from fusedops.ops import checks
from fusedops.ops.registration import vmap
from fusedops.ops.registration.autocast import register_float32_output
from fusedops.ops.registration.autograd import gradient, register_autograd, through_dispatcher
from fusedops.ops.registration.mutation import register_mutation
from fusedops.ops.registration.saved import RESULT, Saved
from fusedops.ops.registration.signature import MaybeTensor
from fusedops.ops.registration.variants import register_fake

ops = torch.ops.fusedops
write_softmax: Callable[..., None] = through_dispatcher("softmax_")


def contiguous_like(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_like(tensor, dtype=dtype, memory_format=torch.contiguous_format)


# --- fake kernels, also those of masked_softmax -------------------------------------------------

#: Checks the arguments of the named op that not all softmaxes have, for a result of this dtype.
Check = Callable[[str, Any, torch.dtype], None]


def fake_forward(check: Check, op: str, call: Any) -> torch.Tensor:
    result = checks.result_dtype(op, call.input, call.dtype)
    check(op, call, result)
    return contiguous_like(call.input, result)


def fake_out(check: Check, op: str, call: Any) -> None:
    checks.check_given(op, "input", call.input)
    checks.check_out(op, call.out, call.input)
    check(op, call, call.out.dtype)


def fake_in_place(check: Check, op: str, call: Any) -> None:
    checks.check_dtype_of(op, "input", call.input)
    checks.check_distinct(op, "input", call.input)
    check(op, call, call.input.dtype)


def fake_gradient(op: str, call: Any, output: torch.Tensor) -> MaybeTensor:
    """Returns the result of a backward op that has no ``input_dtype`` if it writes into
    grad_output."""
    if "input_dtype" not in call._fields:
        checks.check_distinct(op, "grad_output", call.grad_output)
        return None
    checks.check_dtype(op, "input_dtype", call.input_dtype)
    return contiguous_like(output, call.input_dtype)


def _check_dim(op: str, call: Any, _: torch.dtype) -> None:
    checks.check_dim(op, call.input, call.dim)


def _fake_in_place(op: str, call: Any) -> None:
    checks.check_given(op, "input", call.input)  # the words for a call without any tensor
    fake_in_place(_check_dim, op, call)


def _fake_backward(op: str, call: Any) -> MaybeTensor:
    checks.check_dtype_of(op, "output", call.output)
    checks.check_like(op, "grad_output", call.grad_output, ("output", call.output))
    checks.check_dim(op, call.output, call.dim)
    return fake_gradient(op, call, call.output)


# --- derivatives --------------------------------------------------------------------------------


def _register_forward_formula(op: str) -> None:
    """Registers the derivative of ``op``, which its backward op computes from the output."""

    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[Any, ...]:
        (output,), (dim, dtype) = ctx.saved_tensors, ctx.settings
        # Autograd converts the gradient of an input of another dtype, such as float8.
        dtype = dtype if dtype in checks.FLOATING else output.dtype
        return (gradient(f"{op}_backward", grad_output, output, dim, dtype),)

    register_autograd(op, backward, Saved([RESULT], ["dim", "input.dtype"]))


class InplaceSoftmax(torch.autograd.Function):
    """Computes a softmax in place and records it for autograd; the formula needs only the result.
    ``InplaceSoftmax.apply(input, dim)`` overwrites and returns the input."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, dim: int) -> torch.Tensor:
        write_softmax(input, dim)
        ctx.dim = dim
        ctx.mark_dirty(input)
        ctx.save_for_backward(input)
        return input

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[Any, ...]:
        (output,) = ctx.saved_tensors
        return gradient("softmax_backward", grad_output, output, ctx.dim, output.dtype), None


def second_derivative(
    cotangent: torch.Tensor, g: torch.Tensor, y: torch.Tensor, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the gradients of g and y from a cotangent of y (g - sum(g y))."""
    to_g = ops.softmax_backward.default(cotangent, y, dim, y.dtype)
    to_y = cotangent * (g - (g * y).sum(dim, True)) - g * (cotangent * y).sum(dim, True)
    return to_g, to_y


def _softmax_backward_formula(ctx: Any, cotangent: torch.Tensor) -> tuple[Any, ...]:
    g, y = ctx.saved_tensors
    return second_derivative(cotangent.to(y.dtype), g, y, *ctx.settings)


def _log_softmax_backward_formula(ctx: Any, cotangent: torch.Tensor) -> tuple[Any, ...]:
    (g, y), (dim,) = ctx.saved_tensors, ctx.settings
    c = cotangent.to(y.dtype)
    probability = y.exp()
    to_g = c - (c * probability).sum(dim, True)
    to_y = -c * probability * g.sum(dim, True)
    return to_g, to_y


# --- registration -------------------------------------------------------------------------------

for _op in ("softmax", "log_softmax"):
    register_fake(_op, partial(fake_forward, _check_dim, _op))
    register_fake(f"{_op}_out", partial(fake_out, _check_dim, _op))
    register_fake(f"{_op}_", partial(_fake_in_place, f"{_op}_"))
    # The in-place backward op is for graphs in which nothing else uses grad_output.
    for _backward in (f"{_op}_backward", f"{_op}_backward_"):
        register_fake(_backward, partial(_fake_backward, _backward))
    register_mutation(f"{_op}_", functional=_op)
    register_mutation(f"{_op}_backward_")
    register_mutation(f"{_op}_out")
    _register_forward_formula(_op)
    register_float32_output(_op)
    for _variant in ("", "_", "_out", "_backward"):
        vmap.register_rows(f"{_op}{_variant}")
_saved = Saved(["grad_output", "output"], ["dim"])
register_autograd("softmax_backward", _softmax_backward_formula, _saved)
register_autograd("log_softmax_backward", _log_softmax_backward_formula, _saved)
