"""`python -m fusedops bench` measures the speed of the operators on this machine.

`operators` and `attention` define what is measured, `measurement` and `timing` measure it, and
`report` prints the results.
"""

from __future__ import annotations

import argparse

from fusedops.cli.bench.arguments import add_arguments

__all__ = ["add_arguments", "run"]


def run(args: argparse.Namespace) -> int:
    """Measures, writes files and prints tables; returns 1 if a case had to be left out."""
    # This import needs optional packages, which --help must do without.
    from fusedops.cli.bench import command

    return command.run(args)
