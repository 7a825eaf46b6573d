"""`python -m fusedops bench`: how fast the operators are on this machine.

`cases` says what is timed, `measurement` and `timing` how, `report` shows it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fusedops.cli.bench.cases import BACKWARD, FORWARD, OPS, Case
from fusedops.cli.bench.measurement import Measurement, measure, prepare
from fusedops.cli.bench.report import print_tables, to_frame, write_csv, write_plots
from fusedops.cli.env import describe_machine
from fusedops.cli.timing import clock_for

Shape = tuple[int, int]

# glibc maps large blocks anew for every call and returns them after it: page faults then take most
# of the time and hide the kernels. These settings keep freed blocks for the next call.
ALLOCATOR_SETTINGS = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**33)}


@dataclass(frozen=True)
class Effort:
    """How much is measured: the shapes, the rounds, and how long each provider runs in a round."""

    shapes: list[Shape]
    rounds: int
    slot_ms: float


QUICK = Effort([(4096, 1024), (2048, 4096), (8192, 512)], rounds=9, slot_ms=12)
FULL = Effort(
    [(8192, 128), *QUICK.shapes, (512, 16384), (64, 131072), (16, 1048576)], rounds=25, slot_ms=20
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `bench`."""
    parser.add_argument("--op", nargs="+", choices=list(OPS), default=list(OPS))
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
    parser.add_argument("--shape", nargs="+", type=parse_shape, metavar="ROWSxCOLS")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or cuda:N")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    parser.add_argument("--quick", action="store_true", help="three shapes and few rounds")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write one row a measurement")
    parser.add_argument(
        "--plot", type=Path, metavar="DIR", help="write bar charts (needs matplotlib)"
    )


def run(args: argparse.Namespace) -> int:
    """Measure, print the tables, and write what was asked for."""
    device = check_device(args.device)
    if device == "cpu":
        keep_freed_memory()
    torch.set_num_threads(args.threads)
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(f"{describe_machine()}, device {device}", highlight=False)
    frame = to_frame(measure_all(args, device))
    print_tables(frame, console)
    if args.csv:
        write_csv(frame, args.csv)
    if args.plot:
        write_plots(frame, args.plot)
    return 0


def parse_shape(text: str) -> Shape:
    """`4096x1024` as (4096, 1024)."""
    rows, _, cols = text.partition("x")
    if not (rows.isdecimal() and cols.isdecimal() and int(rows) and int(cols)):
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted ROWSxCOLS such as 4096x1024")
    return int(rows), int(cols)


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


def chosen_cases(args: argparse.Namespace, shapes: list[Shape], device: str) -> Iterator[Case]:
    """Every combination that was asked for."""
    for op, direction, dtype, shape in product(args.op, args.directions, args.dtype, shapes):
        yield Case(op, direction, getattr(torch, dtype), *shape, device)


def measure_all(args: argparse.Namespace, device: str) -> list[Measurement]:
    """Measure case by case, with progress on standard error."""
    effort = QUICK if args.quick else FULL
    todo = list(chosen_cases(args, args.shape or effort.shapes, device))
    clock = clock_for(device)
    measurements: list[Measurement] = []
    columns = (MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(todo))
        for case in todo:
            progress.update(task, description=f"compiling {case}")
            calls = prepare(case)
            progress.update(task, description=f"timing {case}")
            measurements += measure(case, calls, clock, effort.rounds, effort.slot_ms)
            progress.advance(task)
    return measurements
