"""Has models that need only torch: torch's own modules, and the code of well-known repositories."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tools.bench.zoo.model import (
    LAYERS,
    Inputs,
    Model,
    Size,
    features,
    padding,
    tokens,
)
from tools.bench.zoo.model import PLAIN as KIND

# The dropout probability in most of the repositories whose code is used here.
DROPOUT = 0.1


# --- variants of attention ------------------------------------------------------------------------


class Attention(nn.Module):
    """Multi-head self-attention. Subclasses compute its weights from the query and the key."""

    def __init__(self, size: Size, dropout: float) -> None:
        super().__init__()
        self.heads = size.heads
        self.project = nn.Linear(size.width, 3 * size.width)
        self.out = nn.Linear(size.width, size.width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (self.split(part) for part in self.project(x).chunk(3, dim=-1))
        weights = self.weights(query, key, mask)
        heads = torch.matmul(self.dropout(weights), value)
        output: Tensor = self.out(heads.transpose(1, 2).reshape(x.shape))
        return output

    def split(self, x: Tensor) -> Tensor:
        """Returns x, [batch, length, width], as [batch, heads, length, width of a head]."""
        heads: Tensor = x.unflatten(-1, (self.heads, -1))
        return heads.transpose(1, 2)

    def weights(self, query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
        """Returns the softmax of the scores. `mask`, [batch, length], is 1 at tokens, and 0 at
        padding."""
        raise NotImplementedError


class AnnotatedAttention(Attention):
    """Attention as the Annotated Transformer writes it
    (nlp.seas.harvard.edu/annotated-transformer): a mask fills the scores of padding with -1e9."""

    def weights(self, query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
        scores = scores.masked_fill(mask[:, None, None] == 0, -1e9)
        return scores.softmax(dim=-1)


class NanoGptAttention(Attention):
    """Attention as github.com/karpathy/nanoGPT writes it, which is causal by a buffer of ones below
    the diagonal."""

    bias: Tensor

    def __init__(self, size: Size, dropout: float) -> None:
        super().__init__(size, dropout)
        self.register_buffer("bias", torch.tril(torch.ones(size.length, size.length))[None, None])

    def weights(self, query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
        scores = (query @ key.transpose(-2, -1)) * (1.0 / math.sqrt(key.size(-1)))
        length = scores.size(-1)
        scores = scores.masked_fill(self.bias[:, :, :length, :length] == 0, float("-inf"))
        return F.softmax(scores, dim=-1)


class OldGpt2Attention(Attention):
    """Attention as GPT-2 has it in transformers before version 5. A `where` with the lowest number
    makes it causal, and a mask that is added hides padding."""

    bias: Tensor

    def __init__(self, size: Size, dropout: float) -> None:
        super().__init__(size, dropout)
        below = torch.tril(torch.ones(size.length, size.length, dtype=torch.bool))
        self.register_buffer("bias", below[None, None])

    def weights(self, query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
        scores = torch.matmul(query, key.transpose(-1, -2))
        scores = scores / torch.full([], query.size(-1) ** 0.5, dtype=scores.dtype)
        length, least = scores.size(-1), torch.finfo(scores.dtype).min
        hidden = torch.full([], least, dtype=scores.dtype)
        scores = torch.where(self.bias[:, :, :length, :length], scores, hidden)
        scores = scores + (1.0 - mask[:, None, None].to(scores.dtype)) * least
        return F.softmax(scores, dim=-1)


class MaxAttention(Attention):
    """A softmax written as several calls, with the maximum by `max`, which returns indices too."""

    def weights(self, query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
        scores: Tensor = torch.matmul(query, key.transpose(-1, -2)) * query.size(-1) ** -0.5
        exponentials = torch.exp(scores - scores.max(dim=-1, keepdim=True)[0])
        return exponentials / exponentials.sum(dim=-1, keepdim=True)


class AmaxAttention(Attention):
    """A softmax written as several calls, with the maximum by `amax`."""

    def weights(self, query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
        scores: Tensor = torch.matmul(query, key.transpose(-1, -2)) * query.size(-1) ** -0.5
        exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
        return exponentials / torch.sum(exponentials, dim=-1, keepdim=True)


# --- variants of norms ----------------------------------------------------------------------------


class Norm(nn.Module):
    """The parameters of a norm. Weight and bias are random, so that no two norms of a model are
    equal."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(width))
        self.bias = nn.Parameter(0.1 * torch.randn(width))


class NanoGptNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class AnnotatedNorm(Norm):
    """The norm of the Annotated Transformer, which divides by the unbiased deviation plus eps."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        std = x.std(-1, keepdim=True)
        return self.weight * (x - mean) / (std + 1e-6) + self.bias


class SqrtNorm(Norm):
    """LayerNorm as in the first PyTorch port of google-research/bert."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).pow(2).mean(-1, keepdim=True)
        x = (x - mean) / torch.sqrt(variance + 1e-12)
        return self.weight * x + self.bias


