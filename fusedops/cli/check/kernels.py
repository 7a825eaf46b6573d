"""Checks the operators' errors against their definitions in float64, and that the operators give
the same bits every time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

import fusedops
from fusedops import reference
from fusedops.cli.check.result import Result
from fusedops.ops.checks import FLOATING

#: docs/numerics.md has bounds of the errors for rows of 1,000 columns. 64 rows are enough for
#: several threads.
ROWS, COLS, EPS, SCALE = 64, 1000, 1e-5, 0.5
#: The size of inputs with so many columns that several threads share a row.
LONG = (2, 100_000)
#: The limit of errors for 16-bit dtypes, in ulps (units in the last place). Their results are
#: computed in float32 and rounded once, which makes an error of at most half an ulp.
ULPS_OF_16_BITS = 0.5


class Inputs(NamedTuple):
    """The inputs from which each operator takes those that it has."""

    x: Tensor
    residual: Tensor
    weight: Tensor
    bias: Tensor
    mask: Tensor
    grad_output: Tensor

    def first_row(self) -> Inputs:
        """Returns the inputs of the first row alone."""
        of_rows = ("x", "residual", "mask", "grad_output")
        return self._replace(**{name: getattr(self, name)[:1] for name in of_rows})


class Operator(NamedTuple):
    """An operator and its definition in float64.

    exact: a function of the inputs and of the operator's own result, from which the backward pass
        of a softmax starts. Returns the result in float64, and the gradients of the leaves.
    ulps: the root mean square of errors, in ulps, that docs/numerics.md allows for the result in
        float32 and float64.
    leaves: the name of each input that has a gradient -> the same for this gradient.
    """

    call: Callable[[Inputs], Tensor]
    exact: Callable[[Inputs, Tensor], list[Tensor]]
    ulps: float
    leaves: dict[str, float]


# --- definitions ----------------------------------------------------------------------------------


def _exact_softmax(inputs: Inputs, output: Tensor) -> list[Tensor]:
    y, grad = output.double(), inputs.grad_output.double()
    dot = (grad * y).sum(-1, keepdim=True)
    return [reference.softmax(inputs.x, -1), y * (grad - dot)]


def _exact_log_softmax(inputs: Inputs, output: Tensor) -> list[Tensor]:
    grad = inputs.grad_output.double()
    gradient = grad - output.double().exp() * grad.sum(-1, keepdim=True)
    return [reference.log_softmax(inputs.x, -1), gradient]


def _exact_masked_softmax(inputs: Inputs, output: Tensor) -> list[Tensor]:
    result = reference.masked_softmax(inputs.x, inputs.mask, SCALE, diagonal=0)
    return [result, SCALE * _exact_softmax(inputs, output)[1]]


def _exact_cross_entropy(inputs: Inputs, output: Tensor) -> list[Tensor]:
    x = inputs.x.detach().double().requires_grad_()
    result, _ = reference.cross_entropy(x, _classes(x))
    (gradient,) = torch.autograd.grad(result, x, inputs.grad_output[:, 0].double())
    return [result.detach(), gradient]


def _masked_softmax(inputs: Inputs) -> Tensor:
    return fusedops.masked_softmax(inputs.x, inputs.mask, scale=SCALE, causal=True)


def _cross_entropy(inputs: Inputs) -> Tensor:
    """Returns the losses in the dtype of the logits. The op returns float32 for 16-bit logits, but
    the gradient that draw() makes for the losses has the dtype of the logits."""
    losses = fusedops.cross_entropy(inputs.x, _classes(inputs.x), reduction="none")
    return losses.to(inputs.x.dtype)


def _classes(x: Tensor) -> Tensor:
    return torch.arange(len(x), device=x.device)


_TERMS = ("x", "residual")


def _norm(name: str, ulps: float, leaves: dict[str, float]) -> Operator:
    """Returns a norm of x, or of the sum x + residual. The sum is rounded to the dtype of x before
    the norm. The gradients of x and of the residual both equal that of the sum."""
    fused, norm = getattr(fusedops, name), getattr(reference, name.removeprefix("add_"))
    terms = sum(leaf in _TERMS for leaf in leaves)  # they are the first leaves

    def call(inputs: Inputs) -> Tensor:
        given = [getattr(inputs, leaf) for leaf in leaves]
        result = fused(*given[:terms], inputs.weight.shape, *given[terms:], eps=EPS)
        output: Tensor = result[0] if terms > 1 else result
        return output

    def exact(inputs: Inputs, output: Tensor) -> list[Tensor]:
        given = [getattr(inputs, leaf).detach().double() for leaf in leaves]
        total = torch.stack(given[:terms]).sum(0).to(inputs.x.dtype).double()
        of = [each.requires_grad_() for each in (total, *given[terms:])]
        result = norm(of[0], inputs.weight.shape, *of[1:], eps=EPS)
        gradient, *others = torch.autograd.grad(result, of, inputs.grad_output.double())
        return [result.detach(), *[gradient] * terms, *others]

    return Operator(call, exact, ulps, leaves)


OPERATORS = {
    "softmax": Operator(
        lambda inputs: fusedops.softmax(inputs.x, -1), _exact_softmax, 4.0, {"x": 1.2}
    ),
    "log_softmax": Operator(
        lambda inputs: fusedops.log_softmax(inputs.x, -1), _exact_log_softmax, 1.6, {"x": 1.2}
    ),
    "masked_softmax": Operator(_masked_softmax, _exact_masked_softmax, 4.0, {"x": 1.2}),
    "cross_entropy": Operator(_cross_entropy, _exact_cross_entropy, 1.6, {"x": 4.0}),
}
_NORMS = (
    ("layer_norm", 2.7, {"x": 5.0, "weight": 8.0, "bias": 4.0}),
    ("rms_norm", 2.0, {"x": 5.0, "weight": 8.0}),
)
OPERATORS |= {name: _norm(name, ulps, leaves) for name, ulps, leaves in _NORMS}
OPERATORS |= {
    f"add_{name}": _norm(f"add_{name}", ulps, {"x": 5.0, "residual": 5.0} | leaves)
    for name, ulps, leaves in _NORMS
}


# --- checks ---------------------------------------------------------------------------------------


def accuracy(device: str) -> Iterator[Result]:
    """Yields the error of each operator's result and of its gradients, in every dtype."""
    drawn = {dtype: draw(dtype, device) for dtype in FLOATING}
    for name, operator in OPERATORS.items():
        errors = {dtype: errors_of(operator, inputs) for dtype, inputs in drawn.items()}
        gradients = {f"{name}, gradient of {leaf}": ulps for leaf, ulps in operator.leaves.items()}
        for index, (each, limit) in enumerate({name: operator.ulps, **gradients}.items()):
            error_of = {dtype: of[index] for dtype, of in errors.items()}
            passed = all(error <= _limit(dtype, limit) for dtype, error in error_of.items())
            yield Result(
                each,
                {str(dtype).removeprefix("torch."): error for dtype, error in error_of.items()},
                f"at most {limit}; {ULPS_OF_16_BITS} in 16 bits",
                passed,
            )


