"""Second derivatives of the norms, composed of torch's own ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import torch

from fusedops.ops import dropout
from fusedops.ops.norm_kinds import Factor, kind_of

MaybeTensor = torch.Tensor | None


def sum_of_rows(tensor: torch.Tensor, rank: int) -> torch.Tensor:
    """Returns the sum over all but the last ``rank`` dimensions. Without dimensions to sum over it
    returns the tensor, where torch would sum over all."""
    rows = tuple(range(tensor.dim() - rank))
    return tensor.sum(rows) if rows else tensor


def normalized_rank(named: dict[str, Any]) -> int:
    """Returns how many dimensions an op normalises: one for a spatial norm."""
    return len(named.get("normalized_shape", [1]))


def with_dim_last(tensor: Any, dim: int | None) -> Any:
    """Moves ``dim``, unless it is None, to the end; a tensor without dimensions gets one. Returns
    None for None."""
    if tensor is None or dim is None:
        return tensor
    return tensor[None] if tensor.dim() == 0 else tensor.movedim(dim, -1)


def moved_back(moved: torch.Tensor, input: torch.Tensor, dim: int | None) -> torch.Tensor:
    """Undoes :func:`with_dim_last` for a result."""
    if dim is None:
        return moved
    return moved.squeeze(0) if input.dim() == 0 else moved.movedim(-1, dim)


class SecondDerivative(torch.autograd.Function):
    """Computes the gradients of dy, x and weight from cotangents of dx, dweight and dbias.

    It is an autograd function so that its ``backward`` and ``jvp``, third derivatives, raise.
    ``torch.autograd.function.once_differentiable`` is not enough: ``torch.autograd.grad`` can
    bypass it.
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
        eps: float = 0.0,
    ) -> tuple[MaybeTensor, ...]:
        dtype = rstd.dtype
        by_grad_output, by_input, dy_projected = _second_derivative(
            projection(op, input, mean, rstd, rank, eps),
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
    def backward(ctx: Any, *_: Any) -> NoReturn:
        raise NotImplementedError(
            f"{ctx.op} has derivatives of first and second order; a third was asked for. "
            "Compute the norm from torch's elementwise functions and means for it"
        )

    jvp = backward


class _Projection(NamedTuple):
    """Computes P v = rstd (v - mean(v) - n along_n(v)), where along_n(v) = factor mean(n v), and
    mean(v) is left out unless ``centers``.

    factor and ratio are those of the kind's scale (norm_kinds.py). A call with a ``ratio`` divides
    along_n(v) by it.
    """

    n: torch.Tensor
    rstd: torch.Tensor
    dims: tuple[int, ...]
    centers: bool
    factor: Factor
    ratio: Factor

    def along_n(self, v: torch.Tensor) -> torch.Tensor:
        return self.factor * (v * self.n).mean(self.dims, keepdim=True)

    def __call__(self, v: torch.Tensor, ratio: Factor = 1.0) -> torch.Tensor:
        mean = v.mean(self.dims, keepdim=True) if self.centers else 0.0
        return self.rstd * (v - mean - self.n * self.along_n(v) / ratio)


def projection(
    op: str,
    input: torch.Tensor,
    mean: MaybeTensor,
    rstd: torch.Tensor,
    rank: int,
    eps: float,
) -> _Projection:
    """Returns the projection of an op, where mean and rstd are the statistics of ``input``; mean is
    None for a norm that subtracts none."""
    dims = tuple(range(-rank, 0))
    centered = input.to(rstd.dtype) if mean is None else input.to(rstd.dtype) - mean
    factor, ratio = kind_of(op).scale.factor_and_ratio(centered, rstd, dims, eps)
    return _Projection(centered * rstd, rstd, dims, mean is not None, factor, ratio)


def _second_derivative(
    project: _Projection,
    dy: torch.Tensor,
    w: torch.Tensor | float,
    cotangents: list[torch.Tensor | float],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the gradients of L = sum(a P g) + sum(b dy n) + sum(c dy) for dy and x, and dy P a.

    a, b and c are the cotangents of dx, dweight and dbias; g = dy w. The derivative of L
    - for g is P a;
    - for n is h = b dy - rstd (a along_n(g) + g along_n(a)), which P maps to x;
    - for P's two coefficients, rstd, and rstd factor / N before n sum(n v), adds -rstd k n to the
      derivative for x, because d rstd = -rstd^2 factor n / N. Here k = factor mean(g P' a), and P'
      is P with along_n(a) / ratio in place of along_n(a), because for std_norm the second
      coefficient is 1 / ((N - 1) std).
    """
    n, rstd, dims, _, factor, ratio = project
    a, b, c = cotangents
    a = a + torch.zeros_like(n)
    g = dy * w
    projected = project(a)
    h = b * dy - rstd * (a * project.along_n(g) + g * project.along_n(a))
    k = factor * (g * project(a, ratio)).mean(dims, keepdim=True)
    return w * projected + b * n + c, project(h) - rstd * k * n, dy * projected


def multiplier(
    like: torch.Tensor, normalized_shape: Sequence[int], p: float, seed: MaybeTensor
) -> torch.Tensor:
    """Returns dropout's factor: 1 / (1 - p) where an op with this seed keeps an element, else 0."""
    rows = like.flatten(-len(normalized_shape))
    return dropout.multiplier(p, seed, rows).view_as(like)
