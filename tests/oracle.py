"""Measures of a result against float64. The bounds of errors are in bounds.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

#: Names of dtypes as parametrised tests show them.
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


def annotated_norm(
    x: torch.Tensor,
    weight: torch.Tensor | float = 1.0,
    bias: torch.Tensor | float = 0.0,
    eps: float = 1e-6,
) -> torch.Tensor:
    """std_norm of the last dimension as the Annotated Transformer writes it, in eager PyTorch."""
    mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
    return weight * (x - mean) / (std + eps) + bias


def relative_error(actual: torch.Tensor, exact: torch.Tensor) -> float:
    """L2 error relative to the L2 norm of ``exact``."""
    return ((actual.double() - exact).norm() / exact.norm()).item()


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal in every bit, NaN payloads and the sign of zero included."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    # Not contiguous(), which leaves a dimension of one element its stride.
    first, second = (t.clone(memory_format=torch.contiguous_format).flatten() for t in (a, b))
    return torch.equal(first.view(torch.uint8), second.view(torch.uint8))


def assert_same_on_threads(
    function: Callable[[], Iterable[torch.Tensor]], counts: Iterable[int] = (1, 2, 3)
) -> None:
    """Each tensor that it gives has the same bits on every number of threads."""
    results = []
    for count in counts:
        torch.set_num_threads(count)  # until the end of the test: threads.py
        results.append(list(function()))
    for other in results[1:]:
        assert all(same_bits(a, b) for a, b in zip(results[0], other, strict=True)), counts
