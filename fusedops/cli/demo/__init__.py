"""`python -m fusedops demo` runs a real sentence encoder in eager, with Inductor and with fusedops.

The weights of all-MiniLM-L6-v2 are in an installed package, so that nothing is downloaded. fusedops
runs with its defaults, which replace softmaxes and norms where that pays, and with `fuse="always"`,
which replaces all that the kernels support. The demo fails if fusedops does not find one of the
encoder's softmaxes and norms, replaces some but runs no operator, or changes the result.
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares no options: `demo` has none."""
