"""Attention's softmax, backward: from the gradient of its output and the output."""

from __future__ import annotations

import sys

import torch
from comparison import KernelTest, Shapes, main
from torch import Tensor


def draw(shapes: Shapes) -> tuple[Tensor, Tensor]:
    sizes = shapes.scores()
    return shapes.uniform(*sizes), torch.softmax(shapes.uniform(*sizes), -1)


def primitives(grad_output: Tensor, output: Tensor) -> Tensor:
    total = (grad_output * output).sum(-1, keepdim=True)
    return output * (grad_output - total)


def eager(grad_output: Tensor, output: Tensor) -> Tensor:
    return torch.ops.aten._softmax_backward_data(grad_output, output, -1, output.dtype)


# The no-autograd variant is what a backward pass calls.
def ours(grad_output: Tensor, output: Tensor) -> Tensor:
    return torch.ops.fusedops._softmax_backward(grad_output, output, -1, output.dtype)


TEST = KernelTest("softmax_bw", draw, primitives, eager, ours, atol=1e-2, rtol=1e-3, asked_for=0.5)

if __name__ == "__main__":
    sys.exit(main(TEST))
