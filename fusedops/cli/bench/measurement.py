"""Prepares the providers of a case, which are the ways to compute it, checks that they agree, and
times them side by side."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fusedops.cli.bench.cases import DROPOUT, FORWARD, Case, Function, compiled
from fusedops.cli.timing import Call, Clock, interleave, median_ratio, relative_spread

REFERENCE, COPY, OURS = "eager", "copy", "fusedops"

#: Bounds of the relative difference from eager, in the L2 norm. They are far above rounding errors,
#: and far below the errors of a wrong kernel.
MAX_DISAGREEMENT = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}


def prepare(case: Case) -> dict[str, Call]:
    """Returns a call for each provider, whose results have been checked, and one for a copy of as
    many bytes. fusedops runs in a compiled graph, as Inductor's code does. Dynamo's guards, which
    take longer than a small kernel, are then in the times of both."""
    operator, inputs = case.operator, case.inputs()
    # Every shape is compiled anew. Without a reset, that would reach Dynamo's recompilation limit.
    torch.compiler.reset()
    functions = {
        REFERENCE: operator.eager,
        "inductor": compiled(operator.eager),
        OURS: compiled(operator.fused),
    }
    # With donated buffers a compiled backward pass overwrites saved tensors, and can run only once.
    with torch._functorch.config.patch(donated_buffer=False):
        calls = {name: case.call(function, *inputs) for name, function in functions.items()}
        check_all(case, inputs, calls)
    return {COPY: _copy_of_same_bytes(case), **calls}


def measure(
    case: Case, calls: dict[str, Call], clock: Clock, rounds: int, slot_ms: float
) -> list[dict[str, Any]]:
    """Times the calls that `prepare` returned, which take turns, and compares the providers.
    Returns a line of the CSV for each call, as a dict of its columns."""
    times = interleave(calls, clock, rounds, slot_ms)
    medians = {name: statistics.median(times[name]) for name in calls}
    best_peer = min(calls.keys() - {COPY, OURS}, key=medians.__getitem__)
    return [
        {
            **case.columns,
            "threads": torch.get_num_threads(),
            "provider": name,
            "median_ms": medians[name],
            "spread": relative_spread(times[name]),
            "bytes": case.bytes,
            "share_of_copy": medians[COPY] / medians[name],
            "speedup_over_eager": median_ratio(times[REFERENCE], times[name]),
            "speedup_over_best_peer": median_ratio(times[best_peer], times[name]),
        }
        for name in calls
    ]


def _copy_of_same_bytes(case: Case) -> Call:
    numel = case.bytes // 2 // case.dtype.itemsize
    source = torch.zeros(numel, dtype=case.dtype, device=case.device)
    return partial(torch.empty_like(source).copy_, source)


def check_all(case: Case, inputs: Sequence[Tensor], calls: dict[str, partial[Any]]) -> None:
    """Raises RuntimeError unless all calls agree with eager, and drop as many elements as dropout
    should."""
    eager = _main_output(calls[REFERENCE]())
    for name, call in calls.items():
        result = _main_output(call())
        survivors = case.operator.survivors
        if survivors is None:
            check_agreement(case, name, result, eager)
        else:
            # A backward call has the result of the forward pass as its first argument.
            output = result if case.direction == FORWARD else call.args[0]
            check_keep_rate(case, survivors, name, output, inputs)
            check_agreement(case, name, result, with_dropout_of(output, case, survivors, inputs))


def with_dropout_of(
    output: Tensor, case: Case, survivors: Function, inputs: Sequence[Tensor]
) -> Tensor:
    """Returns eager's result or gradient for the dropout of another provider.

    Providers draw different random numbers. The zeros in a provider's `output` show which elements
    it has dropped, and the same elements are dropped here.
    """

    def chain(x: Tensor, *operands: Tensor) -> Tensor:
        result: Tensor = survivors(x, *operands) * (output != 0) / (1 - DROPOUT)
        return result

    return _main_output(case.call(chain, *inputs)())


def check_keep_rate(
    case: Case, survivors: Function, name: str, output: Tensor, inputs: Sequence[Tensor]
) -> None:
    """Raises RuntimeError if the number of elements that dropout kept differs by more than six
    standard deviations from the expected one."""
    x_and_operands = inputs if case.direction == FORWARD else inputs[1:]
    total = survivors(*x_and_operands).count_nonzero().item()
    kept, expected = output.count_nonzero().item(), total * (1 - DROPOUT)
    if abs(kept - expected) > 6 * math.sqrt(total * DROPOUT * (1 - DROPOUT)):
        raise RuntimeError(
            f"{case}: {name!r} kept {kept} of {total}, wanted about {expected:.0f}. "
            "Nothing was timed; please report this."
        )


def check_agreement(case: Case, name: str, actual: Tensor, expected: Tensor) -> None:
    """Raises RuntimeError if a provider's result differs from eager's."""
    # A std_norm of one column is NaN, since its standard deviation has the divisor 0. Both results
    # must be NaN in the same places.
    if expected.isnan().any():
        same = actual.isnan() & expected.isnan()
        actual, expected = (tensor.masked_fill(same, 0) for tensor in (actual, expected))
    difference = _norm(actual - expected) / _scale(case, expected)
    require_small(difference, case.dtype, f"{case}: {name!r}")


def require_small(difference: float, dtype: torch.dtype, what: str) -> None:
    """Raises RuntimeError if the relative difference of `what` from eager is more than rounding."""
    if not difference <= MAX_DISAGREEMENT[dtype]:
        raise RuntimeError(
            f"{what} differs from eager by {difference:.1e} (relative, L2), wanted at most "
            f"{MAX_DISAGREEMENT[dtype]:.0e}. Nothing was timed; please report this."
        )


def _scale(case: Case, expected: Tensor) -> float:
    """Returns the number by which a difference is divided, which is the L2 norm of the result.

    Some results are zero except for rounding errors: normalised rows of one or two columns, their
    gradients, and what dropout or a mask has zeroed. For these the divisor is at least the norm of
    a tensor of ones.
    """
    norm = _norm(expected)
    is_rounding = case.cols <= 2 or norm == 0
    return max(norm, math.sqrt(expected.numel())) if is_rounding else norm


def _main_output(result: Tensor | tuple[Tensor, ...]) -> Tensor:
    return result if isinstance(result, Tensor) else result[0]


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64))
