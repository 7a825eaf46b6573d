"""`python -m tools.bench host` measures the overhead of a call, compared with torch's functions.

A row of 128 floats is computed in less than 0.1 us. The rest of a call's time is overhead: that of
Python, of the dispatcher and of autograd. In a model it is larger, because matrix products between
the calls fill the caches with other data: the code that a call runs is then read from memory.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from itertools import product, starmap
from typing import Any, NamedTuple

import pandas as pd
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor

import fusedops
from fusedops.cli import options
from fusedops.cli.bench.command import Say, keep_freed_memory, measure_and_show
from fusedops.cli.bench.report import table_of
from fusedops.cli.timing import Call

SUMMARY = "measure the overhead of a call, compared with torch's own functions"
ROWS, COLS = 1, 128
WITHOUT_GRAD, FORWARD, BOTH = "without grad", "forward with grad", "forward and backward"
AFTER_PRODUCT = "without grad, after a product"
MODES = (WITHOUT_GRAD, AFTER_PRODUCT, FORWARD, BOTH)
#: The rows and columns of the factors of a matrix product. All three matrices take 7 MB.
PRODUCT = 768

#: A call is repeated this often in a burst. A burst is so short that other programs disturb few.
BURST = 100
BURSTS, BURSTS_QUICK = 1000, 50

Function = Callable[..., Tensor]

#: Operator -> torch's function and ours, which take a tensor, a weight and a bias.
FUNCTIONS: dict[str, tuple[Function, Function]] = {
    "softmax": (lambda x, w, b: F.softmax(x, -1), lambda x, w, b: fusedops.softmax(x, -1)),
    "log_softmax": (
        lambda x, w, b: F.log_softmax(x, -1),
        lambda x, w, b: fusedops.log_softmax(x, -1),
    ),
    "layer_norm": (
        lambda x, w, b: F.layer_norm(x, (COLS,), w, b),
        lambda x, w, b: fusedops.layer_norm(x, (COLS,), w, b),
    ),
    "rms_norm": (
        lambda x, w, b: F.rms_norm(x, (COLS,), w),
        lambda x, w, b: fusedops.rms_norm(x, (COLS,), w),
    ),
}


class HostCase(NamedTuple):
    """One function in one mode."""

    op: str
    mode: str

    def __str__(self) -> str:
        return f"{self.op}, {self.mode}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `host`."""
    parser.add_argument("--quick", action="store_true", help="fewer bursts")
    parser.add_argument("--csv", type=options.output_file, metavar="FILE", help="write the times")


def run(args: argparse.Namespace) -> int:
    """Measures every function in every mode, writes the file and prints the table."""
    keep_freed_memory()
    torch.set_num_threads(1)
    bursts = BURSTS_QUICK if args.quick else BURSTS

    def measure(case: HostCase, say: Say) -> list[dict[str, Any]]:
        say(f"timing {case}")
        return [measure_host(case, bursts)]

    cases = list(starmap(HostCase, product(FUNCTIONS, MODES)))
    return measure_and_show((cases, measure), print_host_times, csv=args.csv)


def measure_host(case: HostCase, bursts: int) -> dict[str, Any]:
    """Returns the microseconds that a call of each of the two functions takes, as a line of the
    CSV. The functions take turns."""
    calls = [_call(function, case.mode) for function in FUNCTIONS[case.op]]
    is_after_product = case.mode == AFTER_PRODUCT
    # A product takes as long as hundreds of calls.
    times = us_after_product(calls, bursts // 10) if is_after_product else least_us(calls, bursts)
    torch_us, fusedops_us = times
    columns = {"torch_us": torch_us, "fusedops_us": fusedops_us, "ratio": fusedops_us / torch_us}
    return {**case._asdict(), "rows": ROWS, "cols": COLS, **columns}


def _call(function: Function, mode: str) -> Call:
    x, w, b = (torch.randn(*shape) for shape in ((ROWS, COLS), (COLS,), (COLS,)))
    if mode in (WITHOUT_GRAD, AFTER_PRODUCT):
        return lambda: function(x, w, b)
    leaves = [leaf.requires_grad_() for leaf in (x, w, b)]
    if mode == FORWARD:
        return lambda: function(*leaves)
    grad = torch.randn(ROWS, COLS)
    return lambda: torch.autograd.grad(function(*leaves), leaves, grad, allow_unused=True)


def least_us(calls: list[Call], bursts: int) -> list[float]:
    """Returns how many microseconds each call takes: the least mean over a burst. The bursts of the
    calls take turns."""
    least = [float("inf")] * len(calls)
    collects = gc.isenabled()
    gc.disable()
    try:
        for _ in range(bursts):
            for index, call in enumerate(calls):
                start = time.perf_counter_ns()
                for _ in range(BURST):
                    call()
                least[index] = min(least[index], (time.perf_counter_ns() - start) / BURST / 1e3)
    finally:
        if collects:
            gc.enable()
    return least


def us_after_product(calls: list[Call], rounds: int) -> list[float]:
    """Returns how many microseconds each call takes after a matrix product: the median over the
    rounds, in which the calls take turns."""
    a, b, result = (torch.zeros(PRODUCT, PRODUCT) for _ in range(3))
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, us in zip(calls, times, strict=True):
            torch.mm(a, b, out=result)
            start = time.perf_counter_ns()
            call()
            us.append((time.perf_counter_ns() - start) / 1e3)
    return list(map(statistics.median, times))


def print_host_times(frame: pd.DataFrame, console: Console) -> None:
    """Prints a table with one row for each function and mode."""
    title = "Host time: microseconds a call, the minimum of bursts, or the median after products"
    numbers = ["torch us", "fusedops us", "times torch's"]
    table = table_of(title, ["op", "mode", "input"], numbers)
    for row in frame.itertuples():
        times = (f"{us:.2f}" for us in (row.torch_us, row.fusedops_us, row.ratio))
        table.add_row(row.op, row.mode, f"{row.rows}x{row.cols}", *times)
    console.print(table)
