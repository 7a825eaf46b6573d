"""`python -m tools.bench models` times whole models and prints a table.

A cell of the benchmark is one model in one mode, with one dtype and number of threads. A step is a
forward pass, or in training a forward and a backward pass.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

import pandas as pd
import torch
from rich.console import Console

from fusedops.cli import options
from fusedops.cli.bench.arguments import DIRECTIONS, add_common_arguments
from fusedops.cli.bench.command import Say, Work, keep_freed_memory, measure_and_show
from fusedops.cli.bench.measurement import REFERENCE
from fusedops.cli.bench.report import table_of, write_csv
from fusedops.cli.errors import UsageError, UserError, one_line
from tools.bench.peers import PEERS, not_installed
from tools.bench.steps import (
    DEFAULT,
    DTYPES,
    HEAD_WIDTH,
    TOLERANCE,
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
from tools.bench.zoo import MODELS
from tools.bench.zoo.hugging_face import HUGGING_FACE, import_transformers

SUMMARY = "time whole models against eager PyTorch, Inductor, OpenVINO and ONNX Runtime"
BATCH, LENGTH, WIDTH = 1, 512, 768


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `models`."""
    add = parser.add_argument
    name = options.checked(str, MODELS.__contains__, f"some of {', '.join(MODELS)}")
    help = f"default: {', '.join(DEFAULT)}; --pass forward is inference, --pass backward training"
    add("models", nargs="*", type=name, metavar="MODEL", help=help)
    add_common_arguments(parser, threads="1 and all, with --quick 1")
    add("--device", type=options.device, default=torch.device("cpu"), help="cpu (default) or cuda")
    add("--batch", type=options.positive, default=BATCH, help=f"sequences of a step ({BATCH})")
    add("--length", type=options.positive, default=LENGTH, help=f"tokens of each ({LENGTH})")
    width = options.checked(
        int, lambda value: value > 0 and value % HEAD_WIDTH == 0, f"a multiple of {HEAD_WIDTH}"
    )
    add("--width", type=width, default=WIDTH, help=f"features of each ({WIDTH})")
    add("--quick", action="store_true", help="two cells in float32 on one thread, fewer rounds")
    add(
        "--resume",
        action="store_true",
        help="measure what the file of --csv lacks, and add it there",
    )


def run(args: argparse.Namespace) -> int:
    """Measures, writes each cell to the file of --csv, and prints the table. Returns 1 if a cell
    had to be left out."""
    if args.resume and not args.csv:
        raise UsageError("--resume: wanted --csv with it, the file with the earlier results")
    work = step_times(args)
    if args.device.type == "cpu":
        keep_freed_memory()
    return measure_and_show(work, print_steps, args.device)


def step_times(args: argparse.Namespace) -> Work:
    """Returns the steps to time, and the function that times one of them. With --resume, a step
    that is in the CSV file is not timed, and its times are taken from the file."""
    dtypes = args.dtype or (DTYPES[:1] if args.quick else DTYPES)
    is_on_cpu = args.device.type == "cpu"
    every = [1, torch.get_num_threads()] if is_on_cpu and not args.quick else [1]
    steps = chosen_steps(
        args.models,
        args.directions or DIRECTIONS,
        [getattr(torch, dtype) for dtype in dtypes],
        [args.threads] if args.threads else every,
        args.batch,
        size_of(args.length, args.width),
        args.quick,
        str(args.device),
    )
    require_packages(steps)
    rows = read_steps(args.csv) if args.resume else []

    def time(step: Step, say: Say) -> list[StepTime]:
        if kept := [row for row in rows if row.is_of(step)]:
            return kept
        rows.append(time_step(step, say, args.quick))
        # The file is written after each step, so that an interrupt loses one step at most.
        if args.csv:
            write_csv(pd.DataFrame(rows), args.csv)
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


def require_packages(steps: Sequence[Step]) -> None:
    """Raises UserError, which says what to install, if a package is missing that a model needs."""
    if any(step.model in HUGGING_FACE for step in steps):
        try:
            import_transformers()
        except ImportError as error:
            raise UserError(str(error)) from error


def check_steps(steps: list[Step]) -> list[Step]:
    """Returns the steps. Raises UsageError if a single layer of one of them does not fit into this
    machine's memory."""
    for step in steps:
        if step.device != "cpu":
            continue
        scores = step.batch * step.size.heads * step.size.length**2
        features = step.batch * step.size.length * step.size.width
        # In units of width * width, attention has 4 weights, and the feed-forward network has 8.
        weights = 12 * step.size.width**2
        numbers = 2 * scores + 2 * features + weights
        options.require_memory(str(step), numbers * step.dtype.itemsize)
    return steps


# --- results --------------------------------------------------------------------------------------


def read_steps(file: Path) -> list[StepTime]:
    """Returns the steps that `write_csv` wrote; an empty list if the file is missing or empty."""
    if not file.exists() or not file.stat().st_size:
        return []
    names = [field.name for field in fields(StepTime)]
    try:
        frame = pd.read_csv(file)
        if list(frame) != names:
            raise ValueError(f"its columns are {', '.join(map(str, frame))}")
        return [StepTime(*row) for row in frame.itertuples(index=False)]
    except ValueError as error:
        raise UserError(f"--resume: {file} was not written by `models --csv`: {error}") from error


def print_steps(frame: pd.DataFrame, console: Console) -> None:
    """Prints a table with a row for each step. The number after ± is half of the spread of the
    ratio of Inductor's time to ours."""
    steps = [StepTime(*row) for row in frame.itertuples(index=False)]
    inputs = dict.fromkeys(f"{step.batch}x{step.length}x{step.width}" for step in steps)
    title = (
        f"Whole models, {', '.join(inputs)}: milliseconds a step, and what their sites take of it"
    )
    peers = [name for name in PEERS if frame[f"{name}_ms"].notna().any()]
    numbers = ["eager", "inductor", "fusedops", *peers, "over Inductor", "share", "sites"]
    table = table_of(title, ["model", "mode", "dtype", "threads"], numbers)
    for step in steps:
        table.add_row(*_step_row(step, peers), style="bold red" if step.is_slower else None)
    console.print(table)
    for line in (*not_installed(), _verdict(steps)):
        console.print(line, markup=False)


def _step_row(step: StepTime, peers: Sequence[str]) -> Iterator[str]:
    """Yields the cells of a step's row. The cells of peers that did not run are empty."""
    yield from (step.model, step.mode, step.dtype, str(step.threads))
    yield from (f"{ms:.1f}" for ms in (step.eager_ms, step.inductor_ms, step.fusedops_ms))
    times = (getattr(step, f"{name}_ms") for name in peers)
    yield from ("" if math.isnan(ms) else f"{ms:.1f}" for ms in times)
    mark = "slower: " if step.is_slower else ""
    yield f"{mark}{step.speedup:.2f} (±{step.spread / 2:.0%})"
    yield f"{step.share_before:.0%} to {step.share_after:.0%}"
    yield f"{step.sites_speedup:.2f}"


def _verdict(steps: Sequence[StepTime]) -> str:
    slower = sum(step.is_slower for step in steps)
    return f"{slower} of {len(steps)} cells slower than Inductor by more than {TOLERANCE:.0%}"
