"""What is timed: one direction of one operator on inputs of one size, as its providers compute it.

`operators` holds the operators themselves.
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
#: Returns a tensor or several.
Function = Callable[..., Any]


class Layout(Enum):
    """What the dimensions of an input are; operators of one layout are timed on the same shapes."""

    MATRIX = ("rows", "cols")
    LONG_ROWS = ("few rows", "many cols")
    STACK = ("tensors", "rows", "cols")
    SCORES = ("batch", "heads", "queries", "keys")

    @property
    def dimensions(self) -> int:
        return len(self.value)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as Inductor compiles it for one shape: the strongest form of it."""
    return torch.compile(function, fullgraph=True, dynamic=False)


def as_they_are(*inputs: Tensor) -> tuple[Tensor, ...]:
    """Inputs that need no preparation."""
    return inputs


@dataclass(frozen=True)
class Provider:
    """Times `function(*prepare(*inputs))`, the function alone.

    `prepare` adds what the provider's own forward saves for its backward.
    """

    function: Callable[..., Any]
    prepare: Callable[..., tuple[Tensor, ...]] = as_they_are

    def call(self, *inputs: Tensor) -> partial[Any]:
        """What is timed: the function, its arguments bound."""
        return partial(self.function, *self.prepare(*inputs))

    def compiled(self) -> Provider:
        """The provider that runs the same, compiled."""
        return replace(self, function=compiled(self.function))


def gradients(
    outputs: Tensor | tuple[Tensor, ...],
    leaves: Sequence[Tensor],
    grad: Tensor,
    retain_graph: bool = False,
) -> tuple[Tensor, ...]:
    """The gradients of one result or of several, each of which is given `grad`."""
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return torch.autograd.grad(outputs, leaves, [grad] * len(outputs), retain_graph=retain_graph)


@dataclass(frozen=True)
class Gradient:
    """Times the backward pass of `forward` as autograd runs it, from what the forward pass saved.

    The inputs are the gradient of the result, then those that `prepare` makes of the others, of
    which the first `differentiated` are differentiated, by default all. Where `forward` has several
    results each gets that gradient.
    """

    forward: Function
    differentiated: int | None = 1
    prepare: Callable[..., tuple[Tensor, ...]] = as_they_are

    def call(self, grad: Tensor, *inputs: Tensor) -> partial[Any]:
        """What is timed: the walk back through the graph that one forward pass left."""
        tensors = self.prepare(*inputs)
        leaves = [x.detach().requires_grad_() for x in tensors[: self.differentiated]]
        outputs = self.forward(*leaves, *tensors[len(leaves) :])
        return partial(self.gradients, outputs, leaves, grad)

    @staticmethod
    def gradients(
        outputs: Tensor | tuple[Tensor, ...], leaves: list[Tensor], grad: Tensor
    ) -> tuple[Tensor, ...]:
        """The graph is kept, to walk it again."""
        return gradients(outputs, leaves, grad, retain_graph=True)

    def compiled(self) -> Gradient:
        """The provider whose forward and backward passes are compiled together."""
        return replace(self, forward=compiled(self.forward))


@dataclass(frozen=True)
class Dropout:
    """What an operator drops: with probability `p`, some of what `survivors` computes."""

    p: float
    survivors: Callable[..., Tensor]


def _no_operands(case: Case) -> tuple[Tensor, ...]:
    return ()


@dataclass(frozen=True)
class Operator:
    """An operator as eager PyTorch spells it and as fusedops runs it.

    Args:
        eager, fused: functions of a tensor and the operands; the result, or the first of several,
            has the tensor's shape.
        operands: weights, masks, biases.
        layout: of its inputs; shapes with fewer dimensions are filled up with ones.
        moved: for each direction, how many tensors of the input's size must cross memory.
        backward: the providers of the backward pass where it is an operator of its own; by default
            autograd's of `eager` and of `fused`.
        differentiated: of how many of its arguments autograd's backward gives the gradient; None
            for all.
        split: what the functions are given in place of the tensor and the operands.
        dropout: where the result is random.

    "inductor" is not among the providers: it compiles what "eager" runs.
    """

    eager: Function
    fused: Function
    operands: Callable[[Case], tuple[Tensor, ...]] = _no_operands
    layout: Layout = Layout.MATRIX
    moved: dict[str, float] = field(default_factory=lambda: {FORWARD: 2, BACKWARD: 3})
    backward: dict[str, Provider] | None = None
    differentiated: int | None = 1
    split: Callable[..., tuple[Tensor, ...]] = as_they_are
    dropout: Dropout | None = None

    def providers(self, direction: str) -> Mapping[str, Provider | Gradient]:
        """Those who compete, eager first."""
        functions = {"eager": self.eager, "fusedops": self.fused}
        if direction == BACKWARD and self.backward:
            return self.backward
        return {name: self.provider(direction, function) for name, function in functions.items()}

    def provider(self, direction: str, function: Function) -> Provider | Gradient:
        """Who computes `function`, or its gradients."""
        if direction == FORWARD:
            return Provider(function, self.split)
        return Gradient(function, self.differentiated, self.split)

    def of_whole(self, function: Function) -> Function:
        """`function` of the tensor and the operands, whatever it takes them as."""
        return lambda *inputs: function(*self.split(*inputs))


@dataclass(frozen=True)
class Case:
    """One computation on inputs of one size; all its providers are timed side by side.

    `shape` is the input's: rows lie along the last dimension.
    """

    op: str
    operator: Operator = field(repr=False)
    direction: str
    dtype: torch.dtype
    shape: Shape
    device: str

    @property
    def rows(self) -> int:
        """How many rows the input has."""
        return math.prod(self.shape[:-1])

    @property
    def cols(self) -> int:
        """How long a row is."""
        return self.shape[-1]

    @property
    def dtype_name(self) -> str:
        """The dtype as the command line and the CSV spell it."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def bytes(self) -> int:
        """The least that has to be read and written; broadcast operands are too small to count."""
        return round(self.operator.moved[self.direction] * self.input_bytes)

    @property
    def input_bytes(self) -> int:
        """The size of the input."""
        return math.prod(self.shape) * self.dtype.itemsize

    def random(self, seed: int) -> Tensor:
        """A tensor of the input's shape and dtype, normally distributed."""
        generator = torch.Generator(self.device).manual_seed(seed)
        return torch.randn(self.shape, generator=generator, device=self.device).to(self.dtype)

    def inputs(self) -> tuple[Tensor, ...]:
        """What every provider gets: the gradient, for a backward pass, the input, the operands."""
        inputs = (self.random(seed=0), *self.operator.operands(self))
        return inputs if self.direction == FORWARD else (self.random(seed=1), *inputs)

    def __str__(self) -> str:
        return f"{self.op} {self.direction} {self.dtype_name} {'x'.join(map(str, self.shape))}"
