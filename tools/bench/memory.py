"""`python -m tools.bench memory` measures the memory that each way to run an operator allocates.

A peak is the largest amount that is allocated at one time while the operator runs. Memory that was
allocated before does not count: the input, masks, the incoming gradient, and the buffer given as
`out=`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.markup import escape
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import fusedops
from fusedops.cli.bench.arguments import add_case_arguments, check_cases
from fusedops.cli.bench.attention import DROPOUT, MASKED, SCALE, SOFTCAP
from fusedops.cli.bench.cases import FORWARD, Case, Function, Layout, Shape, compiled, gradients
from fusedops.cli.bench.command import Say, chosen_cases, measure_and_show, scores
from fusedops.cli.bench.report import CASE, GROUP, table_of

SUMMARY = "measure the operators' peak memory; backward is measured together with forward"

os.environ["KINETO_LOG_LEVEL"] = "6"  # this silences the log of torch's profiler

# One size is enough: a peak in units of the input does not depend on the size.
SHAPES: dict[Layout, list[Shape]] = {
    Layout.MATRIX: [(4096, 1024)],
    Layout.LONG_ROWS: [(1, 2**22)],
    Layout.LOGITS: [(512, 50257)],
    Layout.STACK: [(16, 256, 1024)],
    Layout.IMAGES: [(8, 96, 3136)],
    Layout.SCORES: scores(256),
}

TRAINING = "training"  # a forward and a backward pass together

EAGER, EAGER_OUT, BY_HAND, INDUCTOR = "eager", "eager out=", "by hand", "inductor"
OURS, OURS_OUT, OURS_IN_PLACE = "fusedops", "fusedops out=", "fusedops in place"
WAYS = (EAGER, EAGER_OUT, BY_HAND, INDUCTOR, OURS, OURS_OUT, OURS_IN_PLACE)


@dataclass(frozen=True)
class Way:
    """A way to compute an operator: `function(x, *operands)`, which may overwrite x.

    into_buffer: whether the last argument of the function is a buffer for its result.
    trains: whether autograd can record the function, so that it can be measured in training.
    """

    function: Function
    into_buffer: bool = False
    trains: bool = False


add_arguments = add_case_arguments


def run(args: argparse.Namespace) -> int:
    """Measures, writes the file and prints the table; returns 1 if a case had to be left out."""
    cases = check_cases(chosen_cases(args, SHAPES))
    torch.set_num_threads(args.threads or 1)

    def measure(case: Case, say: Say) -> Iterator[dict[str, Any]]:
        say(f"measuring {case}")
        return measure_peaks(case)

    return measure_and_show((cases, measure), print_peaks, args.device, args.csv)


# --- ways to save memory --------------------------------------------------------------------------


def _softmax_decomposed(x: Tensor) -> Tensor:
    x.sub_(x.amax(dim=-1, keepdim=True)).exp_()
    return x.div_(x.sum(dim=-1, keepdim=True))


def _filled_decomposed(x: Tensor, hidden: Tensor) -> Tensor:
    return _softmax_decomposed(x.masked_fill_(hidden, MASKED))


def _into_buffer_or_input(into: Callable[..., Tensor]) -> dict[str, Way]:
    """Returns the ways to write a softmax into a buffer and over its input. `into` computes the
    softmax, and its last argument is the tensor to which it writes."""
    return {
        OURS_OUT: Way(into, into_buffer=True),
        OURS_IN_PLACE: Way(lambda x, *operands: into(x, *operands, x)),
    }


SAVING_WAYS: dict[str, dict[str, Way]] = {
    "softmax": {
        BY_HAND: Way(_softmax_decomposed),
        EAGER_OUT: Way(lambda x, out: torch.softmax(x, -1, out=out), into_buffer=True),
        OURS_OUT: Way(lambda x, out: fusedops.softmax(x, -1, out=out), into_buffer=True),
        OURS_IN_PLACE: Way(lambda x: fusedops.softmax_(x, -1), trains=True),
    },
    "log_softmax": {
        EAGER_OUT: Way(lambda x, out: torch.log_softmax(x, -1, out=out), into_buffer=True),
        **_into_buffer_or_input(lambda x, out: fusedops.log_softmax(x, -1, out=out)),
    },
    "masked_softmax[additive]": {
        BY_HAND: Way(lambda x, mask: _softmax_decomposed(x.mul_(SCALE).add_(mask))),
        **_into_buffer_or_input(
            lambda x, mask, out: fusedops.masked_softmax(x, mask, scale=SCALE, out=out)
        ),
    },
    "masked_softmax[padding]": {
        BY_HAND: Way(lambda x, visible: _filled_decomposed(x, ~visible)),
        **_into_buffer_or_input(
            lambda x, visible, out: fusedops.masked_softmax(x, visible, out=out)
        ),
    },
    "masked_softmax[causal]": {
        BY_HAND: Way(_filled_decomposed),
        **_into_buffer_or_input(lambda x, _, out: fusedops.masked_softmax(x, causal=True, out=out)),
    },
    "masked_softmax[causal+bias]": {
        BY_HAND: Way(lambda x, bias, future: _filled_decomposed(x.add_(bias), future)),
        **_into_buffer_or_input(
            lambda x, bias, _, out: fusedops.masked_softmax(x, causal=True, bias=bias, out=out)
        ),
    },
    "masked_softmax[causal+softcap]": {
        BY_HAND: Way(
            lambda x, future: _filled_decomposed(x.div_(SOFTCAP).tanh_().mul_(SOFTCAP), future)
        ),
        **_into_buffer_or_input(
            lambda x, _, out: fusedops.masked_softmax(x, causal=True, softcap=SOFTCAP, out=out)
        ),
    },
    "softmax_dropout[causal]": {
        BY_HAND: Way(
            lambda x, future: F.dropout(_filled_decomposed(x, future), DROPOUT, inplace=True)
        )
    },
}


def ways(case: Case) -> dict[str, Way]:
    """Returns every way to compute the case by name. For the backward direction these are only the
    ways that autograd can record."""
    operator = case.operator
    found = {
        EAGER: Way(operator.of_whole(operator.eager), trains=True),
        INDUCTOR: Way(compiled(operator.of_whole(operator.eager)), trains=True),
        OURS: Way(operator.of_whole(operator.fused), trains=True),
        **SAVING_WAYS.get(case.op, {}),
    }
    return {
        name: found[name]
        for name in WAYS
        if name in found and (case.direction == FORWARD or found[name].trains)
    }


# --- measuring ------------------------------------------------------------------------------------


def measure_peaks(case: Case) -> Iterator[dict[str, Any]]:
    """Yields the peak of every way to compute the case, as a line of the CSV."""
    torch.compiler.reset()
    for name, way in ways(case).items():
        # The first call compiles, and allocates what stays allocated, such as caches.
        bind(case, way)()
        peak = peak_bytes(bind(case, way), case.device)
        yield {
            **case.columns,
            "direction": FORWARD if case.direction == FORWARD else TRAINING,
            "provider": name,
            "input_bytes": case.input_bytes,
            "peak_bytes": peak,
            "peak_over_input": peak / case.input_bytes,
        }


def bind(case: Case, way: Way) -> Callable[[], Any]:
    """Returns a call that computes the case, whose inputs are already allocated. It can run only
    once, because it may overwrite them."""
    x, operands = case.random(seed=0), case.operator.operands(case)
    if way.into_buffer:
        operands = (*operands, torch.empty_like(x))
    if case.direction == FORWARD:
        return partial(way.function, x, *operands)
    leaf = x.requires_grad_()
    # The input is a clone of the leaf, because autograd does not allow a leaf to be overwritten.
    return partial(_train, way.function, leaf, leaf.clone(), operands, case.random(seed=1))


def _train(
    function: Function, leaf: Tensor, x: Tensor, operands: tuple[Tensor, ...], grad: Tensor
) -> tuple[Any, Tensor]:
    """Returns the results, which the next layer of a model would keep, and the gradient of `leaf`
    for the incoming gradient `grad`."""
    output = function(x, *operands)
    return output, gradients(output, [leaf], grad)[0]


def peak_bytes(call: Callable[[], Any], device: str) -> int:
    """Returns the most bytes that `call` has allocated at one time, including its result."""
    return _peak_on_cuda(call, device) if device.startswith("cuda") else _peak_on_cpu(call)


def _peak_on_cuda(call: Callable[[], Any], device: str) -> int:
    """Returns the peak of the caching allocator, which rounds blocks up to 512 bytes."""
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    return torch.cuda.max_memory_allocated(device) - before


def _peak_on_cpu(call: Callable[[], Any]) -> int:
    """Returns the maximum of the running sum over all allocations and frees by torch's allocator.

    torch's profiler records each of these, to the byte, in eager mode, in Inductor's code and in
    ours. The resident memory of the process would be less precise: it counts whole pages, only
    after they are touched, and memory that malloc keeps. But it includes allocations that bypass
    torch, so that a test compares the two. The profiler does not record frees of what was allocated
    before it began, so that the inputs have to outlive the call.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()  # noqa: F841  not freed before the profiler stops
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    changes: list[int] = [event.nbytes() for event in events if event.name() == "[memory]"]
    return max(accumulate(changes, initial=0))


# --- results --------------------------------------------------------------------------------------


def print_peaks(frame: pd.DataFrame, console: Console) -> None:
    """Prints a table with one row for each case and one column for each way to compute it."""
    providers = list(frame.provider.unique())
    title = "Peak memory beyond what was allocated before, in units of the input's size"
    table = table_of(title, [*GROUP, "input"], providers)
    for (*group, _, _), peaks in frame.groupby(CASE, sort=False):
        of = peaks.set_index("provider")
        megabytes = of.input_bytes.iloc[0] / 1e6
        cells = [_peak(of, name) for name in providers]
        table.add_row(*map(escape, group), f"{megabytes:.1f} MB", *cells)
    console.print(table)


def _peak(of: pd.DataFrame, provider: str) -> str:
    """Returns the cell of a provider; empty if the provider cannot compute the case."""
    if provider not in of.index:
        return ""
    peak = of.loc[provider]
    return f"+{peak.peak_over_input:.2f}\n{peak.peak_bytes / 1e6:.1f} MB"
