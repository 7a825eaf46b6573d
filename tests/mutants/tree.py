"""A copy of the checkout in which one fault at a time is built and tested."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from .faults import Fault
from .plan import ROOT

#: Seconds of the processor, the same on a busy machine, that a group of tests has to notice a
#: fault; and seconds until a test hangs.
LIMIT, TEST_LIMIT = 200, 120
SURVIVED, DOES_NOT_BUILD = "SURVIVED", "does not build"
#: The compiler makes the same of it, or this machine's libraries do not have it.
SAME_LIBRARY = "the same library"
LIBRARIES = ["setup.py", "build_ext", "--inplace"]
EMULATOR = ["-c", "from tests.simt.emulator import build; build.emulator_library('plain')"]
PYTEST = ["-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider"]
PYTEST += [f"-ofaulthandler_timeout={TEST_LIMIT}", "-ofaulthandler_exit_on_timeout=true"]
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
#: Builds are for this machine, and pytest prints the names of tests in full.
ENVIRONMENT = {"FUSEDOPS_BUILD_NATIVE": "1", "FUSEDOPS_BUILD_CUDA": "0", "COLUMNS": "1000"}
ENVIRONMENT |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


class Tree:
    """build/mutants/<number>: a built copy of the checkout, and another with a fault."""

    def __init__(self, number: int, checkout: Path = ROOT) -> None:
        folder = checkout / "build" / "mutants" / str(number)
        self.root, self.unchanged = folder / "mutant", folder / "unchanged"
        self.inductor = folder / "inductor"
        shutil.rmtree(self.root, ignore_errors=True)
        left_out = shutil.ignore_patterns(".*", "build", "dist", "lib", "__pycache__")
        shutil.copytree(checkout, self.root, ignore=left_out)
        if (self.unchanged / "build").exists():  # what has not changed since then stays built
            shutil.copytree(self.unchanged / "build", self.root / "build")
        if self._run(LIBRARIES).returncode or self._run(EMULATOR).returncode:
            sys.exit("fusedops does not build; `make .venv/.built-native` says why")
        shutil.rmtree(self.unchanged, ignore_errors=True)
        shutil.copytree(self.root, self.unchanged)

    def try_out(
        self, fault: Fault, groups: Sequence[Sequence[str]], limit: int | str = LIMIT
    ) -> str:
        """Plants a fault, builds, and runs groups of tests until one fails, whose name it returns,
        or SURVIVED, DOES_NOT_BUILD or SAME_LIBRARY."""
        self.restore()
        source = self.root / fault.path
        source.write_text(fault.apply(source.read_text()))
        if fault.path.startswith("csrc/"):
            if self._run(EMULATOR if "/cuda/" in fault.path else LIBRARIES).returncode:
                return DOES_NOT_BUILD
            if _libraries(self.root) == _libraries(self.unchanged):
                return SAME_LIBRARY
        verdicts = (self._first_failure(tests, limit) for tests in groups if tests)
        return next((verdict for verdict in verdicts if verdict != SURVIVED), SURVIVED)

    def _first_failure(self, tests: Sequence[str], limit: int | str) -> str:
        listed = self.inductor.parent / "tests"
        listed.write_text("\n".join(tests))
        done = self._run([*PYTEST, "-x", f"@{listed}"], limit)
        if done.returncode == pytest.ExitCode.USAGE_ERROR:  # the fault took parameters from a test
            files = dict.fromkeys(test.partition("::")[0] for test in tests)
            done = self._run([*PYTEST, "-x", *files], limit)
        return _verdict(done)

    def restore(self) -> None:
        """Removes the fault, and graphs that Inductor has traced through formulas with it."""
        shutil.rmtree(self.root)
        shutil.copytree(self.unchanged, self.root)
        for cache in ("aotautograd", "fxgraph"):
            shutil.rmtree(self.inductor / cache, ignore_errors=True)

    def failing(self, tests: set[str]) -> list[str]:
        """Those of the tests that fail without a fault."""
        self.restore()
        # A fault may have changed which parameters a test has.
        files = sorted({test.partition("::")[0] for test in tests})
        known = self._run([*PYTEST, "--collect-only", *files]).stdout.splitlines()
        chosen = [test for test in tests if test in known]
        return FAILED.findall(self._run([*PYTEST, *chosen]).stdout) if chosen else []

    def _run(
        self, arguments: list[str], limit: int | str = "unlimited"
    ) -> subprocess.CompletedProcess[str]:
        """Runs Python on the tree, and ends all processes that it has started."""
        own = {"PYTHONPATH": str(self.root), "TORCHINDUCTOR_CACHE_DIR": str(self.inductor)}
        command = ["sh", "-c", f'ulimit -S -t {limit}; exec "$0" "$@"', sys.executable, *arguments]
        # A file, as a pipe would stay open for processes that outlive the tests.
        with open(self.inductor.parent / "output", "w+") as output:
            process = subprocess.Popen(
                command,
                cwd=self.root,
                env=os.environ | ENVIRONMENT | own,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait()
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            output.seek(0)
            return subprocess.CompletedProcess(command, process.returncode, output.read())


def _libraries(root: Path) -> set[str]:
    """What the libraries of a tree hold, as hashes."""
    paths = [*root.glob("fusedops/lib/*.so"), *root.glob("build/simt/*/libsimt_plain.so")]
    return {hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def _verdict(done: subprocess.CompletedProcess[str]) -> str:
    """What noticed a fault, a crash or a test that hangs included; SURVIVED if nothing did."""
    if done.returncode in (0, -signal.SIGXCPU):
        return SURVIVED
    if found := FAILED.search(done.stdout):
        return found[1]
    if done.returncode < 0:
        return f"a crash ({signal.Signals(-done.returncode).name})"
    if "while loading conftest" in done.stdout:
        return "a package that tests cannot import"
    if "Timeout (" in done.stdout:
        return f"a test that takes more than {TEST_LIMIT} s"
    raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout}")
