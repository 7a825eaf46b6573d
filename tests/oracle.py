"""How results are judged: against float64, by how many units in the last place they are off."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import torch

from fusedops import reference
from fusedops.ops import _library

#: Ulps that an error may exceed eager's by. The baseline instruction set has no fused multiply-add,
#: and under sanitizers nothing is inlined that could be fused: each product is rounded once more.
SLACK = 3.0 if _library.cpu_isa() == "default" or "ASAN_OPTIONS" in os.environ else 1.0

#: Names of dtypes as parametrised tests show them.
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _layer_norm(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    centered = x - x.mean(-1, keepdims=True)
    variance = np.square(centered).mean(-1, keepdims=True)
    return centered / np.sqrt(variance + np.longdouble(1e-5)) * w + b


def _in_80_bits(definition: Callable, *tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The definition in 80-bit arithmetic, as a float64 tensor and what that leaves over."""
    result = definition(*(t.double().cpu().numpy().astype(np.longdouble) for t in tensors))
    high = result.astype(np.float64)
    return torch.from_numpy(high), torch.from_numpy((result - high).astype(np.float64))


class Exact:
    """The right result along the last dimension: float64, or for float64 inputs a float64 and the
    remainder that 80 bits have beyond it."""

    def __init__(self, high: torch.Tensor, low: torch.Tensor | float = 0.0) -> None:
        self.high, self.low = high.cpu(), low

    @classmethod
    def of(cls, definition: Callable, *tensors: torch.Tensor) -> Exact:
        """Of a definition in numpy operations, always in 80 bits."""
        return cls(*_in_80_bits(definition, *tensors))

    @classmethod
    def softmax(cls, x: torch.Tensor) -> Exact:
        if x.dtype == torch.float64:
            return cls.of(_softmax, x)
        return cls(reference.softmax(x, -1))

    @classmethod
    def log_softmax(cls, x: torch.Tensor) -> Exact:
        if x.dtype == torch.float64:
            return cls.of(_log_softmax, x)
        return cls(reference.log_softmax(x, -1))

    @classmethod
    def layer_norm(cls, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Exact:
        if x.dtype == torch.float64:
            return cls.of(_layer_norm, x, w, b)
        return cls(reference.layer_norm(x, w.shape, w, b))


def annotated_norm(
    x: torch.Tensor,
    weight: torch.Tensor | float = 1.0,
    bias: torch.Tensor | float = 0.0,
    eps: float = 1e-6,
) -> torch.Tensor:
    """std_norm of the last dimension as the Annotated Transformer writes it, in eager PyTorch."""
    mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
    return weight * (x - mean) / (std + eps) + bias


def ulp_error(actual: torch.Tensor, exact: Exact | torch.Tensor, floor: float = 0.0) -> float:
    """The largest error in ulps of ``actual.dtype``, taken at ``max(|exact|, floor)``.

    ``floor`` is for results that cancel, where an error near zero says nothing: LayerNorm's are of
    order one.
    """
    exact = exact if isinstance(exact, Exact) else Exact(exact)
    info = torch.finfo(actual.dtype)
    magnitude = exact.high.abs().clamp(min=max(floor, info.smallest_normal))
    ulp = torch.exp2(torch.floor(torch.log2(magnitude))) * info.eps
    return (((actual.cpu().double() - exact.high) - exact.low).abs() / ulp).max().item()


def assert_as_exact_as_eager(
    actual: torch.Tensor,
    eager: torch.Tensor,
    exact: Exact | torch.Tensor,
    floor: float = 0.0,
) -> None:
    """``actual`` is no further from ``exact`` than eager is, but for SLACK.

    The largest of few errors is luck: give it many rows.
    """
    assert actual.dtype == eager.dtype and actual.shape == eager.shape
    ours, theirs = ulp_error(actual, exact, floor), ulp_error(eager, exact, floor)
    assert ours <= theirs + SLACK, f"{ours:.2f} ulp off, eager {theirs:.2f}"


def relative_error(actual: torch.Tensor, exact: torch.Tensor) -> float:
    """L2 error relative to the L2 norm of ``exact``."""
    return ((actual.double() - exact).norm() / exact.norm()).item()


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal in every bit, NaN payloads and the sign of zero included."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    # Not contiguous(), which leaves a dimension of one element its stride.
    first, second = (t.clone(memory_format=torch.contiguous_format) for t in (a, b))
    return torch.equal(first.view(torch.uint8), second.view(torch.uint8))
