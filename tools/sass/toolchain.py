"""Disassembles compiled kernels, by the programs of the CUDA toolkit."""

from __future__ import annotations

import fcntl
import hashlib
import os
import pickle
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .code import Instruction, parse_sass
from .errors import MissingTool, ReportError
from .kernels import Kernel, Usage, analyse

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "fusedops" / "lib" / "libfusedops_kernels_cuda.so"
CACHE = ROOT / "build" / "sass"
TO_BUILD = (
    "Build it for the architectures: TORCH_CUDA_ARCH_LIST='9.0' FUSEDOPS_BUILD_CUDA=1 "
    "python setup.py build_ext --inplace"
)
PIP_INSTALL = "pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"


def find_nvcc() -> str | None:
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    folders = [os.path.join(home, "bin") for home in homes if home]
    return os.environ.get("CUDACXX") or shutil.which("nvcc") or find_in(folders, "nvcc")


def find_in(folders: Iterable[str], name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join(folders))


def tool_environment() -> dict[str, str]:
    """Returns the environment with the toolkit's folder, and those of NVIDIA's pip packages, added
    to PATH. cuobjdump looks for nvdisasm there."""
    folders = [os.environ.get("PATH", "")]
    if nvcc := find_nvcc():
        folders.append(str(Path(nvcc).resolve().parent))
    packages = Path(sysconfig.get_path("purelib"), "nvidia")
    folders += map(str, sorted(packages.glob("cu*/bin"), reverse=True))
    return os.environ | {"PATH": os.pathsep.join(folders)}


def find_disassembler() -> tuple[str, dict[str, str]]:
    """Returns the path of cuobjdump, and the environment in which it finds nvdisasm. Raises
    MissingTool if one of the two is not installed."""
    environment = tool_environment()
    found = {tool: find_in([environment["PATH"]], tool) for tool in ("cuobjdump", "nvdisasm")}
    if missing := [tool for tool, path in found.items() if path is None]:
        raise MissingTool(f"found no {' and no '.join(missing)}: {PIP_INSTALL}")
    return found["cuobjdump"], environment


def run(*command: str | Path, **options) -> str:
    """Returns the output of a command. Raises ReportError if it cannot be run or fails."""
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout
    except OSError as error:
        raise MissingTool(f"{command[0]}: {error.strerror}") from error
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).strip().splitlines() or ["nothing"]
        raise ReportError(
            f"{command[0]} failed with exit code {error.returncode} and said: {said[0]}"
        ) from error


@dataclass(frozen=True)
class Code:
    """A compiled kernel: its instructions, its resources, and where its parameters are."""

    body: list[Instruction]
    usage: Usage
    parameters_at: int  # the offset of the parameters in the constant bank


def read_codes(cubin: Path) -> dict[str, Code]:
    """Returns the kernels of a cubin, which is a file of machine code for a GPU, by their
    symbols."""
    cuobjdump, environment = find_disassembler()
    dump = run(cuobjdump, "-sass", "-res-usage", "-elf", cubin, env=environment)
    bodies, usages, offsets = parse_sass(dump), parse_usage(dump), parse_parameters(dump)
    if unknown := [key for key in bodies if key not in usages]:
        raise ReportError(
            f"{cubin.name}: {cuobjdump} has neither registers nor launch bounds of "
            f"{demangle(unknown[:1])[unknown[0]]}"
        )
    return {key: Code(body, usages[key], offsets.get(key, 0)) for key, body in bodies.items()}


def parse_parameters(dump: str) -> dict[str, int]:
    """Returns the offset of each kernel's parameters in its constant bank."""
    banks = attributes(dump, "PARAM_CBANK", r"\S+ 0x(\w+)")
    return {key: bank & 0xFFFF for key, bank in banks.items()}


def attributes(dump: str, name: str, value: str) -> dict[str, int]:
    """Returns the attribute EIATTR_<name> of each kernel that has it. The ELF sections
    `.nv.info.<kernel>` list the attributes. The group in the regular expression `value` matches the
    number, which is hexadecimal."""
    pattern = re.compile(rf"EIATTR_{name}\s+Format:\s*\S+\s+Value:\s*{value}")
    sections = re.split(r"\n\.nv\.info\.", dump)[1:]
    found = ((section.split()[0], pattern.search(section)) for section in sections)
    return {key: int(match[1], 16) for key, match in found if match}


