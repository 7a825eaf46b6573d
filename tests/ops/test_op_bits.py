"""Results keep their bits: a hash for each function, dtype and instruction set, on fixed inputs.

Compilers fuse other pairs of products and sums, so that each has bits of its own; one is recorded.

Where a kernel computes in another order on purpose, ``python -m tests.ops.test_op_bits`` prints the
lines of ``op_bits.csv`` for the instruction set in use.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fusedops
from fusedops.ops.registration.libraries import build_info, cpu_isa

FILE = Path(__file__).with_name("op_bits.csv")
COMPILER = "GNU 12.2.0"
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
#: Short, odd, medium and long rows, and rows that segments share.
SHAPES = ((37, 7), (19, 48), (5, 577), (4, 4096), (2, 70001))
SEED = torch.tensor(11)

Function = Callable[..., Any]
#: Each with the tensors whose gradients count too.
Results = Iterator[tuple[Tensor, list[Tensor]]]


def tensor(dtype: torch.dtype, *shape: int, salt: int = 0) -> Tensor:
    """Multiples of 2^-16 from -8 to 8: the generator's integers are alike on all machines."""
    generator = torch.Generator().manual_seed(sum(shape) + salt)
    return (torch.randint(-(2**19), 2**19, shape, generator=generator) / 2**16).to(dtype)


def masks(x: Tensor) -> tuple[Tensor, Tensor]:
    """A bool mask, and numbers to add, a row of each for all rows."""
    return tensor(x.dtype, x.shape[-1], salt=1) > -4, tensor(x.dtype, x.shape[-1], salt=2)


def masked(x: Tensor) -> Results:
    mask, bias = masks(x)
    start, end = torch.tensor(1), torch.tensor(x.shape[-1] - 1)
    yield fusedops.masked_softmax(x, mask, scale=0.5), [x]
    yield fusedops.masked_softmax(x, bias, scale=0.5, causal=True), [x]
    # The derivative of the cap is torch's, whose bits depend on the processor.
    yield fusedops.masked_softmax(x, mask, bias=bias, softcap=5.0, mask_value=-3.0), []
    yield fusedops.masked_softmax(x, start=start, end=end, sinks=0.25), [x]


def masked_dropout(x: Tensor) -> Results:
    mask, _ = masks(x)
    yield fusedops.masked_softmax_dropout(x, mask, p=0.3, scale=0.5, seed=SEED), [x]


def dropout(x: Tensor) -> Results:
    yield fusedops.dropout(x, p=0.3, seed=SEED), [x]


def norm(function: Function, parameters: int, x: Tensor) -> Results:
    own = [tensor(x.dtype, x.shape[-1], salt=3 + i).requires_grad_() for i in range(parameters)]
    yield function(x, x.shape[-1:], *own), [x, *own]
    yield function(x, x.shape[-1:]), [x]


def add_norm(function: Function, x: Tensor) -> Results:
    weight = tensor(x.dtype, x.shape[-1], salt=3).requires_grad_()
    residual = tensor(x.dtype, *x.shape, salt=4).requires_grad_()
    for options in ({}, {"p": 0.3, "seed": SEED}):
        y, total = function(x, residual, x.shape[-1:], weight, **options)
        yield y, [x, residual, weight]
        yield total, []


def spatial(function: Function, x: Tensor) -> Results:
    yield function(x, 0), [x]
    yield function(x.view(1, *x.shape).expand(2, -1, -1), 1), [x]


def spatial_norm(function: Function, x: Tensor) -> Results:
    weight = tensor(x.dtype, x.shape[0], salt=3).requires_grad_()
    yield function(x, 0, weight), [x, weight]


def stack(function: Function, x: Tensor) -> Results:
    yield function([x, tensor(x.dtype, *x.shape, salt=4)], -1), [x]


def last(function: Function, x: Tensor) -> Results:
    yield function(x, -1), [x]


def statistics(x: Tensor) -> Results:
    for result in fusedops.softmax_stats(x.detach(), -1):
        yield result, []


def losses(x: Tensor) -> Results:
    target = torch.arange(x.shape[0]) % x.shape[-1]
    for options in ({}, {"label_smoothing": 0.1}, {"softcap": 5.0, "return_lse": True}):
        results = fusedops.cross_entropy(x, target, reduction="none", **options)
        for result in results if isinstance(results, tuple) else (results,):
            yield result, [x]


CASES: dict[str, Callable[[Tensor], Results]] = {
    "softmax": partial(last, fusedops.softmax),
    "log_softmax": partial(last, fusedops.log_softmax),
    "softmax_stats": statistics,
    "spatial softmax": partial(spatial, fusedops.softmax),
    "spatial log_softmax": partial(spatial, fusedops.log_softmax),
    "masked_softmax": masked,
    "masked_softmax_dropout": masked_dropout,
    "dropout": dropout,
    "layer_norm": partial(norm, fusedops.layer_norm, 2),
    "std_norm": partial(norm, fusedops.std_norm, 2),
    "rms_norm": partial(norm, fusedops.rms_norm, 1),
    "l2_norm": partial(norm, fusedops.l2_norm, 1),
    "add_layer_norm": partial(add_norm, fusedops.add_layer_norm),
    "add_rms_norm": partial(add_norm, fusedops.add_rms_norm),
    "spatial_layer_norm": partial(spatial_norm, fusedops.spatial_layer_norm),
    "spatial_rms_norm": partial(spatial_norm, fusedops.spatial_rms_norm),
    "stack_softmax": partial(stack, fusedops.stack_softmax),
    "cross_entropy": losses,
}


def digest(case: Callable[[Tensor], Results], dtype: torch.dtype) -> str:
    """A hash of the results and of their gradients."""
    total = hashlib.sha256()
    for shape in SHAPES:
        for y, inputs in case(tensor(dtype, *shape).requires_grad_()):
            grad = tensor(y.dtype, *y.shape, salt=9)
            grads = torch.autograd.grad(y, inputs, grad, retain_graph=True) if inputs else ()
            for result in (y.detach(), *grads):
                total.update(result.contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:16]


def recorded() -> dict[tuple[str, str, str], str]:
    with open(FILE, newline="") as lines:
        return {(isa, name, dtype): bits for isa, name, dtype, bits in csv.reader(lines)}


@pytest.mark.skipif(
    build_info()["compiler"] != COMPILER, reason=f"the bits are recorded for {COMPILER}"
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_results_have_the_bits_that_are_recorded(name, dtype):
    assert digest(CASES[name], dtype) == recorded()[cpu_isa(), name, str(dtype)]


if __name__ == "__main__":
    for name, case in CASES.items():
        for dtype in DTYPES:
            print(cpu_isa(), name, dtype, digest(case, dtype), sep=",")
