"""Compiles the emulator and what runs on it, each object once for each state of its sources.

Everything lands in ``build/simt/<state>/<key>``, hashes of all sources and the compiler and of the
command: a second run compiles nothing, and states that nobody used for a week are deleted. ``CXX``
names the compiler, g++ 12 or later.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

HERE = Path(__file__).parent
PLANTED = HERE.parent / "planted"
ROOT = HERE.parent.parent.parent
CACHE = ROOT / "build" / "simt"

#: The package's own sources, compiled as C++ without changes.
SHIPPED = [
    ROOT / f"csrc/cuda/{name}_launch.cu"
    for name in ("softmax", "spatial_softmax", "masked_softmax", "norm", "spatial_norm")
]
#: The C interface for CUDA, whose includes begin at csrc.
C_INTERFACE = [
    ROOT / f"csrc/{name}" for name in ("c_api/c_api.cpp", "c_api/c_device_cuda.cu", "version.cpp")
]
C_INTERFACE_FLAGS = [f"-I{ROOT / 'csrc'}", '-DFUSEDOPS_VERSION="emulated"']
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
#: How long a state of the sources is kept after its last use.
KEPT_SECONDS = 7 * 24 * 3600
LIBRARIES = {"plain": [], "asan": ["libasan.so", "libubsan.so"], "tsan": ["libtsan.so"]}


class BuildError(Exception):
    """The compiler is missing or has failed; the message is the compiler's."""


def compiler() -> str:
    name = os.environ.get("CXX", "g++")
    found = shutil.which(name)
    if found is None:
        raise BuildError(f"the emulator needs g++ 12 or later; {name!r} is not on PATH")
    return found


def compile_errors(source: str) -> str:
    """The compiler's messages on a piece of C++, empty where it compiles."""
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
    sanitizer_runtimes(build)
    jobs = [(source, SANITIZERS[build]) for source in [HERE / "host.cpp", *SHIPPED]]
    return _link(f"libsimt_{build}.so", jobs, ["-shared", *SANITIZERS[build]])


def c_interface_library() -> Path:
    """The C interface for CUDA, kernels and all, over the emulator."""
    jobs = [(source, []) for source in [HERE / "host.cpp", *SHIPPED]]
    jobs += [(source, C_INTERFACE_FLAGS) for source in C_INTERFACE]
    return _link("libsimt_c.so", jobs, ["-shared"])


def planted_program(build: str) -> Path:
    """The kernels with bugs in them, as a program."""
    sanitizer_runtimes(build)
    jobs = [(PLANTED / "main.cpp", SANITIZERS[build])]
    return _link(f"planted_{build}", jobs, SANITIZERS[build])


def atomics_library() -> Path:
    """A softmax that is not deterministic."""
    return _link("libatomics.so", [(PLANTED / "atomic_softmax.cpp", [])], ["-shared"])


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


@functools.cache
def _state() -> bytes:
    """A digest of the compiler and of every file that a compilation may read."""
    digest = hashlib.sha256(_run([compiler(), "--version"]).encode())
    folders = [HERE, PLANTED, *(ROOT / "csrc" / name for name in ("c_api", "cuda", "include"))]
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".h", ".def", ".cpp", ".cu"):
                digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.digest()


@functools.cache
def _folder() -> Path:
    """The folder of this state of the sources. The first use in a process marks it as used, and
    deletes folders that were not used for long; another process may be deleting them too."""
    folder = CACHE / hashlib.sha256(_state()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    for other in CACHE.iterdir():
        with suppress(OSError):
            if other.stat().st_mtime < time.time() - KEPT_SECONDS:
                shutil.rmtree(other)
    return folder


def _output(name: str, command: Sequence[str]) -> Path:
    key = hashlib.sha256("\0".join(command).encode()).hexdigest()[:16]
    return _folder() / key / name


@contextmanager
def _only_maker(output: Path) -> Iterator[None]:
    """A lock, so that test processes that want the same library compile each object once."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with open(output.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(name: str, command: Sequence[str]) -> Path:
    output = _output(name, command)
    with _only_maker(output):
        if not output.exists():
            unfinished = output.with_suffix(".part")
            _run([*command, "-o", str(unfinished)])
            unfinished.rename(output)
    return output


def _compile(source: Path, flags: Sequence[str]) -> Path:
    command = [compiler(), *FLAGS, *flags, "-x", "c++", "-c", str(source)]
    return _make(source.stem + ".o", command)


Jobs = Sequence[tuple[Path, Sequence[str]]]


def _link(name: str, jobs: Jobs, flags: Sequence[str]) -> Path:
    """Links a library of compiled sources, each with flags of its own. The emulator itself is built
    without sanitizers, because its accesses are not those of the kernels."""
    jobs = [*jobs, *((path, []) for path in RUNTIME)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(lambda job: _compile(*job), jobs))
        return _make(name, [compiler(), *flags, "-ldl", *map(str, objects)])
