"""softmax and log_softmax as ops: fake kernels and derivative formulas.

Formulas: with y = softmax(x) and s = sum(g y), the gradient is y (g - s); with y = log_softmax(x)
it is g - exp(y) sum(g). Both are linear in g, so derivatives of every order follow from the ops and
a few torch functions.
"""

from __future__ import annotations

from typing import Any

import torch

from fusedops.ops import _checks
from fusedops.ops._autograd import register_autograd

ops = torch.ops.fusedops


def _contiguous_like(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_like(tensor, dtype=dtype, memory_format=torch.contiguous_format)


def _register_fakes(op: str) -> None:
    def forward(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        argument = "input" if dtype is None else "dtype"
        result = input.dtype if dtype is None else dtype
        _checks.check_dtype(op, argument, result, "convert it, or pass dtype=")
        _checks.check_dim(op, input, dim)
        return _contiguous_like(input, result)

    def backward(
        grad_output: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype
    ) -> torch.Tensor:
        name = f"{op}_backward"
        _checks.check_dtype(name, "output", output.dtype)
        _checks.check_like(name, "grad_output", grad_output, "output", output)
        _checks.check_dim(name, output, dim)
        return _contiguous_like(output, input_dtype)

    torch.library.register_fake(f"fusedops::{op}", forward)
    torch.library.register_fake(f"fusedops::_{op}", forward)
    torch.library.register_fake(f"fusedops::{op}_backward", backward)


def _register_forward_formula(op: str) -> None:
    def setup_context(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
        input, ctx.dim, _ = inputs
        ctx.input_dtype = input.dtype
        ctx.save_for_backward(output)

    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple:
        (output,) = ctx.saved_tensors
        run = getattr(ops, f"{op}_backward").default
        return run(grad_output, output, ctx.dim, ctx.input_dtype), None, None

    register_autograd(op, backward, setup_context)


def _save_backward_inputs(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
    grad_output, result, ctx.dim, _ = inputs
    ctx.save_for_backward(grad_output, result)


def _softmax_backward_formula(ctx: Any, cotangent: torch.Tensor) -> tuple:
    g, y = ctx.saved_tensors
    c = cotangent.to(y.dtype)
    to_g = ops.softmax_backward.default(c, y, ctx.dim, y.dtype)
    to_y = c * (g - (g * y).sum(ctx.dim, True)) - g * (c * y).sum(ctx.dim, True)
    return to_g, to_y, None, None


def _log_softmax_backward_formula(ctx: Any, cotangent: torch.Tensor) -> tuple:
    g, y = ctx.saved_tensors
    c = cotangent.to(y.dtype)
    probability = y.exp()
    to_g = c - (c * probability).sum(ctx.dim, True)
    to_y = -c * probability * g.sum(ctx.dim, True)
    return to_g, to_y, None, None


for _op in ("softmax", "log_softmax"):
    _register_fakes(_op)
    _register_forward_formula(_op)
register_autograd("softmax_backward", _softmax_backward_formula, _save_backward_inputs)
register_autograd("log_softmax_backward", _log_softmax_backward_formula, _save_backward_inputs)
