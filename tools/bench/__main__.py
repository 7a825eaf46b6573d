"""`python -m tools.bench models|memory|host`: runs one of the benchmarks that need a checkout."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from fusedops.cli import missing_packages_named
from fusedops.cli.env import require_usable
from fusedops.cli.errors import Parser, end_in_one_line

PROGRAM = "python -m tools.bench"
#: A benchmark is a module with a SUMMARY, `add_arguments(parser)` and `run(args) -> exit code`.
BENCHMARKS = ("models", "memory", "host")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one benchmark and returns its exit code. An error is one line on standard error."""
    return end_in_one_line(PROGRAM, lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    require_usable("bench")
    parser = Parser(prog=PROGRAM, description=__doc__)
    subparsers = parser.add_subparsers(metavar="BENCHMARK", required=True)
    with missing_packages_named("bench"):
        for name in BENCHMARKS:
            benchmark = importlib.import_module(f"tools.bench.{name}")
            summary = benchmark.SUMMARY
            subparser = subparsers.add_parser(name, help=summary, description=summary)
            benchmark.add_arguments(subparser)
            subparser.set_defaults(run=benchmark.run)
        args = parser.parse_args(argv)
        return int(args.run(args))


if __name__ == "__main__":
    sys.exit(main())
