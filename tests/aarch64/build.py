"""``python -m tests.aarch64.build``: the libraries for ARM, and the program that runs kernels.

It needs a cross compiler and qemu (Debian: ``apt install g++-12-aarch64-linux-gnu
qemu-user-static``). FUSEDOPS_BUILD_CUDA=1 builds the libraries for CUDA too, if nvcc can.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIBRARIES = ROOT / "build/aarch64-linux-gnu"
COMPILER = {"aarch64": "aarch64-linux-gnu-g++-12", "x86_64": "g++"}
EMULATOR = {
    "aarch64": ("qemu-aarch64-static", "-cpu", "max", "-L", "/usr/aarch64-linux-gnu"),
    "x86_64": ("qemu-x86_64-static", "-cpu", "max"),
}
_MISSING = [
    tool for tool in (COMPILER["aarch64"], EMULATOR["aarch64"][0]) if not shutil.which(tool)
]
NEEDS_TOOLS = pytest.mark.skipif(bool(_MISSING), reason=f"needs {' and '.join(_MISSING)}")
#: Where both processes have the memory that they share.
SHARED_ADDRESS = 1 << 37


def run(*command: object) -> None:
    subprocess.run(list(map(str, command)), cwd=ROOT, check=True)


def kernels(machine: str) -> Path:
    """The library of the kernels."""
    folder = LIBRARIES / "csrc/cpu" if machine == "aarch64" else ROOT / "fusedops/lib"
    return folder / "libfusedops_kernels.so"


def driver(machine: str) -> Path:
    return ROOT / "build" / f"driver-{machine}"


def build_libraries() -> None:
    configure = ("cmake", "-S", ROOT, "-B", LIBRARIES, "-G", "Ninja")
    toolchain = f"-DCMAKE_TOOLCHAIN_FILE={ROOT / 'cmake/aarch64-linux-gnu.cmake'}"
    cuda = f"-DFUSEDOPS_BUILD_CUDA={os.environ.get('FUSEDOPS_BUILD_CUDA', '0')}"
    run(*configure, toolchain, cuda, f"-DPython3_EXECUTABLE={sys.executable}")
    run("cmake", "--build", LIBRARIES, "-j", os.environ.get("MAX_JOBS", str(os.cpu_count())))


def build_driver(machine: str) -> None:
    """The driver, with the launches, on the library of the kernels."""
    csrc = ROOT / "csrc"
    sources = [HERE / "driver.cpp", *sorted((csrc / "cpu").glob("*/*launch.cpp"))]
    sources += [csrc / "cpu/threads/openmp.cpp", csrc / "cpu/threads/fork.cpp"]
    library = kernels(machine)
    run(
        *(COMPILER[machine], "-std=c++17", "-O1", "-fopenmp", f"-I{csrc}", f"-I{csrc / 'include'}"),
        *(f"-DSHARED_ADDRESS={SHARED_ADDRESS}", *sources, library, f"-Wl,-rpath={library.parent}"),
        *("-o", driver(machine)),
    )


if __name__ == "__main__":
    build_libraries()
    build_driver("aarch64")
