"""Reference implementations of the ops in plain PyTorch and float64, for tests and docs. DTensors
draw the random numbers of dropout by ``philox``."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch


def softmax(input: torch.Tensor, dim: int) -> torch.Tensor:
    e = (input.double() - input.double().amax(dim, keepdim=True)).exp()
    return e / e.sum(dim, keepdim=True)


def log_softmax(input: torch.Tensor, dim: int) -> torch.Tensor:
    shifted = input.double() - input.double().amax(dim, keepdim=True)
    return shifted - shifted.exp().sum(dim, keepdim=True).log()


def masked_softmax(
    input: torch.Tensor,
    mask: torch.Tensor | None = None,
    scale: float = 1.0,
    diagonal: int | None = None,
    mask_value: float = -math.inf,
    bias: torch.Tensor | None = None,
    lower_diagonal: int | None = None,
    start: torch.Tensor | None = None,
    end: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """Computes the softmax of scaled, soft-capped and biased scores, where columns above
    ``diagonal``, below ``lower_diagonal``, before ``start`` and from ``end`` on are masked.
    ``sinks`` are one more column, which is left out."""
    visible = torch.ones(input.shape, dtype=torch.bool, device=input.device)
    visible = visible if diagonal is None else visible.tril(diagonal)
    visible = visible if lower_diagonal is None else visible.triu(lower_diagonal)
    column = torch.arange(input.shape[-1], device=input.device)
    visible = visible if start is None else visible & (column >= start[..., None])
    visible = visible if end is None else visible & (column < end[..., None])
    scores = input.double() * scale
    scores = scores if softcap is None else torch.tanh(scores / softcap) * softcap
    scores = scores if bias is None else scores + bias.double()
    if mask is not None and mask.dtype == torch.bool:
        visible = visible & mask
    elif mask is not None:
        scores = scores + mask.double()
    scores = scores.masked_fill(~visible, mask_value)
    if sinks is None:
        return softmax(scores, -1)
    column_of_sinks = sinks.double()[..., None].expand(*scores.shape[:-1], 1)
    return softmax(torch.cat([scores, column_of_sinks], -1), -1)[..., :-1]


def cross_entropy(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the loss and the logsumexp of each row, 0 for ignored rows. Rows are along the last
    dimension."""
    x = input.double() if softcap is None else torch.tanh(input.double() / softcap) * softcap
    counts, log_p = target != ignore_index, log_softmax(x, -1)
    classes = torch.where(counts, target, 0).long()
    loss = -log_p.gather(-1, classes[..., None])[..., 0]
    loss = (1 - label_smoothing) * loss - label_smoothing * log_p.mean(-1)
    loss = loss if weight is None else loss * weight.double()[classes]
    lse = (x - log_p)[..., 0]
    zeros = torch.zeros_like(loss)
    return torch.where(counts, loss + z_loss * lse**2, zeros), torch.where(counts, lse, zeros)


def philox(seed: int | torch.Tensor, rows: int | torch.Tensor, cols: int) -> torch.Tensor:
    """Returns the random 32-bit words of dropout, as int64 of shape [rows, cols]: Philox4x32-7 of
    Salmon et al. (2011). ``rows`` has the numbers of the rows, or is how many rows there are,
    numbered from 0."""
    numbers = torch.arange(rows) if isinstance(rows, int) else rows
    block = torch.arange(-(-cols // 4), device=numbers.device).expand(numbers.numel(), -1)
    row = numbers.unsqueeze(1).expand_as(block)
    c = [block, row & 0xFFFFFFFF, row >> 32, torch.zeros_like(row)]
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    for _ in range(7):
        a, b = _wide_product(c[0], 0xD2511F53), _wide_product(c[2], 0xCD9E8D57)
        c = [b[0] ^ c[1] ^ k0, b[1], a[0] ^ c[3] ^ k1, a[1]]
        k0, k1 = k0 + 0x9E3779B9 & 0xFFFFFFFF, k1 + 0xBB67AE85 & 0xFFFFFFFF
    return torch.stack(c, -1).flatten(1)[:, :cols]


def _wide_product(a: torch.Tensor, b: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the upper and the lower 32 bits of the product of two 32-bit numbers. ``b`` is split
    into halves of 16 bits, because the whole product could overflow int64."""
    low = a * (b & 0xFFFF)
    high = a * (b >> 16) + (low >> 16)
    return high >> 16, (high & 0xFFFF) << 16 | low & 0xFFFF


def layer_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Centers each row, and divides it by the root of its biased variance plus ``eps``."""
    dims = tuple(range(-len(normalized_shape), 0))
    centered = input.double() - input.double().mean(dims, keepdim=True)
    weighted = rms_norm(centered, normalized_shape, weight, eps)
    return weighted if bias is None else weighted + bias.double()


def spatial_layer_norm(
    input: torch.Tensor,
    dim: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> torch.Tensor:
    """Applies layer norm over one dimension."""
    moved = input.movedim(dim, -1)
    return layer_norm(moved, moved.shape[-1:], weight, bias, eps).movedim(-1, dim)


def spatial_rms_norm(
    input: torch.Tensor, dim: int, weight: torch.Tensor | None = None, eps: float = 1e-6
) -> torch.Tensor:
    """Applies RMS norm over one dimension."""
    moved = input.movedim(dim, -1)
    return rms_norm(moved, moved.shape[-1:], weight, eps).movedim(-1, dim)


def std_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> torch.Tensor:
    """Centers each row, and divides it by its unbiased standard deviation plus ``eps``."""
    dims = tuple(range(-len(normalized_shape), 0))
    x = input.double()
    std = x.std(dims, correction=1, keepdim=True)
    normalized = (x - x.mean(dims, keepdim=True)) / (std + eps)
    weighted = normalized if weight is None else normalized * weight.double()
    return weighted if bias is None else weighted + bias.double()


def rms_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> torch.Tensor:
    dims = tuple(range(-len(normalized_shape), 0))
    x = input.double()
    normalized = x * (x.square().mean(dims, keepdim=True) + eps).rsqrt()
    return normalized if weight is None else normalized * weight.double()


def l2_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float = 1e-12,
) -> torch.Tensor:
    """Divides each row by the root of its sum of squares, or by ``eps`` where that is larger."""
    dims = tuple(range(-len(normalized_shape), 0))
    x = input.double()
    normalized = x / x.square().sum(dims, keepdim=True).sqrt().clamp(min=eps)
    return normalized if weight is None else normalized * weight.double()
