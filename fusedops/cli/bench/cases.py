"""Defines what a benchmark measures. A case is one direction (forward or backward) of one operator
on inputs of one size. A provider is one way to compute a case, such as eager PyTorch or fusedops.

The operators themselves are in `operators.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import Tensor

FORWARD, BACKWARD = "forward", "backward"
DROPOUT = 0.1

Shape = tuple[int, ...]
#: A function that returns one or several tensors.
Function = Callable[..., Any]


class Layout(Enum):
    """The names of an input's dimensions. Operators of the same layout are timed on the same
    shapes."""

    MATRIX = ("rows", "cols")
    LONG_ROWS = ("few rows", "many cols")
    LOGITS = ("rows", "classes")
    STACK = ("tensors", "rows", "cols")
    IMAGES = ("images", "channels", "positions")
    SCORES = ("batch", "heads", "queries", "keys")
    HEADS = ("batch", "heads", "queries", "features")

    @property
    def dimensions(self) -> int:
        return len(self.value)

    @property
    def reduced(self) -> int:
        """Returns the dimension along which the elements of a row lie."""
        return 1 if self is Layout.IMAGES else -1


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function compiled with Inductor for static shapes, which gives the fastest code."""
    return torch.compile(function, fullgraph=True, dynamic=False)


def as_they_are(*inputs: Tensor) -> tuple[Tensor, ...]:
    """Returns its arguments. This is the `split` of most operators."""
    return inputs


def gradients(
    outputs: Tensor | tuple[Tensor, ...],
    leaves: Sequence[Tensor],
    grad: Tensor,
    retain_graph: bool = False,
) -> tuple[Tensor, ...]:
    """Returns the gradients of `leaves`, where each output has the incoming gradient `grad`."""
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return torch.autograd.grad(outputs, leaves, [grad] * len(outputs), retain_graph=retain_graph)


@dataclass(frozen=True)
class Operator:
    """An operator in eager PyTorch and in fusedops.

    Args:
        eager, fused: functions of a tensor and the operands. The result, or the first of several,
            has the tensor's shape, except for losses.
        operands: a function that computes the operands, which are weights, masks and biases.
        layout: the layout of the inputs. Shapes with fewer dimensions are filled up with ones.
        moved: direction -> how much memory must be read and written, in units of the input.
        differentiated: the number of arguments that get a gradient in autograd's backward; None for
            all.
        split: a function that converts the tensor and the operands to the arguments of `eager` and
            `fused`.
        survivors: a function that returns the result without dropout, if the operator has dropout.
            Each element of its result becomes zero with probability DROPOUT, and is divided by
            1 - DROPOUT otherwise.
    """

    eager: Function
    fused: Function
    operands: Callable[[Case], tuple[Tensor, ...]] = lambda case: ()
    layout: Layout = Layout.MATRIX
    moved: dict[str, float] = field(default_factory=lambda: {FORWARD: 2, BACKWARD: 3})
    differentiated: int | None = 1
    split: Callable[..., tuple[Tensor, ...]] = as_they_are
    survivors: Function | None = None

    def of_whole(self, function: Function) -> Function:
        """Returns a function of the tensor and the operands. It calls `function` with the arguments
        that `split` makes of them."""
        return lambda *inputs: function(*self.split(*inputs))


@dataclass(frozen=True)
class Case:
    """One computation on inputs of one size. All its providers are timed side by side.

    `shape` is that of the input. The operator's layout says along which dimension the rows lie.
    """

    op: str
    operator: Operator = field(repr=False)
    direction: str
    dtype: torch.dtype
    shape: Shape
    device: str

    @property
    def rows(self) -> int:
        """Returns the number of rows of the input."""
        return math.prod(self.shape) // self.cols

    @property
    def cols(self) -> int:
        """Returns the number of columns of the input."""
        return self.shape[self.operator.layout.reduced]

    @property
    def dtype_name(self) -> str:
        """Returns the dtype as the command line and the CSV spell it."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def columns(self) -> dict[str, Any]:
        """Returns the columns of a CSV that describe the case."""
        return {
            "op": self.op,
            "direction": self.direction,
            "dtype": self.dtype_name,
            "rows": self.rows,
            "cols": self.cols,
            "device": self.device,
        }

    @property
    def bytes(self) -> int:
        """Returns the bytes that must be read and written. Operands that are broadcast do not
        count, because they are small."""
        return round(self.operator.moved[self.direction] * self.input_bytes)

    @property
    def input_bytes(self) -> int:
        """Returns the size of the input in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def random(self, seed: int) -> Tensor:
        """Returns a tensor of the input's shape and dtype, normally distributed."""
        generator = torch.Generator(self.device).manual_seed(seed)
        return torch.randn(self.shape, generator=generator, device=self.device).to(self.dtype)

    def inputs(self) -> tuple[Tensor, ...]:
        """Returns the inputs of every provider: the incoming gradient if the direction is backward,
        then the input and the operands."""
        inputs = (self.random(seed=0), *self.operator.operands(self))
        if self.direction == FORWARD:
            return inputs
        grad = self.random(seed=1)
        if self.operator.layout is Layout.LOGITS:  # the result has one number for each row
            grad = grad.flatten(0, -2)[:, 0].contiguous()
        return grad, *inputs

    def call(self, function: Function, *inputs: Tensor) -> partial[Any]:
        """Returns the call that is timed, with its arguments bound: a call of `function`, which is
        one of the operator's, or a backward pass through the graph of one such call."""
        if self.direction == FORWARD:
            return partial(function, *self.operator.split(*inputs))
        grad, *others = inputs
        tensors = self.operator.split(*others)
        leaves = [x.detach().requires_grad_() for x in tensors[: self.operator.differentiated]]
        outputs = function(*leaves, *tensors[len(leaves) :])
        # retain_graph keeps the graph for the next call.
        return partial(gradients, outputs, leaves, grad, retain_graph=True)

    def __str__(self) -> str:
        return f"{self.op} {self.direction} {self.dtype_name} {'x'.join(map(str, self.shape))}"
