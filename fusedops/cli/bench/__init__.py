"""`python -m fusedops bench`: how fast the operators are on this machine, or what memory they take.

`operators` and `attention` say what is measured, `measurement` and `timing` how long it takes,
`memory` what it allocates, and `report` shows it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fusedops.cli.bench.cases import BACKWARD, FORWARD, MATRIX, SCORES, Case, Shape
from fusedops.cli.bench.measurement import Measurement, measure, prepare
from fusedops.cli.bench.memory import Peak, measure_peaks
from fusedops.cli.bench.operators import OPERATORS, family, selected
from fusedops.cli.bench.report import print_peaks, print_tables, to_frame, write_csv, write_plots
from fusedops.cli.env import describe_machine
from fusedops.cli.timing import clock_for

# glibc maps large blocks anew for every call and returns them after it: page faults then take most
# of the time and hide the kernels. These settings keep freed blocks for the next call.
ALLOCATOR_SETTINGS = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**33)}


# The families first; a variant can be named too.
OP_NAMES = list(dict.fromkeys([*map(family, OPERATORS), *OPERATORS]))


@dataclass(frozen=True)
class Effort:
    """How much is measured: the shapes, the rounds, and how long each provider runs in a round.

    `shapes` depend on how many dimensions an operator wants.
    """

    shapes: dict[int, list[Shape]]
    rounds: int
    slot_ms: float


def _scores(*lengths: int) -> list[Shape]:
    """Batch 8, 12 heads, as in BERT base."""
    return [(8, 12, length, length) for length in lengths]


QUICK = Effort(
    {MATRIX: [(4096, 1024), (2048, 4096), (8192, 512)], SCORES: _scores(128, 512)},
    rounds=9,
    slot_ms=12,
)
FULL = Effort(
    {
        MATRIX: [(8192, 128), *QUICK.shapes[MATRIX], (512, 16384), (64, 131072), (16, 1048576)],
        SCORES: _scores(128, 512, 1024),
    },
    rounds=25,
    slot_ms=20,
)
# A peak in units of the input is the same for every size.
MEMORY_SHAPES = {MATRIX: [(4096, 1024)], SCORES: _scores(256)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `bench`."""
    parser.add_argument(
        "--op", nargs="+", choices=OP_NAMES, default=list(OPERATORS), help="with all its variants"
    )
    parser.add_argument(
        "--pass",
        nargs="+",
        dest="directions",
        choices=[FORWARD, BACKWARD],
        default=[FORWARD, BACKWARD],
    )
    parser.add_argument(
        "--dtype",
        nargs="+",
        choices=["float32", "bfloat16", "float16", "float64"],
        default=["float32", "bfloat16"],
    )
    parser.add_argument(
        "--memory", action="store_true", help="peak memory in place of time; backward with forward"
    )
    parser.add_argument(
        "--shape",
        nargs="+",
        type=parse_shape,
        metavar="ROWSxCOLS",
        help="or BATCHxHEADSxQUERIESxKEYS; rows lie along the last dimension",
    )
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or cuda:N")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    parser.add_argument("--quick", action="store_true", help="fewer shapes and rounds")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write one row a measurement")
    parser.add_argument(
        "--plot", type=Path, metavar="DIR", help="write bar charts (needs matplotlib)"
    )


def run(args: argparse.Namespace) -> int:
    """Measure, print the tables, and write what was asked for."""
    device = check_device(args.device)
    if args.memory and args.plot:
        sys.exit("--plot: draws times; with --memory there are tables and --csv")
    if device == "cpu" and not args.memory:
        keep_freed_memory()
    torch.set_num_threads(args.threads)
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(f"{describe_machine()}, device {device}", highlight=False)
    frame = to_frame(peaks(args, device) if args.memory else measure_all(args, device))
    (print_peaks if args.memory else print_tables)(frame, console)
    if args.csv:
        write_csv(frame, args.csv)
    if args.plot:
        write_plots(frame, args.plot)
    return 0


def parse_shape(text: str) -> Shape:
    """`4096x1024` as (4096, 1024)."""
    sizes = text.split("x")
    if not (len(sizes) > 1 and all(size.isdecimal() and int(size) for size in sizes)):
        raise argparse.ArgumentTypeError(
            f"got {text!r}, wanted ROWSxCOLS such as 4096x1024, or more dimensions: 8x12x128x128"
        )
    return tuple(map(int, sizes))


def check_device(name: str) -> str:
    """The device's name, or the end of the program with what to do."""
    if name.startswith("cuda") and not torch.cuda.is_available():
        sys.exit(f"--device: got {name!r}, but torch sees no GPU; see `python -m fusedops env`")
    return str(torch.device(name))


def keep_freed_memory() -> None:
    """Start this program anew under ALLOCATOR_SETTINGS, unless it runs under them already."""
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
    args: argparse.Namespace, shapes: dict[int, list[Shape]], device: str
) -> Iterator[Case]:
    """Every combination that was asked for, on `shapes` where none were."""
    for op, direction, dtype in product(selected(args.op), args.directions, args.dtype):
        dimensions = OPERATORS[op].dimensions
        for shape in args.shape or shapes[dimensions]:
            filled_up = (1,) * (dimensions - len(shape)) + shape
            yield Case(op, OPERATORS[op], direction, getattr(torch, dtype), filled_up, device)


def measure_all(args: argparse.Namespace, device: str) -> list[Measurement]:
    """Time case by case."""
    effort = QUICK if args.quick else FULL
    clock = clock_for(device)
    measurements: list[Measurement] = []
    for case, say in announced(list(chosen_cases(args, effort.shapes, device))):
        say(f"compiling {case}")
        calls = prepare(case)
        say(f"timing {case}")
        measurements += measure(case, calls, clock, effort.rounds, effort.slot_ms)
    return measurements


def peaks(args: argparse.Namespace, device: str) -> list[Peak]:
    """The peaks of memory, case by case."""
    found: list[Peak] = []
    for case, say in announced(list(chosen_cases(args, MEMORY_SHAPES, device))):
        say(f"measuring {case}")
        found += measure_peaks(case)
    return found


def announced(cases: list[Case]) -> Iterator[tuple[Case, Callable[[str], None]]]:
    """The cases one by one, each with what shows a line about it on standard error."""
    columns = (MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(cases))
        for case in cases:
            yield case, lambda line: progress.update(task, description=escape(line))
            progress.advance(task)
