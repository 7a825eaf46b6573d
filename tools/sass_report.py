#!/usr/bin/env python3
"""Reports on the machine code of the CUDA kernels, without a GPU.

    python tools/sass_report.py [--arch 80 90 100 120] [--all] [--csv FILE]
    python tools/sass_report.py --shapes           # instructions and bytes of each shape
    python tools/sass_report.py --check            # the gates; exit code 1 if one fails
    python tools/sass_report.py --write-budget     # after an intended change

The tool reads the library that is in fusedops/lib, built for the architectures, and needs g++ for
the shapes.

These are the gates. No kernel has spills or a stack. Hot kernels are those for 16-byte vectors of
float, half or bfloat16. Every load and store of a hot kernel is 128 bits wide, except for the few
that sass_budget.csv lists (a row's mean and rstd, partial results of columns and of rows, 16-bit
inputs and results beside float vectors, masks of bytes, operands with one value for each row, the
seed of dropout, and the ends of rows that are not aligned). A hot kernel has no more registers and
no fewer bytes in flight than that file says. The instructions and bytes of each shape do not exceed
those in sass_shapes.csv by more than 3 %.

docs/cuda_counts.md says how the instructions and bytes of a shape are counted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from sass import gates
from sass.chips import CHIPS
from sass.errors import ReportError
from sass.kernels import Kernel
from sass.limits import limit_lines
from sass.output import SHAPE_COLUMNS, print_table, print_tables
from sass.shapes import COUNTED_ARCH, shapes_of, table_cases
from sass.tables import write_csv
from sass.toolchain import LIBRARY, codes_of, kernels_in


def output_file(text: str) -> Path:
    """Returns the path of a file that can be written. argparse calls this function, so that a wrong
    path is found before the report is made, which takes a minute."""
    path = Path(text)
    if not text or path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted a file that can be written")
    return path


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the list of all options."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = Parser(description=__doc__.partition("\n")[0])
    parser.add_argument("--arch", nargs="+", choices=list(CHIPS), default=list(CHIPS))
    parser.add_argument("--all", action="store_true", help="kernels that are not hot too")
    parser.add_argument("--csv", type=output_file, metavar="FILE", help="write every column there")
    parser.add_argument("--shapes", action="store_true", help="count for each shape")
    parser.add_argument("--check", action="store_true", help="fail where a gate is broken")
    parser.add_argument("--write-budget", action="store_true", help="write both budgets")
    parser.add_argument(
        "--library", type=Path, metavar="FILE", default=LIBRARY, help="read another library"
    )
    args = parser.parse_args(argv)
    args.arch = list(dict.fromkeys(args.arch))
    if args.write_budget and args.arch != list(CHIPS):
        parser.error("--write-budget writes all architectures: leave --arch out")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the report, and returns the exit code: 1 if a gate fails, or if an error prevents the
    report."""
    args = parse_arguments(argv)
    try:
        return report_shapes(args) if args.shapes else report(args)
    except (ReportError, OSError) as error:
        print(f"sass_report: {error}", file=sys.stderr)
        return 1


def report_shapes(args: argparse.Namespace) -> int:
    """Prints the counts of each shape, and which limits they keep. With --check, also checks the
    gates of shapes. Returns the exit code."""
    budget = gates.read_shapes() if args.check else {}
    rows = shapes_of(codes_of([COUNTED_ARCH], args.library)[COUNTED_ARCH], table_cases())
    print_table(SHAPE_COLUMNS, rows)
    print(*limit_lines(rows), sep="\n")
    if args.csv:
        write_csv(type(rows[0]), rows, args.csv)
    return print_failures(list(gates.shape_failures(rows, budget)), len(rows)) if args.check else 0


def report(args: argparse.Namespace) -> int:
    """Prints the kernels, and writes the files that the options ask for. With --check, also checks
    the gates of kernels. Returns the exit code."""
    budget = gates.read_budget() if args.check and not args.write_budget else {}
    codes = codes_of(args.arch, args.library)
    kernels = kernels_in(codes)
    shown = [kernel for kernel in kernels if args.all or kernel.is_hot]
    print_tables(shown)
    if args.csv:
        write_csv(Kernel, shown, args.csv)
    if args.write_budget:
        budgets = [gates.Budget.of(kernel) for kernel in kernels if kernel.is_hot]
        write_csv(gates.Budget, budgets, gates.BUDGET)
        rows = shapes_of(codes[COUNTED_ARCH], table_cases())
        write_csv(gates.ShapeBudget, rows, gates.SHAPES)
        budget = gates.read_budget()
    if not args.check:
        return 0
    failures = [*gates.local_memory_failures(kernels), *gates.budget_failures(kernels, budget)]
    return print_failures(failures, len(kernels))


def print_failures(failures: Sequence[str], checked: int) -> int:
    """Prints the failures, and returns the exit code: 1 if there are any."""
    print(*failures, f"{checked} checked, {len(failures)} failures", sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
