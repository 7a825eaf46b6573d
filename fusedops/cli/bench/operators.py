"""Has the table of the operators that can be timed. A new operator is a new entry of OPERATORS.

A name such as `masked_softmax[causal]` is that of a variant of `masked_softmax`. The command line
selects it by either name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import fusedops
from fusedops.cli.bench.attention import ATTENTION
from fusedops.cli.bench.cases import BACKWARD, FORWARD, Case, Layout, Operator

STD_NORM_EPS, RMS_NORM_EPS = 1e-6, 1e-6


def family(op: str) -> str:
    """Returns the name of the operator of which `op` is a variant."""
    return op.partition("[")[0]


def selected(names: list[str]) -> list[str]:
    """Returns the operators with these names, including variants, in the order of the names."""
    return [op for name in names for op in OPERATORS if name in (op, family(op))]


def _softmax(name: str) -> Operator:
    eager, fused = getattr(F, name), getattr(fusedops, name)
    return Operator(eager=lambda x: eager(x, dim=-1), fused=lambda x: fused(x, dim=-1))


def _weight_and_bias(case: Case) -> tuple[Tensor, Tensor]:
    weight = torch.linspace(0.5, 1.5, case.cols, device=case.device, dtype=case.dtype)
    return weight, weight - 1


LAYER_NORM = Operator(
    eager=lambda x, weight, bias: F.layer_norm(x, x.shape[-1:], weight, bias),
    fused=lambda x, weight, bias: fusedops.layer_norm(x, x.shape[-1:], weight, bias),
    operands=_weight_and_bias,
    differentiated=3,
)


def _annotated_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Returns the norm as the source code of the Annotated Transformer writes it."""
    mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
    return weight * (x - mean) / (std + STD_NORM_EPS) + bias


STD_NORM = Operator(
    eager=_annotated_norm,
    fused=lambda x, w, b: fusedops.std_norm(x, x.shape[-1:], w, b, STD_NORM_EPS),
    operands=_weight_and_bias,
    differentiated=3,
)


def _weight(case: Case) -> tuple[Tensor]:
    return _weight_and_bias(case)[:1]


RMS_NORM = Operator(
    eager=lambda x, weight: F.rms_norm(x, x.shape[-1:], weight, RMS_NORM_EPS),
    fused=lambda x, weight: fusedops.rms_norm(x, x.shape[-1:], weight, RMS_NORM_EPS),
    operands=_weight,
    differentiated=2,
)
L2_NORM = replace(
    RMS_NORM,
    eager=lambda x, weight: F.normalize(x, dim=-1) * weight,
    fused=lambda x, weight: fusedops.l2_norm(x, x.shape[-1:], weight),
)


def _along_channels(parameter: Tensor, x: Tensor) -> Tensor:
    """Returns a parameter in the shape in which models broadcast it: weight[:, None, None] for
    images."""
    return parameter.view(-1, *[1] * (x.dim() - 2))


