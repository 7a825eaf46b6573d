"""What the tests of the command line share."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
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


@pytest.fixture
def interrupted():
    """Starts a command, and interrupts it a second after its first line, and again until it ends: a
    callback of C code may drop an interrupt. Returns its exit code and standard error."""

    def heed_interrupts() -> None:  # what a shell starts in the background ignores them
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def run(*argv: str) -> tuple[int, str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "fusedops", *argv], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts,
        )  # fmt: skip
        process.stdout.readline()
        time.sleep(1)
        for _ in range(3):
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                _, error = process.communicate(timeout=30)
                return process.returncode, error
        process.kill()
        raise AssertionError(f"{argv}: three interrupts did not end it")

    return run
