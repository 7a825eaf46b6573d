"""Defines what a benchmark measures. A case is one direction (forward or backward) of one operator
on inputs of one size. A provider is one way to compute a case, such as eager PyTorch or fusedops.

The operators themselves are in `operators.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import Tensor

FORWARD, BACKWARD = "forward", "backward"

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
    """Returns its arguments. This is the `prepare` of a provider that needs no preparation."""
    return inputs


@dataclass(frozen=True)
class Provider:
    """A way to compute a case: a call of `function` with the results of `prepare(*inputs)`."""

    function: Callable[..., Any]
    prepare: Callable[..., tuple[Tensor, ...]] = as_they_are

    def call(self, *inputs: Tensor) -> partial[Any]:
        """Returns the call that is timed: the function with its arguments bound."""
        return partial(self.function, *self.prepare(*inputs))

    def compiled(self) -> Provider:
        """Returns the provider that runs the compiled function."""
        return replace(self, function=compiled(self.function))


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
class Gradient:
    """A way to compute a case: autograd's backward pass of `forward`, without the forward pass.

    The first input is the incoming gradient, which each result of `forward` gets. `prepare`
    converts the other inputs to the arguments of `forward`. The first `differentiated` arguments
    get a gradient; None means all.
    """

    forward: Function
    differentiated: int | None = 1
    prepare: Callable[..., tuple[Tensor, ...]] = as_they_are

    def call(self, grad: Tensor, *inputs: Tensor) -> partial[Any]:
        """Returns the call that is timed: a backward pass through the graph of one forward pass."""
        tensors = self.prepare(*inputs)
        leaves = [x.detach().requires_grad_() for x in tensors[: self.differentiated]]
        outputs = self.forward(*leaves, *tensors[len(leaves) :])
        # retain_graph keeps the graph for the next call.
        return partial(gradients, outputs, leaves, grad, retain_graph=True)

    def compiled(self) -> Gradient:
        """Returns the provider whose forward and backward passes are compiled together."""
        return replace(self, forward=compiled(self.forward))


@dataclass(frozen=True)
class Dropout:
    """The dropout of an operator. `survivors(x, *operands)` is the operator's result without
    dropout. Each of its elements becomes zero with probability `p`, and is divided by 1 - p
    otherwise."""

    p: float
    survivors: Callable[..., Tensor]


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
        dropout: the dropout, if the result is random.

    "inductor" is not among the providers, because it is "eager" compiled.
    """

    eager: Function
    fused: Function
    operands: Callable[[Case], tuple[Tensor, ...]] = lambda case: ()
    layout: Layout = Layout.MATRIX
    moved: dict[str, float] = field(default_factory=lambda: {FORWARD: 2, BACKWARD: 3})
    differentiated: int | None = 1
    split: Callable[..., tuple[Tensor, ...]] = as_they_are
    dropout: Dropout | None = None

    def providers(self, direction: str) -> Mapping[str, Provider | Gradient]:
        """Maps the names of the providers to compare to the providers, eager first."""
        functions = {"eager": self.eager, "fusedops": self.fused}
        return {name: self.provider(direction, function) for name, function in functions.items()}

    def provider(self, direction: str, function: Function) -> Provider | Gradient:
        """Returns the provider that computes `function`, or for the backward pass its gradients."""
        if direction == FORWARD:
            return Provider(function, self.split)
        return Gradient(function, self.differentiated, self.split)

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

    def __str__(self) -> str:
        return f"{self.op} {self.direction} {self.dtype_name} {'x'.join(map(str, self.shape))}"