def determinism(device: str) -> Iterator[Result]:
    """Yields for each operator whether its results have the same bits in two runs, on one thread,
    and for the first row alone."""
    threads = max(2, torch.get_num_threads()) if device == "cpu" else None
    how = f"twice, with 1 and {threads} threads, alone" if threads else "twice, alone"
    drawn = [draw(dtype, device) for dtype in FLOATING]
    drawn += [draw(dtype, device, *LONG) for dtype in (torch.float32, torch.bfloat16)]
    for name, operator in OPERATORS.items():
        same = all(has_same_bits(operator, inputs, threads) for inputs in drawn)
        yield Result(f"{name}, {how}", "the same bits" if same else "other bits", "the same", same)


def draw(dtype: torch.dtype, device: str, rows: int = ROWS, cols: int = COLS) -> Inputs:
    """Returns random inputs, the same in every run."""
    generator = torch.Generator().manual_seed(0)
    sizes = [(rows, cols), (rows, cols), (cols,), (cols,), (rows, cols), (rows, cols)]
    x, residual, weight, bias, chance, grad = (
        torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes
    )
    mask = chance < 1  # a normal number is 1 or more in one of six columns, which is hidden
    mask[:, 0] = True
    x, residual, weight, bias, grad = (
        each.to(device, dtype) for each in (x, residual, weight, bias, grad)
    )
    return Inputs(x, residual, weight, bias, mask.to(device), grad)


def results_of(operator: Operator, inputs: Inputs) -> list[Tensor]:
    """Returns the operator's result, and the gradients of its leaves."""
    leaves = {name: getattr(inputs, name).detach().requires_grad_() for name in operator.leaves}
    output = operator.call(inputs._replace(**leaves))
    of_rows = inputs.grad_output[:, 0] if output.dim() == 1 else inputs.grad_output
    gradients = torch.autograd.grad(output, [*leaves.values()], of_rows)
    return [output.detach(), *gradients]


def errors_of(operator: Operator, inputs: Inputs) -> list[float]:
    """Returns the root mean square of the errors of the result and of each gradient, in ulps."""
    actual = results_of(operator, inputs)
    wanted = operator.exact(inputs, actual[0])
    return [_error(result, exact) for result, exact in zip(actual, wanted, strict=True)]


def _error(actual: Tensor, exact: Tensor) -> float:
    """Returns the root mean square of the errors in ulps. An error is divided by the ulp of the
    exact value, or by that of the root mean square of the row if this is larger, because sums that
    cancel have errors of the size of their terms."""
    usual = exact.square().mean(-1, keepdim=True).sqrt()
    info = torch.finfo(actual.dtype)
    magnitude = torch.maximum(exact.abs(), usual).clamp(min=info.smallest_normal)
    ulp = magnitude.log2().floor().exp2() * info.eps
    return ((actual.double() - exact) / ulp).square().mean().sqrt().item()


def _limit(dtype: torch.dtype, ulps: float) -> float:
    return ULPS_OF_16_BITS if dtype.itemsize == 2 else ulps


def has_same_bits(operator: Operator, inputs: Inputs, threads: int | None) -> bool:
    """Returns whether the results have the same bits in two runs on `threads` threads and in one
    run on a single thread, and whether the first row has the same bits if it is the only row. If
    `threads` is None, all runs have the current number of threads."""
    with _threads(threads):
        results = [results_of(operator, inputs) for _ in range(2)]
    with _threads(1 if threads else None):
        results.append(results_of(operator, inputs))
        alone = results_of(operator, inputs.first_row())
    # The result and the gradients of _TERMS have rows; those of parameters are sums over all rows.
    of_rows = 1 + sum(leaf in _TERMS for leaf in operator.leaves)
    first = [result[:1] for result in results[0][:of_rows]]
    return all(_are_same(results[0], other) for other in results[1:]) and _are_same(
        first, alone[:of_rows]
    )


def _are_same(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(
        torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
        for a, b in zip(some, others, strict=True)
    )


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Sets torch's number of threads to `count` for a block; None leaves the number as it is."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
