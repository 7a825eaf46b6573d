"""`python -m tests.sanitize`: the tests of the operators, on libraries under sanitizers.

Builds them, runs for each sanitizer what TESTS names, and prints the counts last. A report of a
sanitizer ends the process that it is about, which is a failure.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple

from . import build

#: What names of tests of operators have.
OF_OPERATORS = "softmax|_norm|cross_entropy|short_rows|stack_ops|concurrent|layout|threads|fork"
#: What is run under each sanitizer. ThreadSanitizer is slow, and looks at what threads share. Tests
#: of memory that runs out are left out: sanitizers map more of it than such a test allows.
TESTS = {
    "address": [
        "tests/sanitize/planted_address.py",
        "tests/deploy/test_c_api.py",
        *(
            f"tests/ops/{path.name}"
            for path in sorted((build.ROOT / "tests/ops").glob("test_*.py"))
            if re.search(OF_OPERATORS, path.stem)
        ),
    ],
    "thread": [
        "tests/sanitize/planted_thread.py",
        "tests/deploy/test_c_api.py",
        "tests/ops/test_concurrent_rows.py",
        "tests/ops/test_ops_threads.py",
        "tests/ops/test_stack_ops.py",
    ],
}
#: Tests that say nothing about these libraries: the emulator has sanitizers of its own, whose
#: runtimes hang where memory is short.
LEFT_OUT = "not emulator and not cuda and not memory_that_runs_out"


class Counts(NamedTuple):
    """The counts of one sanitizer's tests."""

    tests: int
    failed: int
    skipped: int


def main() -> int:
    """Exit status: 1 where something failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.sanitize", description=__doc__)
    parser.add_argument("sanitizers", nargs="*", help="address, thread; both if none is named")
    parser.add_argument("--workers", default="2", help="processes that run tests")
    args = parser.parse_args()
    unknown = set(args.sanitizers) - set(TESTS)
    if unknown:
        parser.error(f"there is no sanitizer {', '.join(unknown)}, wanted {' or '.join(TESTS)}")
    lines, statuses = [], []
    for sanitizer in args.sanitizers or TESTS:
        status, line = run(sanitizer, args.workers)
        statuses.append(status)
        lines.append(line)
    print("\n".join(lines))
    return int(any(statuses))


def run(sanitizer: str, workers: str) -> tuple[int, str]:
    """Builds, tests, and says in a line how it went."""
    start = time.monotonic()
    checkout = build.sanitized_checkout(sanitizer)
    built = time.monotonic()
    record = checkout / "results.xml"
    command = [
        *build.launcher(sanitizer),
        *(sys.executable, "-m", "pytest", "-q", "-n", workers, "--dist", "worksteal"),
        *("-p", "no:cacheprovider", "-k", LEFT_OUT, f"--junitxml={record}", *TESTS[sanitizer]),
    ]
    environment = build.environment(sanitizer, checkout)
    done = subprocess.run(command, cwd=checkout, env=environment)
    if not record.exists():
        return 1, f"{sanitizer}: the tests did not end, exit status {done.returncode}"
    counts = read_counts(record)
    return done.returncode, (
        f"{sanitizer}: {counts.tests} tests, {counts.failed} failed, {counts.skipped} skipped; "
        f"built in {built - start:.0f} s, run in {time.monotonic() - built:.0f} s"
    )


def read_counts(record: Path) -> Counts:
    """What pytest counted."""
    suites = list(ElementTree.parse(record).getroot().iter("testsuite"))

    def total(*names: str) -> int:
        return sum(int(suite.attrib[name]) for suite in suites for name in names)

    return Counts(total("tests"), total("failures", "errors"), total("skipped"))


if __name__ == "__main__":
    sys.exit(main())
