"""Shared set-up. Helpers that tests import by name (oracle.py) lie beside this file."""

import os
import sys

if "PYTEST_XDIST_WORKER" in os.environ:
    # One thread for each worker: workers that share the cores wait 8 ms at every OpenMP barrier. Op
    # tests have more threads (threads.py), which sleep while they wait.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Rewrites of the tests' small tensors would not pay. Read when fusedops is imported, by
# subprocesses too.
os.environ["FUSEDOPS_FUSE"] = "always"
# A developer's own tuning decides nothing in a test.
os.environ["FUSEDOPS_CACHE_DIR"] = os.devnull

import pytest
import torch

pytest_plugins = ["exhaustive", "failures", "fuzzing", "pytester", "threads"]


def pytest_terminal_summary(terminalreporter):
    """Prints what tests recorded with record_property(title, text), also from other processes."""
    import fuzzing  # a plugin, which pytest has to import first

    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for title, text in report.user_properties:
            if title != fuzzing.COUNT:
                terminalreporter.section(title)
                terminalreporter.write(text)


@pytest.fixture(autouse=True)
def same_random_numbers():
    """Every test draws the same numbers, alone or after any others."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def fresh_dynamo():
    """No test finds what another one compiled: Dynamo compiles a function eight times at most."""
    if "torch._dynamo" in sys.modules:  # importing it takes seconds
        torch._dynamo.reset()
