"""Builds the package with its CPU libraries under a sanitizer, in a folder of its own.

``build/sanitize/<sanitizer>/checkout`` is a copy of the Python files, the tests and what they read,
with the sanitized libraries in the package's place for them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: The order in which the run-time libraries come before Python.
RUNTIMES = {"address": ["libasan.so", "libubsan.so"], "thread": ["libtsan.so"]}
COPIED = ("fusedops", "tests", "tools", "examples", "docs", "csrc", "cmake")


def compiler() -> str:
    """The C++ compiler, whose run-time libraries fit what it builds."""
    return os.environ.get("CXX", "g++")


def sanitized_checkout(sanitizer: str) -> Path:
    """The folder to run tests in, built where something has changed."""
    folder = ROOT / "build" / "sanitize" / sanitizer
    checkout, libraries = folder / "checkout", folder / "libraries"
    _run(
        "cmake", "-S", ROOT, "-B", folder / "cmake", "-G", "Ninja",
        f"-DPython3_EXECUTABLE={sys.executable}",
        f"-DCMAKE_CXX_COMPILER={compiler()}",
        f"-DFUSEDOPS_SANITIZE={sanitizer}",
        "-DFUSEDOPS_BUILD_CUDA=0",
        "-DCMAKE_INSTALL_LIBDIR=lib",
    )  # fmt: skip
    jobs = os.environ.get("MAX_JOBS", str(os.cpu_count() or 1))
    _run("cmake", "--build", folder / "cmake", "-j", jobs)
    _run("cmake", "--install", folder / "cmake", "--prefix", libraries)
    _copy_sources(checkout)
    shutil.copytree(libraries, checkout / "fusedops", dirs_exist_ok=True)
    return checkout


def _copy_sources(checkout: Path) -> None:
    if checkout.exists():
        shutil.rmtree(checkout)
    built = shutil.ignore_patterns("lib", "include", "__pycache__")
    everything = shutil.ignore_patterns("__pycache__")
    for name in COPIED:
        ignored = built if name == "fusedops" else everything
        shutil.copytree(ROOT / name, checkout / name, ignore=ignored)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, checkout)


def environment(sanitizer: str, checkout: Path) -> dict[str, str]:
    """The environment in which a program loads the sanitized libraries."""
    suppressions = Path(__file__).parent / "thread.supp"
    return os.environ | {
        "PYTHONPATH": str(checkout),
        "LD_PRELOAD": " ".join(map(_path_of, [*RUNTIMES[sanitizer], "libstdc++.so"])),
        # Leaks are Python's own. A test may ask for more memory than there is.
        "ASAN_OPTIONS": "detect_leaks=0 allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TSAN_OPTIONS": f"history_size=4 halt_on_error=1 exitcode=66 suppressions={suppressions}",
        "OPENBLAS_NUM_THREADS": "1",
    }


def launcher(sanitizer: str) -> list[str]:
    """The beginning of a command: ThreadSanitizer fails where memory is laid out at random."""
    return ["setarch", "--addr-no-randomize"] if sanitizer == "thread" else []


def _path_of(library: str) -> str:
    path = _run(compiler(), f"-print-file-name={library}", capture=True).strip()
    if not Path(path).is_absolute():
        sys.exit(f"{compiler()} has no {library}: install it (Debian: libgcc-12-dev)")
    return path


def _run(*command: object, capture: bool = False) -> str:
    beside_python = str(Path(sys.executable).parent)
    environment = os.environ | {"PATH": os.pathsep.join([beside_python, os.environ["PATH"]])}
    output = subprocess.PIPE if capture else None
    done = subprocess.run(list(map(str, command)), env=environment, stdout=output, text=True)
    if done.returncode != 0:
        sys.exit(f"`{' '.join(map(str, command[:3]))}` failed; its output is above")
    return done.stdout or ""
