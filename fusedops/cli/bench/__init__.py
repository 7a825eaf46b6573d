"""`python -m fusedops bench`: how fast the operators are on this machine, or what memory they take.

`operators` and `attention` say what is measured, `measurement` and `timing` how long it takes,
`memory` what it allocates, `models` and `sites` what becomes of whole models, `policy` what the
rewriter decides by, and `report` shows it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TypeVar

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch._inductor.exc import InductorError

from fusedops.cli.bench.cases import BACKWARD, FORWARD, Case, Layout, Shape
from fusedops.cli.bench.measurement import Measurement, measure, prepare
from fusedops.cli.bench.memory import Peak, measure_peaks
from fusedops.cli.bench.models import (
    ROUNDS,
    ROUNDS_QUICK,
    Step,
    StepTime,
    chosen_steps,
    measure_step,
    prepare_step,
    size_of,
)
from fusedops.cli.bench.operators import OPERATORS, family, selected
from fusedops.cli.bench.policy import policy_cases, to_table
from fusedops.cli.bench.report import (
    print_peaks,
    print_steps,
    print_tables,
    to_frame,
    write_csv,
    write_plots,
)
from fusedops.cli.env import describe_machine
from fusedops.cli.models import MODELS
from fusedops.cli.models.hugging_face import HUGGING_FACE, import_transformers
from fusedops.cli.timing import clock_for
from fusedops.graph import costs

# glibc maps large blocks anew for every call and returns them after it: page faults then take most
# of the time and hide the kernels. These settings keep freed blocks for the next call.
ALLOCATOR_SETTINGS = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**33)}


T = TypeVar("T")

# The families first; a variant can be named too.
OP_NAMES = list(dict.fromkeys([*map(family, OPERATORS), *OPERATORS]))
DIRECTIONS = [FORWARD, BACKWARD]


@dataclass(frozen=True)
class Effort:
    """How much is measured: the shapes, the rounds, and how long each provider runs in a round.

    `shapes` depend on the layout that an operator wants.
    """

    shapes: dict[Layout, list[Shape]]
    rounds: int
    slot_ms: float


def _scores(*lengths: int) -> list[Shape]:
    """Batch 8, 12 heads, as in BERT base."""
    return [(8, 12, length, length) for length in lengths]


QUICK = Effort(
    {
        Layout.MATRIX: [(4096, 1024), (2048, 4096), (8192, 512)],
        Layout.LONG_ROWS: [(1, 2**20), (1, 2**24)],
        Layout.STACK: [(16, 64, 512)],
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
        Layout.SCORES: _scores(128, 512, 1024),
    },
    rounds=25,
    slot_ms=20,
)
# A peak in units of the input is the same for every size.
MEMORY_SHAPES = {
    Layout.MATRIX: [(4096, 1024)],
    Layout.LONG_ROWS: [(1, 2**22)],
    Layout.STACK: [(16, 256, 1024)],
    Layout.SCORES: _scores(256),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `bench`."""
    parser.add_argument("--op", nargs="+", choices=OP_NAMES, help="with all its variants")
    parser.add_argument(
        "--pass",
        nargs="+",
        dest="directions",
        choices=DIRECTIONS,
        help="default: both; of whole models forward is inference, backward training",
    )
    parser.add_argument(
        "--dtype",
        nargs="+",
        choices=["float32", "bfloat16", "float16", "float64"],
        help="default: float32 and bfloat16; float32 of whole models",
    )
    parser.add_argument(
        "--memory", action="store_true", help="peak memory in place of time; backward with forward"
    )
    parser.add_argument(
        "--policy",
        action="store_true",
        help='measure what fuse="profitable" decides by, into the package or to --csv',
    )
    _add_model_arguments(parser)
    parser.add_argument(
        "--shape",
        nargs="+",
        type=parse_shape,
        metavar="ROWSxCOLS",
        help="or TENSORSxROWSxCOLS of a stack, BATCHxHEADSxQUERIESxKEYS of scores; rows lie along "
        "the last dimension",
    )
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or cuda:N")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    parser.add_argument("--quick", action="store_true", help="fewer shapes and rounds")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write one row a measurement")
    parser.add_argument(
        "--plot", type=Path, metavar="DIR", help="write bar charts (needs matplotlib)"
    )


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Which whole models, and their size."""
    parser.add_argument(
        "--models",
        nargs="*",
        metavar="NAME",
        help=f"a step of whole models in place of operators; a chosen few, or: {', '.join(MODELS)}",
    )
    parser.add_argument("--batch", type=int, default=1, help="sequences of a step (default 1)")
    parser.add_argument("--length", type=int, default=512, help="tokens of each (default 512)")
    parser.add_argument("--width", type=int, default=768, help="features of each (default 768)")


def run(args: argparse.Namespace) -> int:
    """Measure, print the tables, and write what was asked for."""
    check_options(args)
    device = check_device(args.device)
    if device == "cpu" and not args.memory:
        keep_freed_memory()
    torch.set_num_threads(args.threads)
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(f"{describe_machine()}, device {device}", highlight=False)
    if args.models is not None:
        frame, show = to_frame(step_times(args)), print_steps
    elif args.memory:
        frame, show = to_frame(peaks(args, device)), print_peaks
    else:
        frame, show = to_frame(measure_all(args, device)), print_tables
    show(frame, console)
    if args.policy:
        file = args.csv or costs.table_file(torch.device(device))
        write_csv(to_table(frame), file)
        console.print(f"written to {file}")
    elif args.csv:
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


def check_options(args: argparse.Namespace) -> None:
    """End the program where options do not go together."""
    if args.models is None:
        if args.policy and (args.op or args.directions or args.shape or args.memory or args.plot):
            sys.exit("--policy: measures a set of its own; it takes --device, --threads and --csv")
        if args.memory and args.plot:
            sys.exit("--plot: draws times; with --memory there are tables and --csv")
        return
    if unknown := [name for name in args.models if name not in MODELS]:
        sys.exit(f"--models: got {', '.join(unknown)}, wanted some of {', '.join(MODELS)}")
    others = {"--op": args.op, "--shape": args.shape}
    others |= {"--memory": args.memory, "--plot": args.plot, "--policy": args.policy}
    if given := [option for option, value in others.items() if value]:
        sys.exit(
            f"{', '.join(given)}: not with --models, which takes --batch, --length and --width"
        )
    if args.device != "cpu":
        sys.exit(f"--device: got {args.device!r}; --models measures on the CPU alone")


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
    args: argparse.Namespace, shapes: dict[Layout, list[Shape]], device: str
) -> Iterator[Case]:
    """Every combination that was asked for, on `shapes` where none were."""
    ops = selected(args.op or list(OPERATORS))
    dtypes = args.dtype or ["float32", "bfloat16"]
    for op, direction, dtype in product(ops, args.directions or DIRECTIONS, dtypes):
        layout = OPERATORS[op].layout
        for shape in args.shape or shapes[layout]:
            filled_up = (1,) * (layout.dimensions - len(shape)) + shape
            yield Case(op, OPERATORS[op], direction, getattr(torch, dtype), filled_up, device)


def measure_all(args: argparse.Namespace, device: str) -> list[Measurement]:
    """Time case by case."""
    effort = QUICK if args.quick or args.policy else FULL
    cases = policy_cases(device) if args.policy else chosen_cases(args, effort.shapes, device)
    clock = clock_for(device)
    measurements: list[Measurement] = []
    for case, say in announced(list(cases)):
        say(f"compiling {case}")
        calls = prepare(case, in_a_graph=args.policy)
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


def step_times(args: argparse.Namespace) -> list[StepTime]:
    """The providers' times, model by model."""
    dtypes = [getattr(torch, dtype) for dtype in args.dtype or ["float32"]]
    size = size_of(args.length, args.width)
    directions = args.directions or DIRECTIONS
    steps = chosen_steps(args.models, directions, dtypes, args.batch, size, args.quick)
    require_packages(steps)
    found: list[StepTime] = []
    for step, say in announced(steps):
        say(f"compiling {step}")
        try:
            calls = prepare_step(step)
        except InductorError as error:  # of this step: what was measured before is kept
            print(f"{step} is left out: {' '.join(str(error).split()[:40])}", file=sys.stderr)
            continue
        say(f"timing {step}")
        found.append(measure_step(step, calls, ROUNDS_QUICK if args.quick else ROUNDS))
    if not found:
        sys.exit("--models: nothing was measured; the lines above say why")
    return found


def require_packages(steps: list[Step]) -> None:
    """End the program, with what to install, where a model cannot be built."""
    if any(step.model in HUGGING_FACE for step in steps):
        try:
            import_transformers()
        except ImportError as error:
            sys.exit(str(error))


def announced(cases: list[T]) -> Iterator[tuple[T, Callable[[str], None]]]:
    """The cases one by one, each with what shows a line about it on standard error."""
    columns = (MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(cases))
        for case in cases:
            yield case, lambda line: progress.update(task, description=escape(line))
            progress.advance(task)
