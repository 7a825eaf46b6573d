"""Prepares the providers of a case, checks that they agree, and times them side by side."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fusedops.cli.bench.cases import Case
from fusedops.cli.timing import Call, Clock, interleave, median_ratio, relative_spread

REFERENCE, COPY, OURS = "eager", "copy", "fusedops"

# Far above any rounding of these dtypes, far below a wrong kernel.
MAX_DISAGREEMENT = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}


@dataclass(frozen=True)
class Measurement:
    """One provider on one case: the columns of the CSV, in their order."""

    op: str
    direction: str
    dtype: str
    rows: int
    cols: int
    device: str
    threads: int
    provider: str
    median_ms: float
    spread: float
    bytes: int
    share_of_copy: float
    speedup_over_eager: float
    speedup_over_best_peer: float


def prepare(case: Case) -> dict[str, Call]:
    """A call for each provider, compiled and known to agree with eager, and one for the copy."""
    inputs = case.computation.make_inputs(case)
    calls = {
        name: partial(provider.function, *provider.prepare(*inputs))
        for name, provider in case.computation.providers.items()
    }
    reference = calls.pop(REFERENCE)
    # Every shape gets code of its own, and none counts toward Dynamo's limit of recompilations.
    torch.compiler.reset()
    compiled = torch.compile(reference.func, fullgraph=True, dynamic=False)
    calls = {"inductor": partial(compiled, *reference.args), **calls}
    for name, call in calls.items():
        check_agreement(case, name, call, reference)
    return {COPY: _copy_of_same_bytes(case), REFERENCE: reference, **calls}


def measure(
    case: Case, calls: dict[str, Call], clock: Clock, rounds: int, slot_ms: float
) -> list[Measurement]:
    """Time what `prepare` returned, in turns, and relate every provider to the others."""
    times = interleave(calls, clock, rounds, slot_ms)
    medians = {name: statistics.median(times[name]) for name in calls}
    best_peer = min(calls.keys() - {COPY, OURS}, key=medians.__getitem__)
    return [
        Measurement(
            op=case.op,
            direction=case.direction,
            dtype=case.dtype_name,
            rows=case.rows,
            cols=case.cols,
            device=case.device,
            threads=torch.get_num_threads(),
            provider=name,
            median_ms=medians[name],
            spread=relative_spread(times[name]),
            bytes=case.bytes,
            share_of_copy=medians[COPY] / medians[name],
            speedup_over_eager=median_ratio(times[REFERENCE], times[name]),
            speedup_over_best_peer=median_ratio(times[best_peer], times[name]),
        )
        for name in calls
    ]


def _copy_of_same_bytes(case: Case) -> Call:
    numel = case.bytes // 2 // case.dtype.itemsize
    source = torch.zeros(numel, dtype=case.dtype, device=case.device)
    return partial(torch.empty_like(source).copy_, source)


def check_agreement(case: Case, name: str, call: Call, reference: Call) -> None:
    """Raise if a provider computes something else than eager: a fast wrong answer is no result."""
    actual, expected = _main_output(call()), _main_output(reference())
    disagreement = ((actual - expected).norm() / expected.norm()).item()
    if not disagreement <= MAX_DISAGREEMENT[case.dtype]:
        raise RuntimeError(
            f"{case}: {name!r} differs from eager by {disagreement:.1e} (relative, L2), wanted at "
            f"most {MAX_DISAGREEMENT[case.dtype]:.0e}. Nothing was timed; please report this."
        )


def _main_output(result: Tensor | tuple[Tensor, ...]) -> Tensor:
    output = result if isinstance(result, Tensor) else result[0]
    return output.double()
