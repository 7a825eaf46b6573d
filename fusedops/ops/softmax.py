"""softmax and log_softmax as ops: fake kernels, derivative formulas, autocast and vmap rules.

Formulas: with y = softmax(x) and s = sum(g y), the gradient is y (g - s); with y = log_softmax(x)
it is g - exp(y) sum(g). Both are linear in g, so derivatives of every order follow from the ops and
a few torch functions.
"""

from __future__ import annotations

from typing import Any

import torch

from fusedops.ops import checks
from fusedops.ops.registration import vmap
from fusedops.ops.registration.autocast import register_float32_output
from fusedops.ops.registration.autograd import gradient, register_autograd
from fusedops.ops.registration.mutation import register_mutation
from fusedops.ops.registration.variants import register_fake

ops = torch.ops.fusedops


def contiguous_like(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_like(tensor, dtype=dtype, memory_format=torch.contiguous_format)


def _check_backward(op: str, call: Any) -> None:
    checks.check_dtype_of(op, "output", call.output)
    checks.check_like(op, "grad_output", call.grad_output, ("output", call.output))
    checks.check_dim(op, call.output, call.dim)


def _register_fakes(op: str) -> None:
    """Registers the fake kernels of ``op``, of the form with ``out`` and of the backward op."""

    def forward(call: Any) -> torch.Tensor:
        result = checks.result_dtype(op, call.input, call.dtype)
        checks.check_dim(op, call.input, call.dim)
        return contiguous_like(call.input, result)

    def backward(call: Any) -> torch.Tensor:
        name = f"{op}_backward"
        _check_backward(name, call)
        checks.check_dtype(name, "input_dtype", call.input_dtype)
        return contiguous_like(call.output, call.input_dtype)

    def forward_out(call: Any) -> None:
        checks.check_given(op, "input", call.input)
        checks.check_out(op, call.out, call.input)
        checks.check_dim(op, call.input, call.dim)

    register_fake(op, forward)
    register_fake(f"{op}_out", forward_out)
    register_fake(f"{op}_backward", backward)


def _register_in_place(op: str) -> None:
    """Registers the ops that write into an argument. The fake kernel of the one with ``out`` is in
    _register_fakes. The in-place backward op, which overwrites grad_output, is for graphs in which
    nothing else uses that gradient."""

    def forward(call: Any) -> None:
        checks.check_dtype_of(f"{op}_", "input", call.input)
        checks.check_distinct(f"{op}_", "input", call.input)
        checks.check_dim(f"{op}_", call.input, call.dim)

    def backward(call: Any) -> None:
        name = f"{op}_backward_"
        _check_backward(name, call)
        checks.check_distinct(name, "grad_output", call.grad_output)

    register_fake(f"{op}_", forward)
    register_fake(f"{op}_backward_", backward)
    register_mutation(f"{op}_", functional=op)
    register_mutation(f"{op}_backward_")
    register_mutation(f"{op}_out")


def _register_forward_formula(op: str) -> None:
    """Registers the derivative of ``op``, which its backward op computes from the output."""

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        input, ctx.dim, _ = inputs
        ctx.input_dtype = input.dtype
        ctx.save_for_backward(output)

    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[Any, ...]:
        (output,) = ctx.saved_tensors
        grad = gradient(f"{op}_backward", grad_output, output, ctx.dim, ctx.input_dtype)
        return (grad,)

    register_autograd(op, backward, setup_context)


class InplaceSoftmax(torch.autograd.Function):
    """Computes a softmax in place and records it for autograd; the formula needs only the result.
    ``InplaceSoftmax.apply(input, dim)`` overwrites and returns the input."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, dim: int) -> torch.Tensor:
        ops.softmax_.default(input, dim)
        ctx.dim = dim
        ctx.mark_dirty(input)
        ctx.save_for_backward(input)
        return input

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[Any, ...]:
        (output,) = ctx.saved_tensors
        return gradient("softmax_backward", grad_output, output, ctx.dim, output.dtype), None


def _save_backward_inputs(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    grad_output, result, ctx.dim, _ = inputs
    ctx.save_for_backward(grad_output, result)


def second_derivative(
    cotangent: torch.Tensor, g: torch.Tensor, y: torch.Tensor, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the gradients of g and y from a cotangent of y (g - sum(g y))."""
    to_g = ops.softmax_backward.default(cotangent, y, dim, y.dtype)
    to_y = cotangent * (g - (g * y).sum(dim, True)) - g * (cotangent * y).sum(dim, True)
    return to_g, to_y


def _softmax_backward_formula(ctx: Any, cotangent: torch.Tensor) -> tuple[Any, ...]:
    g, y = ctx.saved_tensors
    return second_derivative(cotangent.to(y.dtype), g, y, ctx.dim)


def _log_softmax_backward_formula(ctx: Any, cotangent: torch.Tensor) -> tuple[Any, ...]:
    g, y = ctx.saved_tensors
    c = cotangent.to(y.dtype)
    probability = y.exp()
    to_g = c - (c * probability).sum(ctx.dim, True)
    to_y = -c * probability * g.sum(ctx.dim, True)
    return to_g, to_y


for _op in ("softmax", "log_softmax"):
    _register_fakes(_op)
    _register_in_place(_op)
    _register_forward_formula(_op)
    register_float32_output(_op)
    for _variant in ("", "_", "_out", "_backward"):
        vmap.register_rows(f"{_op}{_variant}")
register_autograd("softmax_backward", _softmax_backward_formula, _save_backward_inputs)
register_autograd("log_softmax_backward", _log_softmax_backward_formula, _save_backward_inputs)
