#!/usr/bin/env python3
"""Reports on the machine code of the CUDA kernels, without a GPU.

    python tools/sass_report.py [--arch 80 90 100 120] [--all] [--csv FILE]
    python tools/sass_report.py --check            # the gates; exit code 1 if one fails
    python tools/sass_report.py --write-budget     # after an intended change

The tool reads the library that is in fusedops/lib, built for the architectures.

These are the gates. No kernel has spills or a stack, and no kernel of clusters has fences. Hot
kernels are those for 16-byte vectors of float, half or bfloat16. Every load and store of a hot
kernel is 128 bits wide, except for the few that sass_budget.csv lists (a row's mean and rstd,
partial results of columns and of rows, 16-bit inputs and results beside float vectors, masks of
bytes, operands with one value for each row, the seed of dropout, and the ends of rows that are not
aligned). A hot kernel has no more registers, loads and stores, no fewer bytes in flight, and at
most 1 % more instructions than that file says. docs/cuda_counts.md says what these counts show.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from sass import gates
from sass.kernels import CHIPS, SUSTAINED
from sass.toolchain import LIBRARY, kernels_in

from fusedops.cli.errors import Parser, UsageError, end_in_one_line
from fusedops.cli.files import write_atomically
from fusedops.cli.options import output_file


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="sass_report", description=__doc__.partition("\n")[0])
    parser.add_argument("--arch", nargs="+", type=int, choices=list(CHIPS), default=list(CHIPS))
    parser.add_argument("--all", action="store_true", help="kernels that are not hot too")
    parser.add_argument("--csv", type=output_file, metavar="FILE", help="write every column there")
    parser.add_argument("--check", action="store_true", help="fail where a gate is broken")
    parser.add_argument("--write-budget", action="store_true", help="write the budget")
    parser.add_argument(
        "--library", type=Path, metavar="FILE", default=LIBRARY, help="read another library"
    )
    args = parser.parse_args(argv)
    if args.write_budget and args.arch != list(CHIPS):
        raise UsageError("--write-budget writes all architectures: leave --arch out")
    return args


def report(argv: Sequence[str] | None) -> int:
    """Prints the kernels, and writes the files that the options ask for. With --check, also checks
    the gates. Returns the exit code, which is 1 if a gate fails."""
    args = parse_arguments(argv)
    kernels = kernels_in(args.library, list(dict.fromkeys(args.arch)))
    hot = kernels[kernels.is_hot]
    shown = kernels if args.all else hot
    print_kernels(shown)
    if args.csv:
        write_atomically(args.csv, shown.to_csv(index=False).encode())
    if args.write_budget:
        hot[gates.COLUMNS].to_csv(gates.BUDGET, index=False)
    if not args.check:
        return 0
    failures = list(gates.failures(kernels, gates.read_budget()))
    print(*failures, f"{len(kernels)} checked, {len(failures)} failures", sep="\n")
    return int(bool(failures))


def print_kernels(kernels: pd.DataFrame) -> None:
    for arch, of_arch in kernels.groupby("arch"):
        chip = CHIPS[arch]
        print(
            f"\nsm_{arch} as on a {chip.name}: {chip.needed_in_flight / 1024:.0f} KB in flight a "
            f"multiprocessor keep {SUSTAINED * chip.peak_bandwidth / 1e12:.1f} TB/s busy"
        )
        print(of_arch.drop(columns=["arch", "is_hot"]).set_index("kernel").to_string())


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code. An error is one line on standard error."""
    return end_in_one_line("sass_report", lambda: report(argv))


if __name__ == "__main__":
    sys.exit(main())
