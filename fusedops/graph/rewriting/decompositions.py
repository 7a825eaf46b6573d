"""Computes by separate calls what opaque calls of PyTorch compute, for `expand`."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import torch
import torch.nn.functional as F


def encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    in_proj_weight: torch.Tensor,
    in_proj_bias: torch.Tensor,
    out_proj_weight: torch.Tensor,
    out_proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm1_weight: torch.Tensor,
    norm1_bias: torch.Tensor,
    norm2_weight: torch.Tensor,
    norm2_bias: torch.Tensor,
    linear1_weight: torch.Tensor,
    linear1_bias: torch.Tensor,
    linear2_weight: torch.Tensor,
    linear2_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """Computes what aten._transformer_encoder_layer_fwd does, by the separate calls that torch
    makes in training, but without dropout. The parameters are those of the ATen op, in its
    order."""
    norm1, norm2 = (
        partial(F.layer_norm, normalized_shape=(embed_dim,), weight=weight, bias=bias, eps=eps)
        for weight, bias in ((norm1_weight, norm1_bias), (norm2_weight, norm2_bias))
    )

    def attend(x: torch.Tensor) -> torch.Tensor:
        heads = F.linear(x, in_proj_weight, in_proj_bias).unflatten(-1, (3, num_heads, -1))
        query, key, values = heads.permute(2, 0, 3, 1, 4).unbind(0)
        return F.linear(
            _masked_attention(query, key, values, mask, mask_type).transpose(1, 2).flatten(2),
            out_proj_weight,
            out_proj_bias,
        )

    def feed_forward(x: torch.Tensor) -> torch.Tensor:
        hidden = F.linear(x, linear1_weight, linear1_bias)
        hidden = F.gelu(hidden) if use_gelu else F.relu(hidden)
        return F.linear(hidden, linear2_weight, linear2_bias)

    if norm_first:
        src = src + attend(norm1(src))
        return src + feed_forward(norm2(src))
    src = norm1(src + attend(src))
    return norm2(src + feed_forward(src))


def _masked_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    mask_type: int | None,
) -> torch.Tensor:
    """Computes multi-head attention. The mask has the shape [batch, keys] if `mask_type` is 1, and
    otherwise one that broadcasts to the scores."""
    if mask is None:
        return F.scaled_dot_product_attention(query, key, values)
    # The mask hides keys where it is not zero. A query that sees no key gets NaN from this softmax,
    # while SDPA would give it zeros.
    hidden = mask.to(torch.bool)
    hidden = hidden[:, None, None, :] if mask_type == 1 else hidden
    scores = torch.matmul(query * query.shape[-1] ** -0.5, key.transpose(-2, -1))
    return torch.matmul(scores.masked_fill(hidden, float("-inf")).softmax(-1), values)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Computes what F.scaled_dot_product_attention does on a CPU with dropout: scores of 16-bit
    inputs are float32, unless `torch.backends.cuda` allows less, and a query that sees no key gets
    zeros. Autocast converts the inputs and a mask of numbers, but nothing inside.

    Source: `_scaled_dot_product_attention_math` in ATen's native/transformers/attention.cpp.
    """
    with ExitStack() as stack:
        if torch.is_autocast_enabled("cpu"):
            query, key, value = map(_lowered, (query, key, value))
            attn_mask = None if attn_mask is None else _lowered(attn_mask)
            stack.enter_context(torch.autocast("cpu", enabled=False))
        dtype = query.dtype
        if dtype.itemsize == 2 and not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed():
            query, key, value = query.float(), key.float(), value.float()
        if enable_gqa:
            heads = query.shape[-3]
            key, value = (
                tensor.repeat_interleave(heads // tensor.shape[-3], -3) for tensor in (key, value)
            )
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        scores = torch.matmul(query, key.transpose(-2, -1)) * scale
        if is_causal:
            ones = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
            attn_mask = ones.tril()
        weights = F.dropout(_safe_softmax(scores, attn_mask), dropout_p)
        return torch.matmul(weights, value).to(dtype)


def _lowered(tensor: torch.Tensor) -> torch.Tensor:
    """Returns what autocast makes of an argument of SDPA."""
    if tensor.dtype in (torch.bool, torch.float64):
        return tensor
    return tensor.to(torch.get_autocast_dtype("cpu"))


def _safe_softmax(scores: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Returns the softmax of the scores that a bool mask shows, or of the sum of scores and mask. A
    row of -inf alone becomes zeros."""
    if mask is not None:
        is_bool = mask.dtype == torch.bool
        scores = scores.masked_fill(~mask, float("-inf")) if is_bool else scores + mask
    weights: torch.Tensor = torch.ops.aten._safe_softmax(scores, -1)
    return weights
