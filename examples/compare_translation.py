#!/usr/bin/env python3
"""Train the same transformer in three modes, a step of each in turn, and compare losses and time.

    python examples/compare_translation.py --dropout 0
    python examples/compare_translation.py

A run is one epoch. The modes take turns on the same batch, so that disturbances of the machine
affect all of them. See docs/translation.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from translation import arguments, comparison, reporting
from translation.model import FUSED_KERNEL
from translation.setup import build_trainer, load_data

from fusedops.cli.errors import end_in_one_line


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code. An error is one line on standard error."""
    parser = arguments.make_parser(__doc__, "runs/comparison", "folder of CSV and picture")
    return end_in_one_line("compare_translation", lambda: run(arguments.parse(parser, argv)))


def run(args: argparse.Namespace) -> int:
    """Loads the data, trains in all modes, prints and writes the results."""
    console = reporting.make_console()
    data = load_data(args, console)
    trainers = {mode: build_trainer(args, mode, data) for mode in FUSED_KERNEL}
    comparison.train_in_turn(trainers, console)
    records = {mode: trainer.records for mode, trainer in trainers.items()}
    comparison.write(args.output, records)
    comparison.print_losses(records, console)
    comparison.print_times(records, console)
    comparison.print_shares(comparison.profile_step(trainers["false"]), console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
