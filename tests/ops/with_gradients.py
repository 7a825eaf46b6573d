"""The results of operators and of their backward operators, called one after the other."""

from __future__ import annotations

from collections.abc import Callable

import torch
from norm_kinds import kind_of
from torch import Tensor

import fusedops

ops = torch.ops.fusedops


def softmax_with_gradient(
    op: str, x: Tensor, grad: Tensor, dim: int = -1, dtype: torch.dtype | None = None
) -> list[Tensor]:
    y = getattr(ops, op)(x, dim, dtype)
    return [y, getattr(ops, f"{op}_backward")(grad.to(y.dtype), y, dim, x.dtype)]


def norm_with_gradients(
    op: str, x: Tensor, grad: Tensor, w: Tensor, b: Tensor, eps: float = 1e-5
) -> list[Tensor]:
    """The output, the statistics, and the gradients of the input and of the parameters."""
    shape, parameters = list(w.shape), (w, b)[: 1 + kind_of(op).has_mean]
    y, *statistics = getattr(ops, op)(x, shape, *parameters, eps)
    given = (grad, x, shape, *statistics, *parameters, [True] * (1 + len(parameters)))
    settings = [eps] if op in ("std_norm", "l2_norm") else []
    return [y, *statistics, *getattr(ops, f"{op}_backward")(*given, *settings)]


def backward(
    x: Tensor, w: Tensor, b: Tensor, grad: Tensor, norm: Callable = fusedops.layer_norm
) -> list[Tensor]:
    """The gradients of a norm, by autograd."""
    leaves = [t.detach().clone().requires_grad_() for t in (x, w, b)]
    norm(leaves[0], w.shape, leaves[1], leaves[2]).backward(grad)
    return [leaf.grad for leaf in leaves]
