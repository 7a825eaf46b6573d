"""Declares the options of `bench`, and checks the cases that they select before anything runs."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import torch

from fusedops.cli import options
from fusedops.cli.bench.cases import BACKWARD, FORWARD, Case, Layout, Shape
from fusedops.cli.bench.operators import OPERATORS, family
from fusedops.cli.errors import UsageError

# The names that --op accepts. A family, such as masked_softmax, selects all its variants, such as
# masked_softmax[causal]; a variant can be selected by its own name too. Families come first.
OP_NAMES = list(dict.fromkeys([*map(family, OPERATORS), *OPERATORS]))
DIRECTIONS = [FORWARD, BACKWARD]
DTYPES = ["float32", "bfloat16", "float16", "float64"]

#: A case needs these tensors at the same time: input, result, and the two tensors of the copy that
#: is timed beside it.
TENSORS_OF_A_CASE = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `bench`."""
    add_case_arguments(parser)
    add = parser.add_argument
    add("--quick", action="store_true", help="fewer shapes and rounds")
    add(
        "--plot",
        type=options.output_folder,
        metavar="DIR",
        help="write bar charts (needs matplotlib)",
    )


def add_case_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options that select operators, their inputs and the device."""
    add = parser.add_argument
    names = f"with all its variants; default: all of {', '.join(OP_NAMES)}"
    add("--op", nargs="+", choices=OP_NAMES, metavar="OP", help=names)
    add(
        "--shape",
        nargs="+",
        type=parse_shape,
        metavar="ROWSxCOLS",
        help="or TENSORSxROWSxCOLS of a stack, BATCHxHEADSxQUERIESxKEYS of scores; rows are along "
        "the last dimension",
    )
    add(
        "--device",
        type=options.device,
        default=torch.device("cpu"),
        help="cpu (default), cuda or cuda:N",
    )
    add_common_arguments(parser)


def add_common_arguments(parser: argparse.ArgumentParser, threads: str = "1") -> None:
    """Declares the options that benchmarks of operators and of whole models share. `threads` says
    what the default of --threads is."""
    add = parser.add_argument
    add("--pass", nargs="+", dest="directions", choices=DIRECTIONS, help="default: both")
    add("--dtype", nargs="+", choices=DTYPES, help="default: float32 and bfloat16")
    add("--threads", type=options.threads, help=f"CPU threads (default {threads})")
    add("--csv", type=options.output_file, metavar="FILE", help="write one row per measurement")


def parse_shape(text: str) -> Shape:
    """Returns a shape such as (4096, 1024) from its text, such as `4096x1024`."""
    sizes = text.split("x")
    if not (len(sizes) > 1 and all(map(_is_size, sizes))):
        raise argparse.ArgumentTypeError(
            f"got {text!r}, wanted ROWSxCOLS such as 4096x1024, or more dimensions: 8x12x128x128"
        )
    return tuple(map(int, sizes))


def _is_size(text: str) -> bool:
    # Sizes have to be less than 2^63 in torch, which numbers of fewer than 19 digits are.
    return text.isdecimal() and len(text) < 19 and int(text) > 0


def check_cases(cases: Iterable[Case]) -> list[Case]:
    """Returns the cases as a list. Raises UsageError if a shape does not fit an operator, is too
    large for the memory, or occurs twice."""
    seen: dict[tuple[object, ...], Case] = {}
    for case in cases:
        if case.operator.layout is Layout.SCORES and len(case.shape) > Layout.SCORES.dimensions:
            raise UsageError(
                f"--shape: {case}: got {len(case.shape)} dimensions, wanted at most "
                f"{Layout.SCORES.dimensions}: {' x '.join(Layout.SCORES.value)}"
            )
        other = seen.setdefault((case.op, case.direction, case.dtype, case.rows, case.cols), case)
        if other is not case:
            raise UsageError(
                f"--shape: {other} and {case} are both {case.rows} rows of {case.cols} columns, "
                "and cannot be distinguished in the results; pass one of them"
            )
        if case.device == "cpu":
            options.require_memory(f"--shape: {case}", TENSORS_OF_A_CASE * case.input_bytes)
    return list(seen.values())
