"""A small transformer block, written with torch's modules or with ours."""

from __future__ import annotations

import math

import torch
from torch import nn

import fusedops

WIDTH, HEADS, LENGTH = 16, 4, 8


class Norms(nn.Module):
    """The block's norms and its softmax, as torch has them."""

    norm, rms_norm = nn.LayerNorm, nn.RMSNorm

    @staticmethod
    def attend(scores: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return scores.masked_fill(hidden, -math.inf).softmax(-1)


class OurNorms(Norms):
    norm, rms_norm = fusedops.nn.LayerNorm, fusedops.nn.RMSNorm

    @staticmethod
    def attend(scores: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return fusedops.masked_softmax(scores, causal=True)


class Block(nn.Module):
    """Attention that computes its scores, and a feed-forward layer, with residual norms."""

    def __init__(self, parts: type[Norms] = Norms) -> None:
        super().__init__()
        self.attend = parts.attend
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norm1, self.norm2 = parts.norm(WIDTH), parts.rms_norm(WIDTH)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        # Heads come first: torch 2.10 cannot multiply DTensors that are sharded between two others.
        q, k, v = (
            part(x).unflatten(-1, (-1, WIDTH // HEADS)).permute(2, 0, 1, 3)
            for part in (self.q, self.k, self.v)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(WIDTH // HEADS)
        mixed = (self.attend(scores, hidden) @ v).permute(1, 2, 0, 3).flatten(2)
        x = self.norm1(x + self.out(mixed))
        return self.norm2(x + self.down(torch.relu(self.up(x))))
