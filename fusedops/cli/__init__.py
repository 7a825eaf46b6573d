"""The command line: `python -m fusedops env | bench | demo | explain`.

A command is a module of this package with `add_arguments(parser)` and `run(args) -> exit code`.
Only the chosen one is imported, so `env` needs nothing but torch, and works where the rest fails.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from types import ModuleType

PROGRAM = "python -m fusedops"

COMMANDS = {
    "env": "report build, torch, devices, libraries and operators, and how to fix what is wrong",
    "bench": "time the operators, or take their peak memory, beside eager PyTorch and Inductor",
    "demo": "embed sentences with a real encoder, in eager, with Inductor and with fusedops",
    "explain": "list what would be replaced in your model, what would not, and why",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(prog=PROGRAM)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    command = None
    for name, summary in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=summary, description=summary)
        if argv[:1] == [name]:
            command = _import_command(name)
            command.add_arguments(subparser)
    args = parser.parse_args(argv)
    return command.run(args)


def _import_command(name: str) -> ModuleType:
    """The command's module, or the end of the program with what to install or to build."""
    try:
        if name != "env":
            importlib.import_module("fusedops.ops")
        return importlib.import_module(f"fusedops.cli.{name}")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "fusedops"):
            raise
        sys.exit(
            f"{PROGRAM} {name} needs the package {package!r}, which is not installed. "
            f"Install it: pip install {package} (the extra fusedops[{name}] holds all it needs)"
        )
    except ImportError as error:
        sys.exit(f"{error}\nFor the whole picture run: {PROGRAM} env")
