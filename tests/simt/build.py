"""Compiles the emulator and what runs on it, each object once for each state of its sources.

Everything lands in ``build/simt/<key>``, where the key is a hash of all sources, of the compiler
and of the command: a second run compiles nothing. ``CXX`` names the compiler, g++ 12 or later.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CACHE = ROOT / "build" / "simt"

#: The package's own sources, compiled as C++ as they are.
SHIPPED = [ROOT / "csrc/cuda/softmax.cu", ROOT / "csrc/cuda/layer_norm.cu"]
RUNTIME = [HERE / "runtime.cpp", HERE / "fiber.cpp", HERE / "async.cpp"]

#: FMA contraction as nvcc does it; nvcc assumes no strict aliasing either.
FLAGS = [
    *("-std=c++20", "-O2", "-g1", "-fPIC", "-march=x86-64-v3", "-ffp-contract=fast"),
    *("-fno-strict-aliasing", "-Wall", "-Wno-unknown-pragmas", "-Werror"),
    *(f"-I{HERE}", f"-I{HERE / 'include'}", f"-I{ROOT / 'csrc/include'}"),
]
SANITIZERS = {
    "plain": [],
    "asan": [
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=undefined",
        "-fno-omit-frame-pointer",
    ],
    "tsan": ["-fsanitize=thread"],
}
LIBRARIES = {"plain": [], "asan": ["libasan.so", "libubsan.so"], "tsan": ["libtsan.so"]}


class BuildError(Exception):
    """The compiler is missing or refuses; its message is this one's."""


def compiler() -> str:
    name = os.environ.get("CXX", "g++")
    found = shutil.which(name)
    if found is None:
        raise BuildError(f"the emulator needs g++ 12 or later; {name!r} is not on PATH")
    return found


def compile_errors(source: str) -> str:
    """What the compiler has against a piece of C++, empty where it is fine."""
    command = [compiler(), *FLAGS, "-x", "c++", "-fsyntax-only", "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True).stderr


def sanitizer_runtimes(build: str) -> list[str]:
    """The shared libraries to load before Python, from the compiler."""
    found = []
    for name in LIBRARIES[build]:
        path = _run([compiler(), f"-print-file-name={name}"]).strip()
        if not Path(path).is_absolute():
            raise BuildError(f"{compiler()} has no {name}: install it (Debian: libgcc-12-dev)")
        found.append(path)
    return found


def emulator_library(build: str) -> Path:
    """The shipped kernels and launch code over the emulator, as a shared library."""
    sources = [HERE / "host.cpp", *SHIPPED]
    return _link(f"libsimt_{build}.so", sources, build, ["-shared"])


def planted_program(build: str) -> Path:
    """The kernels with bugs in them, as a program."""
    return _link(f"planted_{build}", [HERE / "planted" / "main.cpp"], build, [])


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


@functools.cache
def _state() -> bytes:
    """Of the compiler and of every file that a compilation may read."""
    digest = hashlib.sha256(_run([compiler(), "--version"]).encode())
    folders = [HERE, ROOT / "csrc" / "cuda", ROOT / "csrc" / "include"]
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".h", ".cpp", ".cu"):
                digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.digest()


def _output(name: str, command: Sequence[str]) -> Path:
    key = hashlib.sha256(_state() + "\0".join(command).encode()).hexdigest()[:16]
    return CACHE / key / name


@contextmanager
def _one_builder() -> Iterator[None]:
    """Several test processes may want the same library."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(name: str, command: Sequence[str]) -> Path:
    output = _output(name, command)
    if not output.exists():
        output.parent.mkdir(parents=True, exist_ok=True)
        unfinished = output.with_suffix(".part")
        _run([*command, "-o", str(unfinished)])
        unfinished.rename(output)
    return output


def _compile(source: Path, sanitizers: Sequence[str]) -> Path:
    command = [compiler(), *FLAGS, *sanitizers, "-x", "c++", "-c", str(source)]
    return _make(source.stem + ".o", command)


def _link(name: str, sources: Sequence[Path], build: str, flags: Sequence[str]) -> Path:
    sanitizer_runtimes(build)
    # The emulator itself is built without sanitizers: its accesses are not those of the kernels.
    jobs = [(source, SANITIZERS[build]) for source in sources] + [(path, []) for path in RUNTIME]
    with _one_builder(), ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(lambda job: _compile(*job), jobs))
        return _make(name, [compiler(), *SANITIZERS[build], *flags, "-ldl", *map(str, objects)])
