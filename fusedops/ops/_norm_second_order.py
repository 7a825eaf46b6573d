"""Second derivatives of the norms, from torch's own ops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

MaybeTensor = torch.Tensor | None


def sum_of_rows(tensor: torch.Tensor, rank: int) -> torch.Tensor:
    """The sum over all but the last ``rank`` dimensions. Given none, torch sums over all."""
    rows = tuple(range(tensor.dim() - rank))
    return tensor.sum(rows) if rows else tensor


class SecondDerivative(torch.autograd.Function):
    """What cotangents of dx, dweight and dbias give for dy, x and weight; no third order.

    A function of its own, so that a third derivative meets its ``backward`` and raises.
    ``torch.autograd.function.once_differentiable`` leaves ``torch.autograd.grad`` a way around.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        op: str,
        rank: int,
        offset: float,
        to_input: MaybeTensor,
        to_weight: MaybeTensor,
        to_bias: MaybeTensor,
        grad_output: torch.Tensor,
        input: torch.Tensor,
        mean: MaybeTensor,
        rstd: torch.Tensor,
        weight: MaybeTensor,
    ) -> tuple[MaybeTensor, ...]:
        dims = tuple(range(-rank, 0))
        dtype = rstd.dtype
        centered = input.to(dtype) if mean is None else input.to(dtype) - mean
        scale, kept = _std_scale(centered, rstd, dims) if op == "std_norm" else (1.0, 1.0)
        by_grad_output, by_input, dy_projected = _second_derivative(
            _Projection(centered * rstd, rstd, dims, mean is not None, scale, kept),
            grad_output.to(dtype),
            1.0 if weight is None else weight.to(dtype) + offset,
            [0.0 if c is None else c.to(dtype) for c in (to_input, to_weight, to_bias)],
        )
        by_weight = None
        if weight is not None:
            by_weight = sum_of_rows(dy_projected, rank).to(weight.dtype)
        return by_grad_output.to(grad_output.dtype), by_input.to(input.dtype), by_weight

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        ctx.op = inputs[0]

    @staticmethod
    def backward(ctx: Any, *_: Any) -> None:
        raise NotImplementedError(
            f"{ctx.op} has derivatives of first and second order; a third was asked for. "
            "Use torch.nn.functional's spelled out from primitives for it"
        )


class _Projection(NamedTuple):
    """P v = rstd (v - mean(v) - n along(v)), where along(v) = scale mean(n v); mean(v) = 0 unless P
    centers.

    scale and kept are 1, but where rstd is 1 / (std + eps): of :func:`_std_scale`.
    """

    n: torch.Tensor
    rstd: torch.Tensor
    dims: tuple[int, ...]
    centers: bool
    scale: torch.Tensor | float
    kept: torch.Tensor | float

    def along(self, v: torch.Tensor) -> torch.Tensor:
        return self.scale * (v * self.n).mean(self.dims, keepdim=True)

    def __call__(self, v: torch.Tensor, kept: torch.Tensor | float = 1.0) -> torch.Tensor:
        mean = v.mean(self.dims, keepdim=True) if self.centers else 0.0
        return self.rstd * (v - mean - self.n * self.along(v) / kept)


def _std_scale(
    centered: torch.Tensor, rstd: torch.Tensor, dims: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """N / ((N - 1) kept) and kept = std rstd. Of a row whose std is 0, which has no derivative
    there, 0 and 1: its gradient is 0, as in torch."""
    count = math.prod(centered.shape[dim] for dim in dims)
    std = (centered.square().sum(dims, keepdim=True) / (count - 1)).sqrt()
    kept = std * rstd
    is_constant = std == 0
    scale = count / ((count - 1) * kept)
    return scale.masked_fill(is_constant, 0), kept.masked_fill(is_constant, 1)


def _second_derivative(
    project: _Projection,
    dy: torch.Tensor,
    w: torch.Tensor | float,
    cotangents: list[torch.Tensor | float],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients for dy and x, and dy P a, of L = sum(a P g) + sum(b dy n) + sum(c dy).

    By g: P a. By n: h = b dy - rstd (a along(g) + g along(a)), carried to x by P. By the factors
    rstd and rstd scale / N of P, the latter 1 / ((N - 1) std) where kept is not 1: k = scale
    mean(g P' a), in P' along(a) / kept, carried to x by d rstd = -rstd^2 scale n / N.
    """
    n, rstd, dims, _, scale, kept = project
    a, b, c = cotangents
    a = a + torch.zeros_like(n)
    g = dy * w
    projected = project(a)
    h = b * dy - rstd * (a * project.along(g) + g * project.along(a))
    k = scale * (g * project(a, kept)).mean(dims, keepdim=True)
    return w * projected + b * n + c, project(h) - rstd * k * n, dy * projected


def multiplier(
    like: torch.Tensor, normalized_shape: Sequence[int], p: float, seed: MaybeTensor
) -> torch.Tensor:
    """What dropout multiplies by: 1 / (1 - p) where ops with this seed keep an element, else 0."""
    ones = torch.ones_like(like, dtype=torch.promote_types(like.dtype, torch.float32))
    dropped: torch.Tensor
    _, dropped = torch.ops.fusedops._add_rms_norm.default(
        ones, torch.zeros_like(ones), normalized_shape, None, 0.0, True, 0.0, False, p, seed
    )
    return dropped
