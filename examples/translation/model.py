"""A decoder-only transformer in plain PyTorch, and the same model with fusedops' operators.

Both have the same parameters, names and initial values, so that a checkpoint of one can be loaded
into the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fusedops

PAD = 0
IGNORED = -100  # the label of a position that is not scored

FusedKernel = Literal["true", "false", "compile"]
FUSED_KERNEL = get_args(FusedKernel)


@dataclass(frozen=True)
class ModelConfig:
    """The sizes of the model; a sequence has at most `positions` tokens."""

    vocabulary: int = 10_000
    embedding: int = 256
    heads: int = 8
    layers: int = 4
    feed_forward: int = 256
    positions: int = 40
    dropout: float = 0.1


class MultiHeadAttention(nn.Module):
    """Decomposed causal self-attention.

    Shape:
        x ``[batch, length, embedding]``, is_token ``[batch, length]``, bool; the result as x.

    Source: Vaswani et al., "Attention Is All You Need" (2017), section 3.2.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.scale = 1 / math.sqrt(config.embedding // config.heads)
        self.query, self.key, self.value, self.output = (
            nn.Linear(config.embedding, config.embedding) for _ in range(4)
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, is_token: Tensor) -> Tensor:
        query, key, value = (self.split(f(x)) for f in (self.query, self.key, self.value))
        weights = self.weights(query @ key.transpose(-2, -1), is_token[:, None, None, :])
        return self.output((weights @ value).transpose(1, 2).flatten(2))

    def split(self, x: Tensor) -> Tensor:
        """``[batch, length, embedding]`` to ``[batch, heads, length, embedding / heads]``."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def weights(self, scores: Tensor, is_token: Tensor) -> Tensor:
        """Scale, causal and padding mask, softmax, dropout."""
        length = scores.shape[-1]
        causal = torch.ones(length, length, dtype=torch.bool, device=scores.device).tril()
        scores = (scores * self.scale).masked_fill(~(causal & is_token), -math.inf)
        return self.dropout(scores.softmax(dim=-1))


class TransformerLayer(nn.Module):
    """Attention and a feed-forward network, each after a norm and with a residual connection.

    Shape: as :class:`MultiHeadAttention`.

    Source: Xiong et al., "On Layer Normalization in the Transformer Architecture" (2020), Pre-LN.
    """

    def __init__(self, config: ModelConfig, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.embedding)
        self.attention = attention
        self.feed_forward_norm = nn.LayerNorm(config.embedding)
        self.feed_forward = nn.Sequential(
            nn.Linear(config.embedding, config.feed_forward),
            nn.GELU(),
            nn.Linear(config.feed_forward, config.embedding),
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, is_token: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), is_token))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class DecoderLM(nn.Module):
    """Predicts each next token of ``source <sep> target <eos>``, padded at the end.

    Shape:
        tokens ``[batch, length]``, int64, padded with ``PAD``; the first of a row must not be
        ``PAD``. Logits ``[batch, length, vocabulary]``.
    """

    attention_type: type[MultiHeadAttention] = MultiHeadAttention

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocabulary, config.embedding)
        self.position_embedding = nn.Embedding(config.positions, config.embedding)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(
            TransformerLayer(config, self.attention_type(config)) for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.embedding)
        self.head = nn.Linear(config.embedding, config.vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.hidden_states(tokens))

    def embed(self, tokens: Tensor) -> Tensor:
        """The sum of token and position embedding."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.dropout(self.token_embedding(tokens) + self.position_embedding(positions))

    def hidden_states(self, tokens: Tensor) -> Tensor:
        """The input of the head, ``[batch, length, embedding]``."""
        x, is_token = self.embed(tokens), tokens != PAD
        for layer in self.layers:
            x = layer(x, is_token)
        return self.norm(x)

    def loss(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """The mean cross entropy in nats, over the labels that are not ``IGNORED``."""
        return F.cross_entropy(self(tokens).flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


class FusedMultiHeadAttention(MultiHeadAttention):
    """Attention with scale, both masks, softmax and dropout in one operator."""

    def weights(self, scores: Tensor, is_token: Tensor) -> Tensor:
        return fusedops.masked_softmax_dropout(
            scores,
            is_token,
            scale=self.scale,
            causal=True,
            p=self.dropout.p,
            training=self.training,
        )


class FusedDecoderLM(DecoderLM):
    """The model with each residual connection and the norm after it in one operator."""

    attention_type = FusedMultiHeadAttention

    def loss(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """The mean cross entropy from the statistics of each row, without log-probabilities.

        Of its 10,000 logits a token needs only their logsumexp and the logit of the label, whose
        gradient is sparse.
        """
        logits, is_scored = self(tokens), labels != IGNORED
        maximum, total = fusedops.softmax_stats(logits, dim=-1)
        label = torch.gather(logits, -1, labels.where(is_scored, 0).unsqueeze(-1), sparse_grad=True)
        losses = (maximum + total.log() - label).squeeze(-1)
        return losses.where(is_scored, 0).sum() / is_scored.sum()

    def hidden_states(self, tokens: Tensor) -> Tensor:
        x, is_token = self.embed(tokens), tokens != PAD
        first, *others = [layer.attention_norm for layer in self.layers] + [self.norm]
        normed = fusedops.layer_norm(x, first.normalized_shape, first.weight, first.bias, first.eps)
        for layer, next_norm in zip(self.layers, others, strict=True):
            branch = layer.attention(normed, is_token)
            normed, x = self.add_norm(branch, x, layer.feed_forward_norm)
            normed, x = self.add_norm(layer.feed_forward(normed), x, next_norm)
        return normed

    def add_norm(self, branch: Tensor, x: Tensor, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
        """The norm of dropout(branch) + x, and that sum."""
        return fusedops.add_layer_norm(
            branch.to(x.dtype),  # under autocast the branch is bfloat16, the residual float32
            x,
            norm.normalized_shape,
            norm.weight,
            norm.bias,
            norm.eps,
            p=self.dropout.p,
            training=self.training,
        )


def build_model(config: ModelConfig, fused_kernel: FusedKernel) -> DecoderLM:
    """The model with random weights, which are the same in every mode."""
    return (FusedDecoderLM if fused_kernel == "true" else DecoderLM)(config)


def training_loss(model: DecoderLM, fused_kernel: FusedKernel) -> Callable[..., Tensor]:
    """`model.loss` for training; compiled in the mode "compile"."""
    if fused_kernel == "compile":
        return torch.compile(model.loss, backend="fusedops")
    return model.loss
