"""`python -m fusedops tune` measures the policy table of this machine, for `fuse="profitable"`.

`graphs` lists what is measured, `measurement` compiles and times it. The tables are written to the
user's cache folder, one file for each number of threads, or to the file given by --output.
"""

from __future__ import annotations

import argparse

import torch

from fusedops.cli import options

#: The default of --budget, in seconds: under three minutes, mostly compiling, on two cores.
BUDGET = 160


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `tune`."""
    add = parser.add_argument
    add("--device", type=options.device, default=torch.device("cpu"), help="as cuda:0; default cpu")
    add(
        "--threads",
        nargs="+",
        type=options.threads,
        help="CPU threads to measure with (default: 1, and all that torch uses)",
    )
    add(
        "--budget",
        type=options.positive,
        default=BUDGET,
        metavar="SECONDS",
        help=f"when to stop; what is left then is left out (default {BUDGET})",
    )
    add(
        "--output",
        type=options.output_file,
        metavar="FILE",
        help="write one table there, not to your cache: as to ship it with fusedops",
    )
