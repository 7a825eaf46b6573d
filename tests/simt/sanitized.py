"""Runs cases in a process of their own, with the kernels built for a sanitizer.

The parent calls run_sanitized(); the child is this file as ``python -m simt.sanitized``, without
torch. A sanitizer's report ends the child.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

from .cases.rows import Arrays
from .emulator import build
from .emulator.library import SCHEDULES, Emulator
from .families import AnyCase, run

#: The folder that has the package ``simt``.
FOLDER = Path(__file__).parent.parent

OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0",  # Python itself leaks
    "UBSAN_OPTIONS": "print_stacktrace=1",
    # 2^4 times the usual history, so that reports show both sides of a race.
    "TSAN_OPTIONS": "history_size=4 halt_on_error=1 exitcode=66",
    "OPENBLAS_NUM_THREADS": "1",
}


def run_sanitizer_command(command: list[str], preload: str = "") -> subprocess.CompletedProcess:
    """Runs a command with the sanitizers' options. Runs it again without address randomisation
    where ThreadSanitizer cannot map its memory into the layout of this system."""
    environment = os.environ | OPTIONS | {"LD_PRELOAD": preload}

    def attempt(*prefix: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [*prefix, *command], capture_output=True, text=True, env=environment, cwd=FOLDER
        )

    done = attempt()
    if "unexpected memory mapping" in done.stderr:
        return attempt("setarch", "--addr-no-randomize")
    return done


def run_sanitized(
    build_name: str, cases: list[AnyCase], schedule: str
) -> tuple[list[Arrays], set[str]]:
    """The results of the cases, and the kernels that ran. Raises with the sanitizer's report."""
    library = build.emulator_library(build_name)
    with tempfile.TemporaryDirectory() as folder:
        request, reply = Path(folder, "request"), Path(folder, "reply")
        request.write_bytes(pickle.dumps((library, cases, schedule)))
        done = run_sanitizer_command(
            [sys.executable, "-m", "simt.sanitized", str(request), str(reply)],
            " ".join(build.sanitizer_runtimes(build_name)),
        )
        if done.returncode != 0:
            raise AssertionError(f"exit status {done.returncode}\n{done.stderr[:8000]}")
        return pickle.loads(reply.read_bytes())


def main(request: Path, reply: Path) -> None:
    library, cases, schedule = pickle.loads(request.read_bytes())
    emulator = Emulator(library)
    emulator.configure(SCHEDULES[schedule])
    results = [run(emulator, case) for case in cases]
    reply.write_bytes(pickle.dumps((results, emulator.executed())))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
