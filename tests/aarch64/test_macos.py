"""A build for macOS gives clang options and sources that it takes. Nothing is linked or run there.

The headers are those of the cross compiler instead of Apple's, which define what kernels need.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .build import NEEDS_TOOLS, ROOT

CLANG = "clang++-14"
pytestmark = [
    NEEDS_TOOLS,
    pytest.mark.skipif(not shutil.which(CLANG), reason=f"needs {CLANG}"),
    pytest.mark.exhaustive,
]

CROSS = "/usr/aarch64-linux-gnu/include"
FOLDERS = (f"{CROSS}/c++/12", f"{CROSS}/c++/12/aarch64-linux-gnu", CROSS)
#: clang defines __nonnull for macOS, and GNU's headers something else of that name.
HEADERS = ("-nostdinc++ -D_GNU_SOURCE -U__nonnull", *(f"-isystem {each}" for each in FOLDERS))
OPTIONS = {
    "Python3_EXECUTABLE": sys.executable,
    "FUSEDOPS_BUILD_CUDA": "0",
    "CMAKE_SYSTEM_NAME": "Darwin",
    "CMAKE_SYSTEM_PROCESSOR": "arm64",
    "CMAKE_CXX_COMPILER": CLANG,
    "CMAKE_CXX_COMPILER_TARGET": "arm64-apple-macos12",
    "CMAKE_CXX_FLAGS": " ".join(HEADERS),
    "CMAKE_TRY_COMPILE_TARGET_TYPE": "STATIC_LIBRARY",  # there is no linker
    "CMAKE_INSTALL_NAME_TOOL": "none",
    "OpenMP_CXX_FLAGS": "-fopenmp",
    "OpenMP_CXX_LIB_NAMES": "",
    "CMAKE_EXPORT_COMPILE_COMMANDS": "1",
}
GNU_LINKERS = r"version-script|as-needed|no-undefined|-z,|push-state|\$ORIGIN|-lstdc\+\+"
#: What includes headers of torch, Python or OpenMP: those look for Apple's.
NEEDS_APPLES = r"torch/include|Python\.h|openmp\.cpp"


def test_clang_takes_what_a_build_for_macos_gives_it(tmp_path: Path) -> None:
    options = [f"-D{name}={value}" for name, value in OPTIONS.items()]
    command = ["cmake", "-S", str(ROOT), "-B", str(tmp_path), "-G", "Ninja", *options]
    subprocess.run(command, check=True)
    assert re.findall(GNU_LINKERS, (tmp_path / "build.ninja").read_text()) == []
    commands = json.loads((tmp_path / "compile_commands.json").read_text())
    compilations = [c["command"] for c in commands if not re.search(NEEDS_APPLES, c["command"])]
    assert len([each for each in compilations if "dispatch.cpp" in each]) == 8
    for each in compilations:
        checked = f"{each} -fsyntax-only -Werror=unused-command-line-argument"
        subprocess.run(checked, shell=True, cwd=tmp_path, check=True)
