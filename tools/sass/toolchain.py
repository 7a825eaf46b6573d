"""Disassembles compiled kernels, by the programs of the CUDA toolkit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd

from fusedops.cli.errors import UserError

from .code import Instruction, parse_sass
from .kernels import CHIPS, Usage, is_hot, numbers_of

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "fusedops" / "lib" / "libfusedops_kernels_cuda.so"
TO_BUILD = (
    "Build it for the architectures: TORCH_CUDA_ARCH_LIST='9.0' FUSEDOPS_BUILD_CUDA=1 "
    "python setup.py build_ext --inplace"
)
PIP_INSTALL = "pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"


def tool_environment() -> dict[str, str]:
    """Returns the environment with the toolkit's folder, and those of NVIDIA's pip packages, added
    to PATH. cuobjdump looks for nvdisasm there."""
    homes = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")
    folders = [os.environ.get("PATH", "")]
    if nvcc := os.environ.get("CUDACXX") or shutil.which("nvcc"):
        folders.append(str(Path(nvcc).resolve().parent))
    folders += [os.path.join(home, "bin") for home in homes if home]
    packages = Path(sysconfig.get_path("purelib"), "nvidia")
    folders += map(str, sorted(packages.glob("cu*/bin"), reverse=True))
    return os.environ | {"PATH": os.pathsep.join(folders)}


def find_disassembler() -> tuple[str, dict[str, str]]:
    """Returns the path of cuobjdump, and the environment in which it finds nvdisasm. Raises
    UserError if one of the two is not installed."""
    environment = tool_environment()
    tools = ("cuobjdump", "nvdisasm")
    found = {tool: shutil.which(tool, path=environment["PATH"]) for tool in tools}
    if missing := [tool for tool, path in found.items() if path is None]:
        raise UserError(f"found no {' and no '.join(missing)}: {PIP_INSTALL}")
    return found["cuobjdump"], environment


def run(*command: str | Path, **options) -> str:
    """Returns the output of a command. Raises UserError if it cannot be run or fails."""
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout
    except OSError as error:
        raise UserError(f"{command[0]}: {error.strerror}") from error
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).strip().splitlines() or ["nothing"]
        raise UserError(
            f"{command[0]} failed with exit code {error.returncode} and said: {said[0]}"
        ) from error


def kernels_in(library: Path, architectures: Sequence[int]) -> pd.DataFrame:
    """Returns the report: a row about each kernel of a library for each architecture, with its
    name, whether it is hot, and its numbers (`numbers_of`)."""
    if not library.exists():
        raise UserError(f"{library} is missing. {TO_BUILD}")
    rows = []
    for arch in architectures:
        for name, (body, usage) in disassemble(library, arch).items():
            numbers = numbers_of(body, usage, CHIPS[arch])
            rows.append({"arch": arch, "kernel": name, "is_hot": is_hot(name), **numbers})
    return pd.DataFrame(rows).sort_values(["arch", "kernel"], ignore_index=True)


def disassemble(library: Path, arch: int) -> dict[str, tuple[list[Instruction], Usage]]:
    """Returns the instructions and resources of a library's kernels for an architecture, by their
    short names. Runs as many disassemblers at a time as there are CPUs."""
    cuobjdump, environment = find_disassembler()

    def read(cubin: Path) -> str:
        return run(cuobjdump, "-sass", "-res-usage", "-elf", cubin, env=environment)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        wanted = f".sm_{arch}."
        run(cuobjdump, "-xelf", wanted, library.resolve(), env=environment, cwd=folder)
        dumps = list(pool.map(read, sorted(Path(folder).glob(f"*{wanted}cubin"))))
    if not dumps:
        raise UserError(f"{library} has no code for sm_{arch}. {TO_BUILD}")
    bodies = {key: body for dump in dumps for key, body in parse_sass(dump).items()}
    usages = {key: usage for dump in dumps for key, usage in parse_usage(dump).items()}
    names = short_names(list(bodies))
    if unknown := [names[key] for key in bodies if key not in usages]:
        raise UserError(f"{cuobjdump} has neither registers nor launch bounds of {unknown[0]}")
    return {names[key]: (body, usages[key]) for key, body in bodies.items()}


def parse_usage(dump: str) -> dict[str, Usage]:
    """Returns the resources and launch bounds of each kernel in the output of `cuobjdump -res-usage
    -elf`. Kernels without launch bounds are left out. The ELF section `.nv.info.<kernel>` has a
    kernel's attributes."""
    bounds = re.compile(r"EIATTR_MAX_THREADS\s+Format:\s*\S+\s+Value:\s*0x([0-9a-f]+)")
    sections = re.split(r"\n\.nv\.info\.", dump)[1:]
    found = ((section.split()[0], bounds.search(section)) for section in sections)
    threads = {key: int(match[1], 16) for key, match in found if match}
    usages = {}
    for key, line in re.findall(r"Function (\S+):\s+(REG:.*)", dump):
        of = {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", line)}
        if key in threads:
            usages[key] = Usage(of["REG"], of["STACK"] + of["LOCAL"], of["SHARED"], threads[key])
    return usages


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Maps the symbols of kernels to short names, such as `softmax_forward_registers<bf16, 8, 4,
    0>`."""
    lines = run("c++filt", input="\n".join(keys)).splitlines()
    short = {"__nv_bfloat16": "bf16", "__half": "half", "void ": "", "fusedops::cuda::": ""}
    pattern = re.compile("|".join(short))
    names = (pattern.sub(lambda found: short[found[0]], line.partition("(")[0]) for line in lines)
    return dict(zip(keys, names, strict=True))
