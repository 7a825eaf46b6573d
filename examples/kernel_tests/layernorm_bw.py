"""LayerNorm, backward: the gradients of weight, bias and input.

The primitives compute the statistics again, because no kernel has saved them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

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


def gradients_by(op: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """What computes the gradients by an operator, which returns the input's first."""

    def gradients(grad_output: Tensor, x: Tensor, *saved: Tensor) -> Gradients:
        grad_input, *of_parameters = op(grad_output, x, x.shape[-1:], *saved, [True, True, True])
        return *of_parameters, grad_input

    return gradients


eager = gradients_by(torch.ops.aten.native_layer_norm_backward)
# The no-autograd variant is what a backward pass calls.
ours = gradients_by(torch.ops.fusedops._layer_norm_backward)
TEST = KernelTest(
    "layernorm_bw", draw, primitives, eager, ours, atol=1e-3, rtol=1e-2, asked_for=3.7
)

if __name__ == "__main__":
    sys.exit(main(TEST))
