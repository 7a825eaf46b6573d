"""layer_norm as an op: fake kernels and derivative formulas.

With n = (x - mean) rstd, g = dy weight and the symmetric projection
P v = rstd (v - mean(v) - n mean(n v)), all means over the normalized dimensions:
dx = P g, dweight = sum(dy n), dbias = sum(dy) over the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fusedops.ops import _checks
from fusedops.ops._autograd import register_autograd

ops = torch.ops.fusedops

Shape = Sequence[int]
MaybeTensor = torch.Tensor | None


def _statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _check_arguments(
    op: str, input: torch.Tensor, shape: Shape, weight: MaybeTensor, bias: MaybeTensor
) -> None:
    _checks.check_dtype(op, "input", input.dtype)
    _checks.check_normalized_shape(op, input, shape)
    _checks.check_norm_parameter(op, "weight", weight, input, shape)
    _checks.check_norm_parameter(op, "bias", bias, input, shape)


def _fake_layer_norm(
    input: torch.Tensor, normalized_shape: Shape, weight: MaybeTensor, bias: MaybeTensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    _check_arguments("layer_norm", input, normalized_shape, weight, bias)
    _checks.check(
        all(size > 0 for size in normalized_shape),
        f"layer_norm: normalized_shape is {list(normalized_shape)}, wanted no dimension of size 0",
    )
    _checks.check(eps >= 0, f"layer_norm: eps is {eps:g}, wanted a value >= 0")
    rows = input.shape[: input.dim() - len(normalized_shape)]
    statistics_shape = [*rows, *(1 for _ in normalized_shape)]
    dtype = _statistics_dtype(input.dtype)
    return (
        torch.empty_like(input, memory_format=torch.contiguous_format),
        input.new_empty(statistics_shape, dtype=dtype),
        input.new_empty(statistics_shape, dtype=dtype),
    )


def _fake_layer_norm_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    normalized_shape: Shape,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: MaybeTensor,
    bias: MaybeTensor,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    _check_arguments("layer_norm_backward", input, normalized_shape, weight, bias)
    _checks.check_like("layer_norm_backward", "grad_output", grad_output, "input", input)
    wants_input, wants_weight, wants_bias = output_mask

    def grad(wanted: bool, shape: Shape, like: MaybeTensor) -> torch.Tensor:
        dtype = input.dtype if like is None else like.dtype
        return input.new_empty(shape if wanted else [0], dtype=dtype)

    return (
        grad(wants_input, input.shape, input),
        grad(wants_weight, normalized_shape, weight),
        grad(wants_bias, normalized_shape, bias),
    )


def _setup_layer_norm(ctx: Any, inputs: tuple, output: tuple) -> None:
    input, ctx.normalized_shape, weight, bias, _ = inputs
    _, mean, rstd = output
    ctx.mark_non_differentiable(mean, rstd)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(input, mean, rstd, weight, bias)


def _layer_norm_formula(ctx: Any, grad_output: MaybeTensor, *_: None) -> tuple:
    if grad_output is None:
        return None, None, None, None, None
    input, mean, rstd, weight, bias = ctx.saved_tensors
    needs_input, _, needs_weight, needs_bias, _ = ctx.needs_input_grad
    wanted = [needs_input, needs_weight, needs_bias]
    grads = ops.layer_norm_backward.default(
        grad_output, input, ctx.normalized_shape, mean, rstd, weight, bias, wanted
    )
    to_input, to_weight, to_bias = (g if w else None for g, w in zip(grads, wanted, strict=True))
    return to_input, None, to_weight, to_bias, None


def _setup_layer_norm_backward(ctx: Any, inputs: tuple, output: tuple) -> None:
    grad_output, input, ctx.normalized_shape, mean, rstd, weight, _, ctx.output_mask = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(grad_output, input, mean, rstd, weight)


def _layer_norm_backward_formula(ctx: Any, *cotangents: MaybeTensor) -> tuple:
    wanted = [c if m else None for c, m in zip(cotangents, ctx.output_mask, strict=True)]
    saved = ctx.saved_tensors
    by_grad_output, by_input, by_weight = _SecondDerivative.apply(
        len(ctx.normalized_shape), *wanted, *saved
    )
    return by_grad_output, by_input, None, None, None, by_weight, None, None


class _SecondDerivative(torch.autograd.Function):
    """What cotangents of dx, dweight and dbias give for dy, x and weight; no third order.

    A function of its own, so that a third derivative meets its ``backward`` and raises.
    ``torch.autograd.function.once_differentiable`` leaves ``torch.autograd.grad`` a way around.
    """

    @staticmethod
    def forward(ctx: Any, rank: int, *tensors: MaybeTensor) -> tuple:
        to_input, to_weight, to_bias, grad_output, input, mean, rstd, weight = tensors
        dims = tuple(range(-rank, 0))
        dtype = mean.dtype
        normalized = (input.to(dtype) - mean) * rstd
        by_grad_output, by_input, dy_projected = _second_derivative(
            normalized,
            rstd,
            grad_output.to(dtype),
            1.0 if weight is None else weight.to(dtype),
            [0.0 if c is None else c.to(dtype) for c in (to_input, to_weight, to_bias)],
            dims,
        )
        by_weight = None
        if weight is not None:
            by_weight = dy_projected.sum(tuple(range(input.dim() - rank))).to(weight.dtype)
        return by_grad_output.to(grad_output.dtype), by_input.to(input.dtype), by_weight

    @staticmethod
    def backward(ctx: Any, *_: Any) -> None:
        raise NotImplementedError(
            "layer_norm has derivatives of first and second order; a third was asked for. "
            "Use torch.nn.functional.layer_norm spelled out from primitives for it"
        )


def _second_derivative(
    n: torch.Tensor,
    rstd: torch.Tensor,
    dy: torch.Tensor,
    w: torch.Tensor | float,
    cotangents: list[torch.Tensor | float],
    dims: tuple[int, ...],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients for dy and x, and dy P a, of L = sum(a P g) + sum(b dy n) + sum(c dy).

    By g: P a. By n: h = b dy - rstd (a mean(n g) + g mean(n a)), carried to x by P. By the factor
    rstd of P: k = mean(g P a), carried to x by d rstd = -rstd^2 n / N.
    """
    a, b, c = cotangents
    a = a + torch.zeros_like(n)
    g = dy * w

    def along(v: torch.Tensor) -> torch.Tensor:
        return (v * n).mean(dims, keepdim=True)

    def project(v: torch.Tensor) -> torch.Tensor:
        return rstd * (v - v.mean(dims, keepdim=True) - n * along(v))

    projected = project(a)
    h = b * dy - rstd * (a * along(g) + g * along(a))
    k = (g * projected).mean(dims, keepdim=True)
    return w * projected + b * n + c, project(h) - rstd * k * n, dy * projected


torch.library.register_fake("fusedops::layer_norm", _fake_layer_norm)
torch.library.register_fake("fusedops::_layer_norm", _fake_layer_norm)
torch.library.register_fake("fusedops::layer_norm_backward", _fake_layer_norm_backward)
register_autograd("layer_norm", _layer_norm_formula, _setup_layer_norm)
register_autograd("layer_norm_backward", _layer_norm_backward_formula, _setup_layer_norm_backward)
