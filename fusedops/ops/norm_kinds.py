"""Describes how the kinds of norms differ, and lists the operators that are norms.

Let s be the scale of a row, rstd = 1 / s and n = (x - mean) rstd. Then a norm is n w + b, and the
gradient of x is rstd (g - mean(g) - n along_n), where g = dy w, and along_n is the derivative of s
in the direction of g. A kind says whether the norm subtracts a mean, without which there is no
mean(g) either, and which scale it divides by; fake kernels, derivatives, rules and translations use
that. csrc/norm_kinds.def has the kinds for C++.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from fusedops.ops.registration.libraries import OPS, OPS_WITH_VARIANT, function_name
from fusedops.ops.registration.signature import Signature

Dims = tuple[int, ...]
Factor = torch.Tensor | float


def _count(x: torch.Tensor, dims: Dims) -> int:
    return math.prod(x.shape[dim] for dim in dims)


class MeanSquare:
    """s = sqrt(mean of squares + eps), along_n = mean(g n). Other scales override all methods."""

    @staticmethod
    def rstd(squares: torch.Tensor, count: int, eps: float) -> torch.Tensor:
        """Returns 1 / s, from a row's sum of squares."""
        return (squares / count + eps).rsqrt()

    @staticmethod
    def differentiable_rstd(centered: torch.Tensor, dims: Dims, eps: float) -> torch.Tensor:
        """Returns 1 / s from the centered values. If eps > 0, autograd can differentiate it in a
        row of zeros too."""
        return (centered.square().mean(dims, keepdim=True) + eps).rsqrt()

    @staticmethod
    def along_n(sum: torch.Tensor, rstd: torch.Tensor, count: int, eps: float) -> torch.Tensor:
        """Returns the derivative of s in the direction of g, here mean(g n), from sum(g n). The
        module's docstring defines s, g and n."""
        return sum / count

    @staticmethod
    def factor_and_ratio(
        centered: torch.Tensor, rstd: torch.Tensor, dims: Dims, eps: float
    ) -> tuple[Factor, Factor]:
        """Returns along_n / mean(g n), and the ratio by which a second derivative divides along_n
        (``_second_derivative`` in norm_second_order.py)."""
        return 1.0, 1.0


class DeviationPlusEps(MeanSquare):
    """s = std + eps with the unbiased deviation std, along_n = sum(g n) s / ((N - 1) std). Where
    std is 0, s has no derivative; there along_n is 0, as in torch."""

    @staticmethod
    def rstd(squares: torch.Tensor, count: int, eps: float) -> torch.Tensor:
        return ((squares / max(count - 1, 0)).sqrt() + eps).reciprocal()

    @staticmethod
    def differentiable_rstd(centered: torch.Tensor, dims: Dims, eps: float) -> torch.Tensor:
        # At 0 the derivative of vector_norm is 0, as along_n is; that of sqrt(sum) would be NaN.
        norm = torch.linalg.vector_norm(centered, dim=dims, keepdim=True)
        degrees = max(_count(centered, dims) - 1, 0) or math.nan
        rstd: torch.Tensor = 1 / (norm / math.sqrt(degrees) + eps)
        return rstd

    @staticmethod
    def along_n(sum: torch.Tensor, rstd: torch.Tensor, count: int, eps: float) -> torch.Tensor:
        return sum / ((count - 1) * (1 - eps * rstd))

    @staticmethod
    def factor_and_ratio(
        centered: torch.Tensor, rstd: torch.Tensor, dims: Dims, eps: float
    ) -> tuple[Factor, Factor]:
        """Returns for each row N / ((N - 1) ratio), the factor of n mean(g n) in the gradient, and
        ratio = std rstd = std / (std + eps). For a constant row, where n is 0, it returns 0 and,
        because callers divide by the ratio, 1."""
        count = _count(centered, dims)
        std = (centered.square().sum(dims, keepdim=True) / (count - 1)).sqrt()
        ratio = std * rstd
        is_constant = std == 0
        factor = count / ((count - 1) * ratio)
        return factor.masked_fill(is_constant, 0), ratio.masked_fill(is_constant, 1)


class NormOrEps(MeanSquare):
    """s = max(norm, eps), along_n = sum(g n), or 0 in a row whose norm is at most eps, where s is
    constant."""

    @staticmethod
    def rstd(squares: torch.Tensor, count: int, eps: float) -> torch.Tensor:
        return squares.sqrt().clamp(min=eps).reciprocal()

    @staticmethod
    def differentiable_rstd(centered: torch.Tensor, dims: Dims, eps: float) -> torch.Tensor:
        norm = torch.linalg.vector_norm(centered, dim=dims, keepdim=True)
        # Where the norm is eps, masked_fill has the derivative 0, as along_n does; clamp has 1.
        rstd: torch.Tensor = 1 / norm.masked_fill(norm <= eps, eps)
        return rstd

    @staticmethod
    def along_n(sum: torch.Tensor, rstd: torch.Tensor, count: int, eps: float) -> torch.Tensor:
        return sum.masked_fill(rstd * eps >= 1, 0)

    @staticmethod
    def factor_and_ratio(
        centered: torch.Tensor, rstd: torch.Tensor, dims: Dims, eps: float
    ) -> tuple[Factor, Factor]:
        """Returns N, because along_n is a sum, and a ratio of 1. Where s is eps, which is where
        rstd is 1 / eps up to its rounding, 0 replaces N."""
        largest = 1 / eps if eps else math.inf
        is_constant = rstd >= largest * (1 - 2 * torch.finfo(rstd.dtype).eps)
        return torch.full_like(rstd, _count(centered, dims)).masked_fill(is_constant, 0), 1.0


class NormKind(NamedTuple):
    """Says whether a norm subtracts the mean of a row, and by which scale it divides."""

    has_mean: bool
    scale: type[MeanSquare]


#: Every kind, by the name of its operators.
KINDS = {
    "layer_norm": NormKind(True, MeanSquare),
    "rms_norm": NormKind(False, MeanSquare),
    "std_norm": NormKind(True, DeviationPlusEps),
    "l2_norm": NormKind(False, NormOrEps),
}


def kind_of(op: str) -> NormKind:
    return next(kind for name, kind in KINDS.items() if name in op)


class NormOp(Signature):
    """Holds what the schema of a norm's operator says about it.

    function: the name of the public operator; this one may be a variant with fewer results.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.kind = kind_of(name)
        self.function = function_name(name)
        self.is_backward = name.endswith("_backward")
        self.is_spatial, self.has_residual = "dim" in self.names, "p" in self.names
        #: The name of the tensor that is normalised.
        self.input = "sum" if self.is_backward and self.has_residual else "input"


_VARIANTS = {f"_{op}" for op in OPS_WITH_VARIANT}
#: The norms among the operators, without the no-autograd variants and without those of stacks.
NORM_OPS = [
    NormOp(op)
    for op in OPS
    if any(kind in op for kind in KINDS) and "stack_" not in op and op not in _VARIANTS
]
