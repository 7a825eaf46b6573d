"""What the tests of the command line share."""

from __future__ import annotations

import sys
from typing import NamedTuple

import pytest
import torch

from fusedops.cli import main
from fusedops.cli.bench import command as bench


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
        monkeypatch.setattr(bench, "keep_freed_memory", lambda: None)  # it starts the program anew
        capsys.readouterr()
        threads = torch.get_num_threads()
        try:
            code = main(argv)
        except SystemExit as stopped:  # of --help
            code = stopped.code
        torch.set_num_threads(threads)
        return Ended(code, *capsys.readouterr())

    return run
