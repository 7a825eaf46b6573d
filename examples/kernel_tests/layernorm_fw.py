"""LayerNorm with weight and bias, forward."""

from __future__ import annotations

import sys

import torch.nn.functional as F
from comparison import EPS, KernelTest, Shapes, main
from torch import Tensor

import fusedops


def draw(shapes: Shapes) -> tuple[Tensor, Tensor, Tensor]:
    batch, length = shapes.batch_and_length()
    width = shapes.width()
    return shapes.uniform(batch * length, width), shapes.uniform(width), shapes.uniform(width)


def primitives(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    return gamma * ((x - mean) / (variance + EPS) ** 0.5) + beta


def eager(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    return F.layer_norm(x, gamma.shape, gamma, beta, EPS)


def ours(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    return fusedops.layer_norm(x, gamma.shape, gamma, beta, EPS)


TEST = KernelTest(
    "layernorm_fw", draw, primitives, eager, ours, atol=1e-2, rtol=1e-3, asked_for=15.8
)

if __name__ == "__main__":
    sys.exit(main(TEST))
