"""Which tests run a line of a Python source: no other test can notice a fault there.

They are told by coverage.py, whose contexts are the names of tests. What runs in a process that a
test starts, or when a module is imported, has no test's name.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence

from coverage import CoverageData

from ..parts import PYTEST, WORKERS
from .faults import Fault
from .plan import ROOT

COVERAGE = ROOT / "build" / "mutants" / "reach"
COMMAND = [*PYTEST, *WORKERS, "--cov", "--cov-context=test", "--cov-report="]
#: A statement is counted to its first line, and a fault may be in a later one.
LONGEST_STATEMENT = 30


@functools.cache
def measured() -> CoverageData:
    """Runs the tests of `make test`, unless they and the package are as they were the last time."""
    state = COVERAGE.with_suffix(".sha256")
    if not (state.exists() and state.read_text() == _state()):
        environment = os.environ | {"COVERAGE_FILE": str(COVERAGE)}
        if subprocess.run(COMMAND, cwd=ROOT, env=environment).returncode:
            sys.exit("faults are planted where all tests pass without them")
        state.write_text(_state())
    data = CoverageData(str(COVERAGE))
    data.read()
    return data


def _state() -> str:
    command = ["git", "ls-files", "-z", "fusedops", "tests"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [ROOT / path for path in listed.split("\0") if path.endswith(".py")]
    contents = b"\0".join(file.read_bytes() for file in files if file.exists())
    return hashlib.sha256(contents).hexdigest()


def names_at(fault: Fault, data: CoverageData) -> list[str]:
    """The tests that run a fault's line, as coverage.py names them; "" for what has no name."""
    lines = data.contexts_by_lineno(str(ROOT / fault.path))
    before = range(fault.line, max(fault.line - LONGEST_STATEMENT, 0), -1)
    return next((lines[line] for line in before if line in lines), [""])


def tests_at(names: Iterable[str], files: Sequence[str]) -> list[str]:
    """The tests of these names, those of `files` first. What a fixture runs, any test of its file
    may see."""
    tests = set()
    for name in filter(None, names):
        test, _, phase = name.rpartition("|")
        tests.add(test if phase == "run" else test.partition("::")[0])
    order = {file: index for index, file in enumerate(files)}
    return sorted(tests, key=lambda t: (order.get(t.partition("::")[0], len(order)), t))
