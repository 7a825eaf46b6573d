"""Compiles the emulator and what runs on it: ``python3 -m tests.simt.emulator.build plain``.

It needs Python and g++ 12 or later, which ``CXX`` names, and nothing else. Everything lands in
``build/simt``, in a folder for each command. Nothing is made again while the contents of what its
command has read stay as they were.
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
PLANTED = HERE.parent / "planted"
ROOT = HERE.parent.parent.parent
CACHE = ROOT / "build" / "simt"

#: The package's own sources, compiled as C++ without changes.
SHIPPED = sorted((ROOT / "csrc/cuda").glob("*/*.cu"))
#: The C interface for CUDA.
C_INTERFACE = [ROOT / "csrc/c_api" / name for name in ("c_api.cpp", "c_device_cuda.cpp")]
C_INTERFACE += [ROOT / "csrc/c_api/c_memory_cuda.cu", ROOT / "csrc/version.cpp"]
C_INTERFACE_FLAGS = [f"-I{ROOT / 'csrc/include'}", '-DFUSEDOPS_VERSION="emulated"']
RUNTIME = [HERE / "runtime.cpp", HERE / "fiber.cpp", HERE / "async.cpp"]

#: FMA contraction as nvcc does it; nvcc assumes no strict aliasing either. -O2 would take half as
#: long again to compile, and the tests would run no faster.
FLAGS = [
    *("-std=c++20", "-O1", "-fPIC", "-march=x86-64-v3", "-ffp-contract=fast"),
    *("-fno-strict-aliasing", "-Wall", "-Wno-unknown-pragmas", "-Werror"),
    *(f"-I{HERE}", f"-I{HERE / 'include'}", f"-I{ROOT / 'csrc'}"),
]
#: Only what reports show needs lines: the emulator itself knows where a kernel calls it.
SANITIZERS = {
    "plain": [],
    "asan": [
        *("-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
        "-fno-omit-frame-pointer",
    ],
    "tsan": ["-g1", "-fsanitize=thread"],
}
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


@functools.cache
def emulator_library(build: str) -> Path:
    """The shipped kernels and launch code over the emulator, as a shared library."""
    sanitizer_runtimes(build)
    jobs = [(source, SANITIZERS[build]) for source in [HERE / "host.cpp", *SHIPPED]]
    return link(f"libsimt_{build}.so", jobs, ["-shared", *SANITIZERS[build]])


@functools.cache
def c_interface_library() -> Path:
    """The C interface for CUDA, kernels and all, over the emulator."""
    jobs = [(source, []) for source in [HERE / "host.cpp", *SHIPPED]]
    jobs += [(source, C_INTERFACE_FLAGS) for source in C_INTERFACE]
    return link("libsimt_c.so", jobs, ["-shared"])


@functools.cache
def planted_program(build: str) -> Path:
    """The kernels with bugs in them, as a program."""
    sanitizer_runtimes(build)
    jobs = [(PLANTED / "main.cpp", SANITIZERS[build])]
    return link(f"planted_{build}", jobs, SANITIZERS[build])


@functools.cache
def atomics_library() -> Path:
    """A softmax that is not deterministic."""
    return link("libatomics.so", [(PLANTED / "atomic_softmax.cpp", [])], ["-shared"])


Jobs = Sequence[tuple[Path, Sequence[str]]]


def link(name: str, jobs: Jobs, flags: Sequence[str]) -> Path:
    """Links a library of compiled sources, each with flags of its own. The emulator itself is built
    without sanitizers, because its accesses are not those of the kernels."""
    jobs = [*jobs, *((path, []) for path in RUNTIME)]
    # The largest sources first: no core waits for one that has begun last.
    jobs.sort(key=lambda job: job[0].suffix != ".cu")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(lambda job: compile_object(*job), jobs))
    return make(name, [compiler(), *flags, "-ldl", *map(str, objects)], objects)


def compile_object(source: Path, flags: Sequence[str]) -> Path:
    """The object of a source. The folders of headers in its own flags come first."""
    command = [compiler(), *flags, *FLAGS, "-MMD", "-x", "c++", "-c", str(source)]
    return make(source.stem + ".o", command)


def make(name: str, command: Sequence[str], inputs: Sequence[Path] = ()) -> Path:
    """The output of a command. ``inputs`` are what it reads besides the files of -MMD."""
    key = hashlib.sha256("\0".join([_version(), *command]).encode()).hexdigest()[:16]
    output = CACHE / key / name
    digests, unfinished = output.with_suffix(".sha256"), output.with_suffix(".part")
    with _only_maker(output.parent):
        if not (output.exists() and _are_current(digests)):
            digests.unlink(missing_ok=True)
            start = time.time()
            _run([*command, "-o", str(unfinished)])
            unfinished.rename(output)
            _write_digests(digests, [*inputs, *_files_read(output.with_suffix(".d"))], start)
    return output


def _files_read(dependencies: Path) -> list[Path]:
    """The files in the makefile rule of -MMD, if there is one."""
    if not dependencies.exists():
        return []
    _, _, files = dependencies.read_text().replace("\\\n", " ").partition(":")
    return [Path(file) for file in shlex.split(files)]


def _write_digests(digests: Path, files: Iterable[Path], start: float) -> None:
    """Records the files' contents, unless one was changed while the command ran: then it is not
    known which content the command has read."""
    files = list(files)
    if all(file.stat().st_mtime < start for file in files):
        digests.write_text("".join(f"{_digest(file)} {file}\n" for file in files))


def _are_current(digests: Path) -> bool:
    """Whether files have the contents that were recorded."""
    if not digests.exists():
        return False
    lines = (line.split(" ", 1) for line in digests.read_text().splitlines())
    return all(_digest(Path(file)) == digest for digest, file in lines)


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else "missing"


@functools.cache
def _version() -> str:
    return _run([compiler(), "--version"])


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


@contextmanager
def _only_maker(folder: Path) -> Iterator[None]:
    """A lock, so that processes that want the same library compile each object once."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


TARGETS = {
    **{name: partial(emulator_library, name) for name in SANITIZERS},
    **{f"planted_{name}": partial(planted_program, name) for name in SANITIZERS},
    "atomics": atomics_library,
    "c_interface": c_interface_library,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m tests.simt.emulator.build")
    parser.add_argument(
        "targets", nargs="+", choices=TARGETS, metavar="TARGET", help=", ".join(TARGETS)
    )
    for target in parser.parse_args().targets:
        try:
            print(TARGETS[target]())
        except BuildError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