class RsqrtNorm(Norm):
    """LayerNorm with the deviations squared by `*` and scaled by `rsqrt`."""

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        variance = (centred * centred).mean(-1, keepdim=True)
        return centred * torch.rsqrt(variance + 1e-5) * self.weight + self.bias


class VarNorm(Norm):
    """LayerNorm with the biased variance of `Tensor.var`."""

    def forward(self, x: Tensor) -> Tensor:
        variance = x.var(dim=-1, keepdim=True, unbiased=False)
        x = (x - x.mean(dim=-1, keepdim=True)) / torch.sqrt(variance + 1e-5)
        return x * self.weight + self.bias


# --- a transformer of these variants --------------------------------------------------------------


class Layer(nn.Module):
    """A pre-norm layer: attention and a feed-forward network, each with a residual connection."""

    def __init__(self, size: Size, attention: Attention, norms: Sequence[nn.Module]) -> None:
        super().__init__()
        self.attention, self.dropout = attention, nn.Dropout(attention.dropout.p)
        self.attention_norm, self.feed_forward_norm = norms
        self.feed_forward = nn.Sequential(
            nn.Linear(size.width, 4 * size.width), nn.GELU(), nn.Linear(4 * size.width, size.width)
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), mask))
        output: Tensor = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        return output


class Transformer(nn.Module):
    """An embedding, a layer for each class in `attentions`, and a last norm. The classes in `norms`
    are used in turn."""

    def __init__(
        self,
        size: Size,
        dropout: float,
        attentions: Sequence[type[Attention]],
        norms: Sequence[type[nn.Module]],
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Parameter(0.1 * torch.randn(size.length, size.width))
        norm = (norm_class(size.width) for norm_class in cycle(norms))
        self.layers = nn.ModuleList(
            Layer(size, attention(size, dropout), [next(norm), next(norm)])
            for attention in attentions
        )
        self.norm = next(norm)

    def forward(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        x = self.tokens(input_ids) + self.positions[: input_ids.size(1)]
        for layer in self.layers:
            x = layer(x, mask)
        output: Tensor = self.norm(x)
        return output


def _transformer(attentions: Sequence[type[Attention]], norms: Sequence[type[nn.Module]]) -> Model:
    def build(size: Size, dropout: bool) -> nn.Module:
        return Transformer(size, _rate(dropout), attentions, norms)

    def inputs(size: Size, batch: int) -> Inputs:
        return {"input_ids": tokens(size, batch), "mask": padding(size, batch)}

    return Model(KIND, {"softmax": 2, "layer_norm": 5}, build, inputs)


def _rate(dropout: bool) -> float:
    return DROPOUT if dropout else 0.0


# --- torch's own modules --------------------------------------------------------------------------


def _layer_arguments(size: Size, dropout: bool) -> dict[str, Any]:
    return {
        "d_model": size.width,
        "nhead": size.heads,
        "dim_feedforward": 4 * size.width,
        "dropout": _rate(dropout),
        "batch_first": True,
    }


def _torch_transformer(size: Size, dropout: bool) -> nn.Module:
    return nn.Transformer(
        num_encoder_layers=LAYERS, num_decoder_layers=LAYERS, **_layer_arguments(size, dropout)
    )


def _source_and_target(size: Size, batch: int) -> Inputs:
    # Without tgt_is_causal the module looks at the mask's elements, which breaks Dynamo's graph.
    return {
        "src": features(size, batch),
        "tgt": features(size, batch),
        "tgt_mask": nn.Transformer.generate_square_subsequent_mask(size.length),
        "tgt_is_causal": True,
    }


def _torch_encoder(size: Size, dropout: bool) -> nn.Module:
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**_layer_arguments(size, dropout)), LAYERS
    )


def _torch_attention(size: Size, dropout: bool) -> nn.Module:
    return nn.MultiheadAttention(size.width, size.heads, _rate(dropout), batch_first=True)


def _self_attention(size: Size, batch: int) -> Inputs:
    x = features(size, batch)
    return {
        "query": x,
        "key": x,
        "value": x,
        "key_padding_mask": padding(size, batch) == 0,
        "need_weights": True,
    }


# nn.Transformer and nn.TransformerEncoder have no softmax, because they need no attention weights
# and call scaled_dot_product_attention.
PLAIN: dict[str, Model] = {
    "nn.Transformer": Model(KIND, {"layer_norm": 12}, _torch_transformer, _source_and_target),
    "nn.TransformerEncoder": Model(
        KIND, {"layer_norm": 4}, _torch_encoder, lambda size, batch: {"src": features(size, batch)}
    ),
    "nn.MultiheadAttention": Model(KIND, {"softmax": 1}, _torch_attention, _self_attention),
    "annotated_transformer": _transformer([AnnotatedAttention] * LAYERS, [AnnotatedNorm]),
    "nanogpt": _transformer([NanoGptAttention] * LAYERS, [NanoGptNorm]),
    "old_gpt2": _transformer([OldGpt2Attention] * LAYERS, [nn.LayerNorm]),
    "by_hand": _transformer([MaxAttention, AmaxAttention], [SqrtNorm, RsqrtNorm, VarNorm]),
}
