"""LayerNorm, backward: the gradients of weight, bias and input.

The primitives compute the statistics again, because no kernel has saved them.
"""

from __future__ import annotations

import sys

import torch
from comparison import EPS, KernelTest, Shapes, main
from torch import Tensor

Gradients = tuple[Tensor, Tensor, Tensor]


def draw(shapes: Shapes) -> tuple[Tensor, ...]:
    batch, length = shapes.batch_and_length()
    rows, width = batch * length, shapes.width()
    x, grad_output = shapes.uniform(rows, width), shapes.uniform(rows, width)
    gamma, beta = shapes.uniform(width), shapes.uniform(width)
    _, mean, rstd = torch.native_layer_norm(x, [width], gamma, beta, EPS)
    return grad_output, x, mean, rstd, gamma, beta


def primitives(
    grad_output: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, *parameters
) -> Gradients:
    gamma, _ = parameters
    mean = x.mean(-1, keepdim=True)
    deviation = ((x - mean).square().mean(-1, keepdim=True) + EPS) ** 0.5
    normalized = (x - mean) / deviation
    scaled = grad_output * gamma
    total = scaled.sum(-1, keepdim=True)
    total = total + normalized * (scaled * normalized).sum(-1, keepdim=True)
    grad_input = (scaled - total / x.shape[-1]) / deviation
    return (grad_output * normalized).sum(0), grad_output.sum(0), grad_input


def eager(grad_output: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, *parameters) -> Gradients:
    grad_input, grad_gamma, grad_beta = torch.ops.aten.native_layer_norm_backward(
        grad_output, x, x.shape[-1:], mean, rstd, *parameters, [True, True, True]
    )
    return grad_gamma, grad_beta, grad_input


# The no-autograd variant is what a backward pass calls.
def ours(grad_output: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, *parameters) -> Gradients:
    grad_input, grad_gamma, grad_beta = torch.ops.fusedops._layer_norm_backward(
        grad_output, x, x.shape[-1:], mean, rstd, *parameters, [True, True, True]
    )
    return grad_gamma, grad_beta, grad_input


TEST = KernelTest(
    "layernorm_bw", draw, primitives, eager, ours, atol=1e-3, rtol=1e-2, asked_for=3.7
)

if __name__ == "__main__":
    sys.exit(main(TEST))
