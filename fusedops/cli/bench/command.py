"""Measures what the options of `bench` select, and shows and writes the results."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pandas as pd
import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fusedops.cli.bench.arguments import DIRECTIONS, check_cases
from fusedops.cli.bench.cases import Case, Layout, Shape
from fusedops.cli.bench.measurement import measure, prepare
from fusedops.cli.bench.operators import OPERATORS, selected
from fusedops.cli.bench.report import print_tables, write_csv, write_plots
from fusedops.cli.env import describe_machine
from fusedops.cli.errors import UserError, describe, one_line
from fusedops.cli.timing import clock_for

# By default glibc maps large blocks of memory in every call and unmaps them when they are freed, so
# that page faults dominate the times. These settings of glibc keep freed blocks for the next call.
ALLOCATOR_SETTINGS = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**33)}

T = TypeVar("T")
#: The type of functions that show a line of progress.
Say = Callable[[str], None]
#: All cases, and the function that measures one of them.
Work = tuple[Sequence[Any], Callable[[Any, Say], Iterable[Any]]]
#: The type of functions that print the results.
Show = Callable[[pd.DataFrame, Console], None]


@dataclass(frozen=True)
class Effort:
    """Says how much is measured: the shapes of each layout, the number of rounds, and how many
    milliseconds each provider runs in a round."""

    shapes: dict[Layout, list[Shape]]
    rounds: int
    slot_ms: float


def scores(*lengths: int) -> list[Shape]:
    """Returns the shapes of scores, for a batch of 8 and the 12 heads of BERT base."""
    return [(8, 12, length, length) for length in lengths]


QUICK = Effort(
    {
        Layout.MATRIX: [(4096, 1024), (2048, 4096), (8192, 512)],
        Layout.LONG_ROWS: [(1, 2**20), (1, 2**24)],
        Layout.LOGITS: [(512, 50257), (8192, 128)],
        Layout.STACK: [(16, 64, 512)],
        Layout.IMAGES: [(8, 96, 3136), (8, 384, 196)],
        Layout.SCORES: scores(128, 512),
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
        Layout.LOGITS: [*((512, 50257), (2048, 32000), (512, 128256), (4096, 1000), (8192, 128))],
        Layout.STACK: [(4, 64, 512), (16, 16, 64), (16, 64, 512), (64, 64, 128), (8, 512, 1024)],
        Layout.IMAGES: [(8, 96, 3136), (8, 192, 784), (8, 384, 196), (8, 768, 49), (1, 256, 4096)],
        Layout.SCORES: scores(128, 512, 1024),
    },
    rounds=25,
    slot_ms=20,
)


def run(args: argparse.Namespace) -> int:
    """Measures, writes files and prints tables; returns 1 if a case had to be left out."""
    work = times(args)
    if args.device.type == "cpu":
        keep_freed_memory()
    torch.set_num_threads(args.threads or 1)

    def show(frame: pd.DataFrame, console: Console) -> None:
        if args.plot:
            write_plots(frame, args.plot)
        print_tables(frame, console)

    return measure_and_show(work, show, args.device, args.csv)


def measure_and_show(
    work: Work, show: Show, device: object = "cpu", csv: Path | None = None
) -> int:
    """Measures all cases, writes the results to the file `csv` and shows them; returns 1 if a case
    had to be left out.

    The file is written before `show` prints, because printing fails if the reader of a pipe closes
    it. If an interrupt has ended the measuring, raises KeyboardInterrupt at the end.
    """
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(f"{describe_machine()}, device {device}", highlight=False)
    measured = measure_each(*work)
    frame = pd.DataFrame(measured.rows)
    if csv:
        write_csv(frame, csv)
    show(frame, console)
    if measured.interrupted:
        raise KeyboardInterrupt
    return 1 if measured.left_out else 0


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


def chosen_cases(args: argparse.Namespace, shapes: dict[Layout, list[Shape]]) -> Iterator[Case]:
    """Yields a case for every combination of the operators, directions, dtypes and shapes that the
    options select. If they name no shape, `shapes` are used."""
    ops = dict.fromkeys(selected(args.op or list(OPERATORS)))
    directions = dict.fromkeys(args.directions or DIRECTIONS)
    dtypes = dict.fromkeys(args.dtype or ["float32", "bfloat16"])
    for op, direction, dtype in product(ops, directions, dtypes):
        layout, tensor_dtype = OPERATORS[op].layout, getattr(torch, dtype)
        for shape in dict.fromkeys(args.shape or shapes[layout]):
            filled_up = (1,) * (layout.dimensions - len(shape)) + shape
            yield Case(op, OPERATORS[op], direction, tensor_dtype, filled_up, str(args.device))


def times(args: argparse.Namespace) -> Work:
    """Returns the cases to time, and the function that times one."""
    effort = QUICK if args.quick else FULL
    checked = check_cases(chosen_cases(args, effort.shapes))
    clock = clock_for(str(args.device))

    def time(case: Case, say: Say) -> list[dict[str, Any]]:
        say(f"compiling {case}")
        calls = prepare(case)
        say(f"timing {case}")
        return measure(case, calls, clock, effort.rounds, effort.slot_ms)

    return checked, time


class Measured(NamedTuple):
    """The results of all cases.

    rows: what was measured: for `bench`, the lines of the CSV.
    left_out: the cases that failed.
    interrupted: whether an interrupt came before all cases were measured.
    """

    rows: list[Any]
    left_out: list[Any]
    interrupted: bool


def measure_each(
    cases: Sequence[Any],
    measure: Callable[[Any, Say], Iterable[Any]],
    why_nothing: str = "the lines above say why",
    auto_refresh: bool = True,
) -> Measured:
    """Returns the results of `measure` for all cases, or for those before an interrupt.

    A case that fails is reported on standard error, and the others are still measured.
    `why_nothing` ends the error that says that nothing was measured.
    """
    rows: list[Any] = []
    left_out: list[Any] = []
    interrupted = False
    try:
        for case, say in announced(cases, len(cases), auto_refresh):
            try:
                rows += measure(case, say)
            except Exception as error:
                left_out.append(case)
                print(one_line(f"{case} is left out: {describe(error)}"), file=sys.stderr)
    except KeyboardInterrupt:
        interrupted = True
        if not rows:
            raise
    if not rows:
        raise UserError(f"nothing was measured; {why_nothing}")
    return Measured(rows, left_out, interrupted)


def announced(cases: Iterable[T], total: int, auto_refresh: bool = True) -> Iterator[tuple[T, Say]]:
    """Yields each case with a function that shows its progress on standard error. Without
    `auto_refresh` no thread runs beside the cases, and the display changes with each case alone."""
    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
    what, console = TextColumn("{task.description}"), Console(stderr=True)
    with Progress(*columns, what, console=console, auto_refresh=auto_refresh) as progress:
        task = progress.add_task("", total=total)
        for case in cases:
            yield case, lambda line: progress.update(task, description=escape(line), refresh=True)
            progress.advance(task)