def _channels_first_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Returns the norm over channels as the source code of ConvNeXt writes it."""
    mean = x.mean(1, keepdim=True)
    variance = (x - mean).pow(2).mean(1, keepdim=True)
    x = (x - mean) / torch.sqrt(variance + RMS_NORM_EPS)
    return _along_channels(weight, x) * x + _along_channels(bias, x)


def _channels_first_rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    scale = torch.rsqrt(x.pow(2).mean(1, keepdim=True) + RMS_NORM_EPS)
    return _along_channels(weight, x) * (x * scale)


SPATIAL_LAYER_NORM = replace(
    STD_NORM,
    eager=_channels_first_norm,
    fused=lambda x, w, b: fusedops.spatial_layer_norm(x, 1, w, b, RMS_NORM_EPS),
    layout=Layout.IMAGES,
)
SPATIAL_RMS_NORM = replace(
    RMS_NORM,
    eager=_channels_first_rms_norm,
    fused=lambda x, w: fusedops.spatial_rms_norm(x, 1, w, RMS_NORM_EPS),
    layout=Layout.IMAGES,
)


def _after_residual(norm: Operator, fused: Callable[..., Any]) -> Operator:
    """Returns the operator that computes the norm of x + residual by `norm`, and returns the sum
    too, which a pre-norm layer needs."""

    def eager(x: Tensor, residual: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        sum = x + residual
        return norm.eager(sum, *parameters), sum

    def operands(case: Case) -> tuple[Tensor, ...]:
        return case.random(seed=2), *norm.operands(case)

    return Operator(
        eager=eager,
        fused=fused,
        operands=operands,
        moved={FORWARD: 4, BACKWARD: 4},
        differentiated=3 if norm.operands is _weight else 4,  # of x, residual and the parameters
    )


ADD_LAYER_NORM = _after_residual(
    LAYER_NORM, lambda x, r, w, b: fusedops.add_layer_norm(x, r, x.shape[-1:], w, b)
)
ADD_RMS_NORM = _after_residual(
    RMS_NORM, lambda x, r, w: fusedops.add_rms_norm(x, r, x.shape[-1:], w, RMS_NORM_EPS)
)


def _stack_of_softmaxes(name: str) -> Operator:
    eager, fused = getattr(F, name), getattr(fusedops, f"stack_{name}")
    return Operator(
        eager=lambda *inputs: torch.stack([eager(x, dim=-1) for x in inputs]),
        fused=lambda *inputs: fused(inputs, -1),
        layout=Layout.STACK,
        differentiated=None,
        split=lambda x: x.unbind(),
    )


def _stack_of_norms() -> Operator:
    """Returns the operator that stacks the layer norms of several tensors. Its functions take all
    inputs, then all weights, then all biases."""

    def thirds(tensors: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
        count = len(tensors) // 3
        return [tensors[start : start + count] for start in range(0, len(tensors), count)]

    def eager(*tensors: Tensor) -> Tensor:
        each = zip(*thirds(tensors), strict=True)
        return torch.stack([F.layer_norm(x, x.shape[-1:], w, b) for x, w, b in each])

    def fused(*tensors: Tensor) -> Tensor:
        inputs, weights, biases = thirds(tensors)
        return fusedops.stack_layer_norm(inputs, tensors[0].shape[-1:], weights, biases)

    def operands(case: Case) -> tuple[Tensor, Tensor]:
        weight, bias = (p.expand(case.shape[0], -1) for p in _weight_and_bias(case))
        return weight.contiguous(), bias.contiguous()

    return Operator(
        eager=eager,
        fused=fused,
        operands=operands,
        layout=Layout.STACK,
        differentiated=None,
        split=lambda *given: tuple(tensor for whole in given for tensor in whole.unbind()),
    )


def classes(case: Case) -> tuple[Tensor]:
    """Returns a random class for each row."""
    generator = torch.Generator(case.device).manual_seed(2)
    rows = (math.prod(case.shape[:-1]),)
    return (torch.randint(case.cols, rows, generator=generator, device=case.device),)


def _rows_of(loss: Callable[..., Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Returns a function that computes `loss` for each row of logits of any shape."""
    return lambda x, target: loss(x.flatten(0, -2), target, reduction="none")


CROSS_ENTROPY = Operator(
    eager=_rows_of(F.cross_entropy),
    fused=_rows_of(fusedops.cross_entropy),
    operands=classes,
    layout=Layout.LOGITS,
    moved={FORWARD: 1, BACKWARD: 2},
)


OPERATORS: dict[str, Operator] = {
    "softmax": _softmax("softmax"),
    "log_softmax": _softmax("log_softmax"),
    "layer_norm": LAYER_NORM,
    "std_norm": STD_NORM,
    "rms_norm": RMS_NORM,
    "l2_norm": L2_NORM,
    "spatial_layer_norm": SPATIAL_LAYER_NORM,
    "spatial_rms_norm": SPATIAL_RMS_NORM,
    "add_layer_norm": ADD_LAYER_NORM,
    "add_rms_norm": ADD_RMS_NORM,
    "concurrent_softmax": replace(_softmax("softmax"), layout=Layout.LONG_ROWS),
    "concurrent_layer_norm": replace(LAYER_NORM, layout=Layout.LONG_ROWS),
    "cross_entropy": CROSS_ENTROPY,
    "stack_softmax": _stack_of_softmaxes("softmax"),
    "stack_log_softmax": _stack_of_softmaxes("log_softmax"),
    "stack_layer_norm": _stack_of_norms(),
    **ATTENTION,
}
