"""Attention's softmax over padded keys, forward."""

from __future__ import annotations

import sys

import torch
from comparison import KernelTest, Shapes, main
from torch import Tensor

import fusedops


def draw(shapes: Shapes) -> tuple[Tensor, Tensor]:
    batch, heads, queries, keys = shapes.scores()
    scores = shapes.uniform(batch, heads, queries, keys)
    return scores, shapes.padding(batch, keys)


def primitives(scores: Tensor, mask: Tensor) -> Tensor:
    masked = scores + mask
    exponentials = (masked - masked.amax(-1, keepdim=True)).exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


def eager(scores: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(scores + mask, -1)


TEST = KernelTest(
    "softmax_fw", draw, primitives, eager, fusedops.masked_softmax,
    atol=1e-3, rtol=1e-3, asked_for=6.5,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(TEST))
