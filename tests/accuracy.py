"""`python -m tests.accuracy`: how far this package and eager PyTorch are from the exact result on
this machine, beside the bounds that the tests hold this package to.

It is a report. No test depends on eager's error, which differs from CPU to CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

import fusedops
from tests import bounds
from tests.bounds import Bounded
from tests.oracle import DTYPES, annotated_norm

ROWS, COLS, EPS = 400, 1000, 1e-5


class Compared(NamedTuple):
    """One result of this package and of eager PyTorch, and its bound."""

    name: str
    ours: torch.Tensor
    eager: torch.Tensor
    bound: Bounded


def ulps_off(actual: torch.Tensor, bound: Bounded) -> np.ndarray:
    error = np.abs(bounds.exactly(actual) - bound.exact)
    return error / _unit(bound, actual.dtype)


def _unit(bound: Bounded, dtype: torch.dtype) -> np.ndarray:
    """An ulp of the result, or, where the result cancels, of the usual value in its place."""
    usual = np.sqrt(np.square(bound.exact).mean(-1, keepdims=True))
    return bounds.ulps(np.maximum(np.abs(bound.exact), usual), dtype)


def root_mean_square(values: np.ndarray) -> float:
    return float(np.sqrt(np.square(values).mean()))


def softmaxes(x: torch.Tensor, grad: torch.Tensor) -> Iterator[Compared]:
    for name in ("softmax", "log_softmax"):
        y = getattr(fusedops, name)(x, -1)
        eager = getattr(torch, name)(x, -1)
        yield Compared(name, y, eager, getattr(bounds, name)(x))
        of_ours = getattr(torch.ops.fusedops, f"{name}_backward")(grad, y, -1, x.dtype)
        of_eager = getattr(torch.ops.aten, f"_{name}_backward_data")(grad, y, -1, x.dtype)
        bound = getattr(bounds, f"{name}_gradient")(y, grad, x.dtype).rounded_to(x.dtype)
        yield Compared(f"{name}, gradient", of_ours, of_eager, bound)


def _rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, w.shape, w, EPS)


def _layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, w.shape, w, b, EPS)


def _std_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return annotated_norm(x, w, b, EPS)


EAGER: dict[str, Callable[..., torch.Tensor]] = {
    "layer_norm": _layer_norm,
    "std_norm": _std_norm,
    "rms_norm": _rms_norm,
}


def norms(x: torch.Tensor, grad: torch.Tensor) -> Iterator[Compared]:
    w, b = torch.randn(2, COLS).to(x.dtype)
    for kind, eager in EAGER.items():
        leaves = [t.clone().requires_grad_() for t in ((x, w) if kind == "rms_norm" else (x, w, b))]
        y, theirs = getattr(fusedops, kind)(leaves[0], [COLS], *leaves[1:], eps=EPS), eager(*leaves)
        yield Compared(kind, y, theirs, bounds.norm(kind, *leaves, eps=EPS))
        wanted = bounds.norm_gradients(kind, x, w, grad, EPS)
        gradients = (torch.autograd.grad(result, leaves, grad) for result in (y, theirs))
        names = ("input", "weight", "bias")
        for name, ours, other, bound in zip(names, *gradients, wanted, strict=False):
            yield Compared(f"{kind}, {name}'s gradient", ours, other, bound.rounded_to(x.dtype))


def main() -> None:
    """A row for each result and dtype: root mean squares, and the largest, in ulps."""
    print(f"{ROWS} rows of {COLS}; ulps of the result, in the root mean square (and the largest)\n")
    print("| result | dtype | fusedops | eager | bound |\n| --- | --- | --- | --- | --- |")
    for dtype_name, dtype in DTYPES.items():
        torch.manual_seed(0)
        x, grad = torch.randn(2, ROWS, COLS, dtype=torch.float64).to(dtype)
        for compared in (*softmaxes(x, grad), *norms(x, grad)):
            unit = _unit(compared.bound, dtype)
            found = [ulps_off(t, compared.bound) for t in (compared.ours, compared.eager)]
            cells = [f"{root_mean_square(each):.2f} ({each.max():.1f})" for each in found]
            largest, typical = compared.bound.error / unit
            cells.append(f"{root_mean_square(typical):.2f} ({largest.max():.1f})")
            print(f"| {compared.name} | {dtype_name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
