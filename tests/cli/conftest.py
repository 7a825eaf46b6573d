"""What the tests of the command line share."""

from __future__ import annotations

import sys
from typing import NamedTuple

import pytest

from fusedops.cli import main


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def command(capsys, monkeypatch):
    """Runs a command line in this process, which it leaves as it was."""

    def run(*argv: str) -> Ended:
        monkeypatch.setattr(sys, "path", [*sys.path])
        capsys.readouterr()
        try:
            code = main(argv)
        except SystemExit as stopped:  # of --help
            code = stopped.code
        return Ended(code, *capsys.readouterr())

    return run
