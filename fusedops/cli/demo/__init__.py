"""`python -m fusedops demo`: a real sentence encoder in eager, with Inductor and with fusedops.

The weights of all-MiniLM-L6-v2 are in an installed package, so that nothing is downloaded. fusedops
runs with its defaults, which replace what pays, and with `fuse="always"`, which replaces every site
that the kernels support. The demo fails if fusedops misses one of the encoder's sites, replaces
sites but runs no operator, or changes the result.
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares no options: `demo` has none."""


def run(args: argparse.Namespace) -> int:
    """Runs the demo; returns 1 if one of its checks failed."""
    from fusedops.cli.demo import command  # needs the packages of an extra; --help does not

    return command.run(args)
