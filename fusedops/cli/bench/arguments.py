"""The options of `bench`, and checks of their combinations before anything runs."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import torch

from fusedops.cli import options
from fusedops.cli.bench.cases import BACKWARD, FORWARD, Case, Layout, Shape
from fusedops.cli.bench.models import DEFAULT, HEAD_WIDTH, Step
from fusedops.cli.bench.operators import OPERATORS, family
from fusedops.cli.bench.zoo import MODELS
from fusedops.cli.errors import UsageError

# The names of families come first; a variant can be selected by its own name too.
OP_NAMES = list(dict.fromkeys([*map(family, OPERATORS), *OPERATORS]))
DIRECTIONS = [FORWARD, BACKWARD]
DTYPES = ["float32", "bfloat16", "float16", "float64"]
BATCH, LENGTH, WIDTH = 1, 512, 768

#: The tensors that a case needs at the same time: input, result, and the two tensors of the copy.
TENSORS_OF_A_CASE = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `bench`."""
    _add_case_arguments(parser)
    _add_model_arguments(parser)
    _add_effort_arguments(parser)
    _add_output_arguments(parser)


def _add_case_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options that select what is measured."""
    add = parser.add_argument
    add("--op", nargs="+", choices=OP_NAMES, help="with all its variants")
    add(
        "--pass",
        nargs="+",
        dest="directions",
        choices=DIRECTIONS,
        help="default: both; of whole models forward is inference, backward training",
    )
    add(
        "--dtype",
        nargs="+",
        choices=DTYPES,
        help="default: float32 and bfloat16",
    )
    add("--memory", action="store_true", help="peak memory in place of time; backward with forward")
    add("--host", action="store_true", help="the overhead of a call, compared with torch")


def _add_effort_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options for shapes, device, threads and the number of measurements."""
    add = parser.add_argument
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
    add(
        "--threads",
        type=options.threads,
        help="CPU threads (default 1; of whole models one, then all)",
    )
    add(
        "--quick",
        action="store_true",
        help="fewer shapes and rounds; of whole models float32 on one thread",
    )


def _add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options for files."""
    add = parser.add_argument
    add("--csv", type=options.output_file, metavar="FILE", help="write one row per measurement")
    add(
        "--resume",
        action="store_true",
        help="with --models: measure what the file of --csv lacks, and add it there",
    )
    add(
        "--plot",
        type=options.output_folder,
        metavar="DIR",
        help="write bar charts (needs matplotlib)",
    )


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options that select whole models and their size."""
    parser.add_argument(
        "--models",
        nargs="*",
        metavar="NAME",
        help=f"a step of whole models in place of operators; {', '.join(DEFAULT)}, or some of: "
        f"{', '.join(MODELS)}",
    )
    sizes = {
        "--batch": f"sequences of a step (default {BATCH})",
        "--length": f"tokens of each (default {LENGTH})",
        "--width": f"features of each, a multiple of {HEAD_WIDTH} (default {WIDTH})",
    }
    for option, help in sizes.items():
        parser.add_argument(option, type=options.positive, help=help)


def parse_shape(text: str) -> Shape:
    """`4096x1024` as (4096, 1024)."""
    sizes = text.split("x")
    if not (len(sizes) > 1 and all(map(_is_size, sizes))):
        raise argparse.ArgumentTypeError(
            f"got {text!r}, wanted ROWSxCOLS such as 4096x1024, or more dimensions: 8x12x128x128"
        )
    return tuple(map(int, sizes))


def _is_size(text: str) -> bool:
    return text.isdecimal() and len(text) < 19 and int(text) > 0


def check_options(args: argparse.Namespace) -> None:
    """Raises UsageError if options cannot be combined; then fills in the defaults."""
    for option in ("op", "directions", "dtype", "shape", "models"):
        setattr(args, option, options.unique(getattr(args, option)))
    if args.host:
        _check_host_options(args)
    elif args.models is None:
        _check_operator_options(args)
    else:
        _check_model_options(args)
    args.batch, args.length = args.batch or BATCH, args.length or LENGTH
    args.width = args.width or WIDTH


def _check_operator_options(args: argparse.Namespace) -> None:
    sizes = {"--batch": args.batch, "--length": args.length, "--width": args.width}
    _refuse(sizes, "only with --models; the sizes of operators are those of --shape")
    _refuse({"--resume": args.resume}, "only with --models")
    if args.memory:
        _refuse({"--plot": args.plot}, "draws times; with --memory there are tables and --csv")


def _check_host_options(args: argparse.Namespace) -> None:
    chosen = {"--op": args.op, "--pass": args.directions, "--dtype": args.dtype}
    chosen |= {"--shape": args.shape, "--memory": args.memory}
    chosen |= {"--models": args.models is not None, "--plot": args.plot}
    chosen |= {"--batch": args.batch, "--length": args.length, "--width": args.width}
    chosen |= {"--resume": args.resume}
    _refuse(chosen, "not with --host, which measures a set of its own")
    if args.device.type != "cpu":
        raise UsageError(f"--device: got {args.device}; --host measures on the CPU alone")


def _check_model_options(args: argparse.Namespace) -> None:
    if unknown := [name for name in args.models if name not in MODELS]:
        raise UsageError(f"--models: got {', '.join(unknown)}, wanted some of {', '.join(MODELS)}")
    others = {"--op": args.op, "--shape": args.shape}
    others |= {"--memory": args.memory, "--plot": args.plot}
    _refuse(others, "not with --models, which takes --batch, --length and --width")
    if args.resume and not args.csv:
        raise UsageError("--resume: wanted --csv with it, the file with the earlier results")
    if args.device.type != "cpu":
        raise UsageError(f"--device: got {args.device}; --models measures on the CPU alone")
    if args.width and args.width % HEAD_WIDTH:
        raise UsageError(
            f"--width: got {args.width}, wanted a multiple of {HEAD_WIDTH}, the width of a head"
        )


def _refuse(options: dict[str, object], reason: str) -> None:
    if given := [option for option, value in options.items() if value]:
        raise UsageError(f"{', '.join(given)}: {reason}")


def check_cases(cases: Iterable[Case]) -> list[Case]:
    """The cases. Raises UsageError if a shape does not fit an operator, is too large, or occurs
    twice."""
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


def check_steps(steps: list[Step]) -> list[Step]:
    """The steps. Raises UsageError if one layer does not fit into this machine's memory."""
    for step in steps:
        scores = step.batch * step.size.heads * step.size.length**2
        features = step.batch * step.size.length * step.size.width
        weights = 12 * step.size.width**2  # of one layer: 4 for attention, 8 for the feed-forward
        numbers = 2 * scores + 2 * features + weights
        options.require_memory(f"--models: {step}", numbers * step.dtype.itemsize)
    return steps
