"""Defines the command line: `python -m fusedops env | check | bench | tune | demo | explain`.

A command is a module of this package with `add_arguments(parser)` and `run(args) -> exit code`.
Only the module of the chosen command is imported, so that `env` needs only torch and works even if
the other commands do not. A command that needs optional packages is a package whose module
`command` has `run`: it is imported when the command runs, so that `--help` does not need them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

import fusedops
from fusedops.cli.errors import Parser, UserError, end_in_one_line

PROGRAM = "python -m fusedops"

COMMANDS = {
    "env": "report build, torch, devices, libraries and operators, and how to fix what is wrong",
    "check": "test fusedops on this machine: accuracy, determinism, torch.compile and torch.export",
    "bench": "time the operators against eager PyTorch and Inductor",
    "tune": "measure which replacements pay on this machine, for later compilations",
    "demo": "embed sentences with a real encoder, in eager, with Inductor and with fusedops",
    "explain": "list which softmaxes and norms of your model are replaced, which are not, and why",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code. An error is one line on standard error."""
    argv = sys.argv[1:] if argv is None else list(argv)
    name = next((argument for argument in argv if argument in COMMANDS), None)
    program = f"{PROGRAM} {name}" if name else PROGRAM
    return end_in_one_line(program, lambda: _run(name, argv))


def _run(name: str | None, argv: list[str]) -> int:
    parser = Parser(prog=PROGRAM)
    version = f"fusedops {fusedops.__version__}"
    parser.add_argument("--version", action="version", version=version)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    command = _import_command(name) if name else None
    for known, summary in COMMANDS.items():
        subparser = subparsers.add_parser(known, help=summary, description=summary)
        if command is not None and known == name:
            command.add_arguments(subparser)
    args = parser.parse_args(argv)  # raises an error if no command is given
    assert command is not None and name is not None
    with missing_packages_named(name):
        if not hasattr(command, "run"):
            command = importlib.import_module(f"{command.__name__}.command")
        status: int = command.run(args)
    return status


def _import_command(name: str) -> ModuleType:
    """Returns the module of a command. Raises UserError, which says what to do, if the command
    cannot run on this machine."""
    if name != "env":
        importlib.import_module("fusedops.cli.env").require_usable(name)
    return importlib.import_module(f"fusedops.cli.{name}")


@contextmanager
def missing_packages_named(command: str) -> Iterator[None]:
    """Turns a failed import of a package other than fusedops into a UserError that says how to
    install the package."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "fusedops"):
            raise
        raise UserError(
            f"needs the package {package!r}, which is not installed; install it: "
            f"pip install {package} (the extra fusedops[{command}] has all that the command needs)"
        ) from error
