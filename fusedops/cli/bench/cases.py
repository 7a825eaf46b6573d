"""What can be timed: a table of operators, and for each the providers that compete on equal inputs.

A new operator is a new entry of OPS, a new competitor a new entry of a computation's `providers`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import fusedops

FORWARD, BACKWARD = "forward", "backward"
LAYER_NORM_EPS = 1e-5


@dataclass(frozen=True)
class Case:
    """One computation on a matrix of one size; all its providers are timed side by side."""

    op: str
    direction: str
    dtype: torch.dtype
    rows: int
    cols: int
    device: str

    @property
    def computation(self) -> Computation:
        """What is computed, and who can compute it."""
        return OPS[self.op][self.direction]

    @property
    def dtype_name(self) -> str:
        """The dtype as the command line and the CSV spell it."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def bytes(self) -> int:
        """The least that has to be read and written."""
        return self.computation.tensors_moved * self.rows * self.cols * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.op} {self.direction} {self.dtype_name} {self.rows}x{self.cols}"


def _inputs_alone(*inputs: Tensor) -> tuple[Tensor, ...]:
    return inputs


@dataclass(frozen=True)
class Provider:
    """Times `function(*prepare(*inputs))`, the function alone.

    `prepare` adds what the provider's own forward saves for its backward.
    """

    function: Callable[..., Any]
    prepare: Callable[..., tuple[Tensor, ...]] = _inputs_alone


@dataclass(frozen=True)
class Computation:
    """One direction of an operator.

    `tensors_moved` counts the matrices of the input's size that must cross memory.
    "inductor" is not in `providers`: it compiles what "eager" runs.
    """

    make_inputs: Callable[[Case], tuple[Tensor, ...]]
    tensors_moved: int
    providers: dict[str, Provider] = field(default_factory=dict)


def _random(case: Case, seed: int) -> Tensor:
    generator = torch.Generator(case.device).manual_seed(seed)
    matrix = torch.randn(case.rows, case.cols, generator=generator, device=case.device)
    return matrix.to(case.dtype)


def _weight_and_bias(case: Case) -> tuple[Tensor, Tensor]:
    weight = torch.linspace(0.5, 1.5, case.cols, device=case.device, dtype=case.dtype)
    return weight, weight - 1


def _softmax_family(name: str) -> dict[str, Computation]:
    """softmax or log_softmax: both save their output, and their backwards take equal arguments."""
    eager, fused = getattr(F, name), getattr(fusedops, name)
    eager_backward = getattr(torch.ops.aten, f"_{name}_backward_data").default
    fused_backward = getattr(torch.ops.fusedops, f"{name}_backward").default
    return {
        FORWARD: Computation(
            make_inputs=lambda case: (_random(case, seed=0),),
            tensors_moved=2,
            providers={
                "eager": Provider(lambda x: eager(x, dim=-1)),
                "fusedops": Provider(lambda x: fused(x, dim=-1)),
            },
        ),
        BACKWARD: Computation(
            make_inputs=lambda case: (_random(case, seed=1), eager(_random(case, seed=0), dim=-1)),
            tensors_moved=3,
            providers={
                "eager": Provider(lambda grad, y: eager_backward(grad, y, -1, y.dtype)),
                "fusedops": Provider(lambda grad, y: fused_backward(grad, y, -1, y.dtype)),
            },
        ),
    }


def _layer_norm_backward(forward: Callable[..., Any], backward: Callable[..., Any]) -> Provider:
    """A provider of all three gradients, from the statistics that its own forward saves."""

    def prepare(grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        _, mean, rstd = forward(x, x.shape[-1:], weight, bias, LAYER_NORM_EPS)
        return grad, x, mean, rstd, weight, bias

    def gradients(grad: Tensor, x: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
        return backward(grad, x, x.shape[-1:], *saved, [True, True, True])

    return Provider(gradients, prepare)


def _layer_norm() -> dict[str, Computation]:
    aten, ours = torch.ops.aten, torch.ops.fusedops
    return {
        FORWARD: Computation(
            make_inputs=lambda case: (_random(case, seed=0), *_weight_and_bias(case)),
            tensors_moved=2,
            providers={
                "eager": Provider(lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b)),
                "fusedops": Provider(lambda x, w, b: fusedops.layer_norm(x, x.shape[-1:], w, b)),
            },
        ),
        BACKWARD: Computation(
            make_inputs=lambda case: (
                _random(case, seed=1),
                _random(case, seed=0),
                *_weight_and_bias(case),
            ),
            tensors_moved=3,
            providers={
                "eager": _layer_norm_backward(
                    aten.native_layer_norm.default, aten.native_layer_norm_backward.default
                ),
                "fusedops": _layer_norm_backward(
                    ours.layer_norm.default, ours.layer_norm_backward.default
                ),
            },
        ),
    }


OPS: dict[str, dict[str, Computation]] = {
    "softmax": _softmax_family("softmax"),
    "log_softmax": _softmax_family("log_softmax"),
    "layer_norm": _layer_norm(),
}
