"""Measures what the options of `bench` select, and shows and writes the results."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple, TypeVar

import pandas as pd
import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fusedops.cli.bench.arguments import (
    DIRECTIONS,
    check_cases,
    check_options,
    check_steps,
)
from fusedops.cli.bench.cases import Case, Layout, Shape
from fusedops.cli.bench.host import (
    BURSTS,
    BURSTS_QUICK,
    HostCase,
    HostTime,
    host_cases,
    measure_host,
)
from fusedops.cli.bench.measurement import REFERENCE, Measurement, measure, prepare
from fusedops.cli.bench.memory import Peak, measure_peaks
from fusedops.cli.bench.models import (
    DTYPES,
    TURNS,
    TURNS_QUICK,
    Step,
    StepTime,
    chosen_steps,
    measure_step,
    prepare_peers,
    prepare_step,
    size_of,
)
from fusedops.cli.bench.operators import OPERATORS, selected
from fusedops.cli.bench.report import (
    print_host_times,
    print_peaks,
    print_steps,
    print_tables,
    read_steps,
    to_frame,
    write_csv,
    write_plots,
)
from fusedops.cli.bench.zoo.hugging_face import HUGGING_FACE, import_transformers
from fusedops.cli.env import describe_machine
from fusedops.cli.errors import UserError, describe, one_line
from fusedops.cli.timing import clock_for

# By default glibc maps large blocks for every call and unmaps them afterwards, so that page faults
# dominate the times. These settings keep freed blocks for the next call.
ALLOCATOR_SETTINGS = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**33)}


T = TypeVar("T")
Row = Measurement | Peak | StepTime | HostTime


@dataclass(frozen=True)
class Effort:
    """How much is measured: the shapes of each layout, the rounds, and how long each provider runs
    in a round."""

    shapes: dict[Layout, list[Shape]]
    rounds: int
    slot_ms: float


def _scores(*lengths: int) -> list[Shape]:
    """Scores of a batch of 8 with 12 heads, as in BERT base."""
    return [(8, 12, length, length) for length in lengths]


QUICK = Effort(
    {
        Layout.MATRIX: [(4096, 1024), (2048, 4096), (8192, 512)],
        Layout.LONG_ROWS: [(1, 2**20), (1, 2**24)],
        Layout.STACK: [(16, 64, 512)],
        Layout.IMAGES: [(8, 96, 3136), (8, 384, 196)],
        Layout.SCORES: _scores(128, 512),
    },
    rounds=9,
    slot_ms=12,
)
FULL = Effort(
    {
        Layout.MATRIX: [
            *((8192, 128), *QUICK.shapes[Layout.MATRIX]),
            *((512, 16384), (64, 131072), (16, 1048576)),
        ],
        Layout.LONG_ROWS: [(1, 2**17), (1, 2**20), (1, 2**22), (1, 2**24), (1, 2**26), (3, 2**18)],
        Layout.STACK: [(4, 64, 512), (16, 16, 64), (16, 64, 512), (64, 64, 128), (8, 512, 1024)],
        Layout.IMAGES: [(8, 96, 3136), (8, 192, 784), (8, 384, 196), (8, 768, 49), (1, 256, 4096)],
        Layout.SCORES: _scores(128, 512, 1024),
    },
    rounds=25,
    slot_ms=20,
)
# One size is enough: a peak in units of the input does not depend on the size.
MEMORY_SHAPES: dict[Layout, list[Shape]] = {
    Layout.MATRIX: [(4096, 1024)],
    Layout.LONG_ROWS: [(1, 2**22)],
    Layout.STACK: [(16, 256, 1024)],
    Layout.IMAGES: [(8, 96, 3136)],
    Layout.SCORES: _scores(256),
}


def run(args: argparse.Namespace) -> int:
    """Measures, writes files and prints tables; returns 1 if a case had to be left out.

    Raises KeyboardInterrupt after that, if an interrupt ended the measuring.
    """
    check_options(args)
    work, show = _plan(args)
    if args.device.type == "cpu" and not args.memory:
        keep_freed_memory()
    if args.models is None:  # the steps of models set the number of threads themselves
        torch.set_num_threads(args.threads or 1)
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(f"{describe_machine()}, device {args.device}", highlight=False)
    measured = measure_each(*work)
    frame = to_frame(measured.rows)
    # Files are written first, because printing fails if the reader closes the pipe.
    if args.csv and args.models is None:  # times of models are written after each step
        write_csv(frame, args.csv)
    if args.plot:
        write_plots(frame, args.plot)
    show(frame, console)
    if measured.interrupted:
        raise KeyboardInterrupt
    return 1 if measured.left_out else 0


Say = Callable[[str], None]
Work = tuple[Sequence[Any], Callable[[Any, Say], Iterable[Row]]]


def _plan(args: argparse.Namespace) -> tuple[Work, Callable[[pd.DataFrame, Console], None]]:
    """All cases, the function that measures one of them, and the one that prints the results."""
    if args.models is not None:
        return step_times(args), print_steps
    if args.memory:
        return peaks(args), print_peaks
    if args.host:
        return host_times(args), print_host_times
    return times(args), print_tables


def keep_freed_memory() -> None:
    """Restarts this program with ALLOCATOR_SETTINGS, unless it runs with them already."""
    if os.environ.items() >= ALLOCATOR_SETTINGS.items():
        return
    settings = " ".join(f"{name}={value}" for name, value in ALLOCATOR_SETTINGS.items())
    print(
        f"restarting with {settings}: freed memory is kept, page faults are not timed",
        file=sys.stderr,
    )
    command = [sys.executable, *sys.orig_argv[1:]]
    os.execve(sys.executable, command, os.environ | ALLOCATOR_SETTINGS)


def chosen_cases(
    args: argparse.Namespace, shapes: dict[Layout, list[Shape]], device: str
) -> Iterator[Case]:
    """Every requested combination, on the default `shapes` if none were given."""
    ops = selected(args.op or list(OPERATORS))
    dtypes = args.dtype or ["float32", "bfloat16"]
    for op, direction, dtype in product(ops, args.directions or DIRECTIONS, dtypes):
        layout = OPERATORS[op].layout
        for shape in args.shape or shapes[layout]:
            filled_up = (1,) * (layout.dimensions - len(shape)) + shape
            yield Case(op, OPERATORS[op], direction, getattr(torch, dtype), filled_up, device)


def times(args: argparse.Namespace) -> Work:
    """The cases to time, and the function that times one."""
    effort, device = QUICK if args.quick else FULL, str(args.device)
    checked = check_cases(chosen_cases(args, effort.shapes, device))
    clock = clock_for(device)

    def time(case: Case, say: Say) -> list[Measurement]:
        say(f"compiling {case}")
        calls = prepare(case)
        say(f"timing {case}")
        return measure(case, calls, clock, effort.rounds, effort.slot_ms)

    return checked, time


def peaks(args: argparse.Namespace) -> Work:
    """The cases whose peak memory is measured, and the function that measures one."""

    def peak(case: Case, say: Say) -> list[Peak]:
        say(f"measuring {case}")
        return list(measure_peaks(case))

    return check_cases(chosen_cases(args, MEMORY_SHAPES, str(args.device))), peak


def host_times(args: argparse.Namespace) -> Work:
    """The calls whose host time is measured, and the function that measures one."""
    bursts = BURSTS_QUICK if args.quick else BURSTS

    def time(case: HostCase, say: Say) -> list[HostTime]:
        say(f"timing {case}")
        return [measure_host(case, bursts)]

    return list(host_cases()), time


def step_times(args: argparse.Namespace) -> Work:
    """The steps of whole models to time, and the function that times one. With --resume, steps that
    are in the CSV file are taken from it."""
    dtypes = args.dtype or (DTYPES[:1] if args.quick else DTYPES)
    every = dict.fromkeys([1, torch.get_num_threads()])
    threads = [args.threads] if args.threads else [1] if args.quick else list(every)
    steps = chosen_steps(
        args.models,
        args.directions or DIRECTIONS,
        [getattr(torch, dtype) for dtype in dtypes],
        threads,
        args.batch,
        size_of(args.length, args.width),
        args.quick,
    )
    require_packages(steps)
    rows = read_steps(args.csv) if args.resume else []

    def time(step: Step, say: Say) -> list[StepTime]:
        if kept := [row for row in rows if row.is_of(step)]:
            return kept
        rows.append(time_step(step, say, args.quick))
        if args.csv:  # written after each step, so that an interruption loses at most one
            write_csv(to_frame(rows), args.csv)
        return rows[-1:]

    return check_steps(steps), time


def time_step(step: Step, say: Say, quick: bool) -> StepTime:
    """Compiles a step with every provider, then times it."""
    say(f"compiling {step}")
    calls = prepare_step(step)
    say(f"compiling {step} for OpenVINO and ONNX Runtime")
    peers, problems = prepare_peers(step, calls[REFERENCE]())
    for problem in problems:
        print(one_line(problem), file=sys.stderr)
    say(f"timing {step}")
    return measure_step(step, calls | peers, TURNS_QUICK if quick else TURNS)


def require_packages(steps: list[Step]) -> None:
    """Raises UserError with what to install if a model cannot be built."""
    if any(step.model in HUGGING_FACE for step in steps):
        try:
            import_transformers()
        except ImportError as error:
            raise UserError(f"--models: {error}") from error


class Measured(NamedTuple):
    """The rows of the cases that were measured, the number of those that failed, and whether an
    interrupt came before the rest."""

    rows: list[Row]
    left_out: int
    interrupted: bool


def measure_each(cases: Sequence[Any], measure: Callable[[Any, Say], Iterable[Row]]) -> Measured:
    """The results of `measure` for all cases, or for those before an interrupt.

    A case that fails is reported on standard error, and the others are still measured.
    """
    rows: list[Row] = []
    left_out, interrupted = 0, False
    try:
        for case, say in announced(cases):
            try:
                rows += measure(case, say)
            except Exception as error:
                left_out += 1
                print(one_line(f"{case} is left out: {describe(error)}"), file=sys.stderr)
    except KeyboardInterrupt:
        interrupted = True
        if not rows:
            raise
    if not rows:
        raise UserError("nothing was measured; the lines above say why")
    return Measured(rows, left_out, interrupted)


def announced(cases: Sequence[T]) -> Iterator[tuple[T, Say]]:
    """The cases one by one, each with a function that shows its progress on standard error."""
    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
    what = TextColumn("{task.description}")
    with Progress(*columns, what, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(cases))
        for case in cases:
            yield case, lambda line: progress.update(task, description=escape(line))
            progress.advance(task)
