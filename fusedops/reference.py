"""What the ops compute, in plain PyTorch and float64: the definition for tests and docs."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def softmax(input: torch.Tensor, dim: int) -> torch.Tensor:
    e = (input.double() - input.double().amax(dim, keepdim=True)).exp()
    return e / e.sum(dim, keepdim=True)


def log_softmax(input: torch.Tensor, dim: int) -> torch.Tensor:
    shifted = input.double() - input.double().amax(dim, keepdim=True)
    return shifted - shifted.exp().sum(dim, keepdim=True).log()


def layer_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    dims = tuple(range(-len(normalized_shape), 0))
    centered = input.double() - input.double().mean(dims, keepdim=True)
    normalized = centered * (centered.square().mean(dims, keepdim=True) + eps).rsqrt()
    weighted = normalized if weight is None else normalized * weight.double()
    return weighted if bias is None else weighted + bias.double()
