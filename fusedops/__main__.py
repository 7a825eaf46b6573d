"""Runs the command line: `python -m fusedops COMMAND`."""

import sys

from fusedops.cli import main

if __name__ == "__main__":
    sys.exit(main())
