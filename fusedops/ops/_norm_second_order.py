"""Second derivatives of the norms, from torch's own ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

MaybeTensor = torch.Tensor | None


class SecondDerivative(torch.autograd.Function):
    """What cotangents of dx, dweight and dbias give for dy, x and weight; no third order.

    A function of its own, so that a third derivative meets its ``backward`` and raises.
    ``torch.autograd.function.once_differentiable`` leaves ``torch.autograd.grad`` a way around.
    """

    @staticmethod
    def forward(ctx: Any, op: str, rank: int, offset: float, *tensors: MaybeTensor) -> tuple:
        to_input, to_weight, to_bias, grad_output, input, mean, rstd, weight = tensors
        ctx.op = op
        dims = tuple(range(-rank, 0))
        dtype = rstd.dtype
        centered = input.to(dtype) if mean is None else input.to(dtype) - mean
        by_grad_output, by_input, dy_projected = _second_derivative(
            centered * rstd,
            rstd,
            grad_output.to(dtype),
            1.0 if weight is None else weight.to(dtype) + offset,
            [0.0 if c is None else c.to(dtype) for c in (to_input, to_weight, to_bias)],
            dims,
            centers=mean is not None,
        )
        by_weight = None
        if weight is not None:
            by_weight = dy_projected.sum(tuple(range(input.dim() - rank))).to(weight.dtype)
        return by_grad_output.to(grad_output.dtype), by_input.to(input.dtype), by_weight

    @staticmethod
    def backward(ctx: Any, *_: Any) -> None:
        raise NotImplementedError(
            f"{ctx.op} has derivatives of first and second order; a third was asked for. "
            "Use torch.nn.functional's spelled out from primitives for it"
        )


def _second_derivative(
    n: torch.Tensor,
    rstd: torch.Tensor,
    dy: torch.Tensor,
    w: torch.Tensor | float,
    cotangents: list[torch.Tensor | float],
    dims: tuple[int, ...],
    centers: bool,
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
        mean = v.mean(dims, keepdim=True) if centers else 0.0
        return rstd * (v - mean - n * along(v))

    projected = project(a)
    h = b * dy - rstd * (a * along(g) + g * along(a))
    k = (g * projected).mean(dims, keepdim=True)
    return w * projected + b * n + c, project(h) - rstd * k * n, dy * projected


def multiplier(
    like: torch.Tensor, normalized_shape: Sequence[int], p: float, seed: torch.Tensor
) -> torch.Tensor:
    """Of dropout: 1 / (1 - p) where the ops with this seed keep an element, else 0."""
    ones = torch.ones_like(like, dtype=torch.promote_types(like.dtype, torch.float32))
    _, dropped = torch.ops.fusedops._add_rms_norm.default(
        ones, torch.zeros_like(ones), normalized_shape, None, 0.0, True, 0.0, False, p, seed
    )
    return dropped