def parse_usage(dump: str) -> dict[str, Usage]:
    """Returns the resources and launch bounds of each kernel in the output of `cuobjdump -res-usage
    -elf`. Kernels without launch bounds are left out."""
    threads = attributes(dump, "MAX_THREADS", r"0x([0-9a-f]+)")
    usages = {}
    for key, line in re.findall(r"Function (\S+):\s+(REG:.*)", dump):
        of = {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", line)}
        if key not in threads:
            continue
        usages[key] = Usage(of["REG"], of["STACK"] + of["LOCAL"], of["SHARED"], threads[key])
    return usages


def demangle(keys: Sequence[str]) -> dict[str, str]:
    """Maps the symbols of kernels to short names, such as `softmax_forward_registers<bf16, 8, 4,
    0>`."""
    lines = run("c++filt", input="\n".join(keys)).splitlines()
    short = {"__nv_bfloat16": "bf16", "__half": "half", "void ": "", "fusedops::cuda::": ""}
    names = {}
    for key, line in zip(keys, lines, strict=True):
        names[key] = line.partition("(")[0]
        for long_form, short_form in short.items():
            names[key] = names[key].replace(long_form, short_form)
    return names


def codes_of(architectures: Sequence[str], library: Path = LIBRARY) -> dict[str, dict[str, Code]]:
    """Returns the kernels of a library by architecture and symbol. A library is disassembled once
    for each architecture, and the result is kept in ``build/sass`` until another library is
    read."""
    if not library.exists():
        raise ReportError(f"{library} is missing. {TO_BUILD}")
    CACHE.mkdir(parents=True, exist_ok=True)
    # The lock is for processes of the tests that want the same library at the same time.
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = CACHE / state_of(library)
        for other in filter(Path.is_dir, CACHE.iterdir()):
            if other != folder:
                shutil.rmtree(other)
        folder.mkdir(exist_ok=True)
        return {
            arch: remembered(folder / f"sm_{arch}", partial(take_apart, library, arch))
            for arch in architectures
        }


def state_of(library: Path) -> str:
    """Returns a digest of a library and of the code of this package, which reads it."""
    digest = hashlib.sha256(library.read_bytes())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def remembered(path: Path, compute: Callable[[], dict[str, Code]]) -> dict[str, Code]:
    """Returns the kernels in the file `path`. If there is no such file, computes and writes them.
    The file is written under another name first, so that a process that is stopped leaves no half
    of a file."""
    if not path.exists():
        unfinished = path.with_suffix(".part")
        unfinished.write_bytes(pickle.dumps(compute()))
        unfinished.rename(path)
    found: dict[str, Code] = pickle.loads(path.read_bytes())
    return found


def take_apart(library: Path, arch: str) -> dict[str, Code]:
    """Returns the kernels of a library for an architecture, by symbol. Runs as many disassemblers
    at a time as there are CPUs."""
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(os.cpu_count()) as pool:
        cubins = extract_cubins(library, arch, Path(name))
        if not cubins:
            raise ReportError(f"{library} has no code for sm_{arch}. {TO_BUILD}")
        return {key: code for found in pool.map(read_codes, cubins) for key, code in found.items()}


def kernels_in(codes: dict[str, dict[str, Code]]) -> list[Kernel]:
    """Returns the report's rows about kernels, which `codes` has by architecture and symbol."""
    kernels = []
    for arch, of_arch in codes.items():
        names = demangle(list(of_arch))
        kernels += [
            analyse(arch, names[key], code.body, code.usage) for key, code in of_arch.items()
        ]
    return sorted(kernels, key=lambda kernel: (int(kernel.arch), kernel.name))


def extract_cubins(library: Path, arch: str, folder: Path) -> list[Path]:
    """Writes the cubins of a library for an architecture to `folder`, and returns their paths."""
    cuobjdump, environment = find_disassembler()
    wanted = f".sm_{arch}."
    run(cuobjdump, "-xelf", wanted, library.resolve(), env=environment, cwd=folder)
    return sorted(folder.glob(f"*{wanted}cubin"))
