"""Shared set-up. Helpers that tests import by name (oracle.py) lie beside this file."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    # One thread a worker: workers that share the cores wait 8 ms at every OpenMP barrier.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
