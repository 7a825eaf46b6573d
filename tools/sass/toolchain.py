"""The programs of the CUDA toolkit: compiles kernels, and takes compiled ones apart."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .code import Instruction, parse_sass
from .errors import MissingTool, ReportError
from .kernels import Kernel, Usage, analyse

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "csrc" / "cuda").glob("*.cu"))
PIP_INSTALL = "pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"


def find_nvcc() -> str | None:
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    folders = [os.path.join(home, "bin") for home in homes if home]
    return os.environ.get("CUDACXX") or shutil.which("nvcc") or find_in(folders, "nvcc")


def find_in(folders: Iterable[str], name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join(folders))


def tool_environment() -> dict[str, str]:
    """PATH with the toolkit's folder and those of NVIDIA's pip packages: cuobjdump looks for
    nvdisasm there."""
    folders = [os.environ.get("PATH", "")]
    if nvcc := find_nvcc():
        folders.append(str(Path(nvcc).resolve().parent))
    packages = Path(sysconfig.get_path("purelib"), "nvidia")
    folders += map(str, sorted(packages.glob("cu*/bin"), reverse=True))
    return os.environ | {"PATH": os.pathsep.join(folders)}


def find_disassembler() -> tuple[str, dict[str, str]]:
    """cuobjdump, and the environment in which it finds nvdisasm."""
    environment = tool_environment()
    found = {tool: find_in([environment["PATH"]], tool) for tool in ("cuobjdump", "nvdisasm")}
    if missing := [tool for tool, path in found.items() if path is None]:
        raise MissingTool(f"found no {' and no '.join(missing)}: {PIP_INSTALL}")
    return found["cuobjdump"], environment


def run(*command: str | Path, **options) -> str:
    """The output of a command. Raises ReportError if it cannot be run or fails."""
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout
    except OSError as error:
        raise MissingTool(f"{command[0]}: {error.strerror}") from error
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).strip().splitlines() or ["nothing"]
        raise ReportError(
            f"{command[0]} failed with exit code {error.returncode} and said: {said[0]}"
        ) from error


def compile_cubin(source: Path, arch: str, folder: Path) -> Path:
    """Compiles a source with those flags of csrc/cuda/CMakeLists.txt that affect code."""
    nvcc = find_nvcc()
    if nvcc is None:
        raise MissingTool("nvcc not found: install the CUDA toolkit, or set CUDACXX or CUDA_HOME")
    cubin = folder / f"{source.stem}.sm_{arch}.cubin"
    includes = [f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'csrc' / 'include'}"]
    flags = ["-std=c++17", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr", f"-arch=sm_{arch}"]
    run(nvcc, *flags, *includes, "-cubin", "-o", cubin, source)
    return cubin


@dataclass(frozen=True)
class Code:
    """A kernel as it was compiled."""

    body: list[Instruction]
    usage: Usage
    parameters_at: int  # in the constant bank


def read_codes(cubin: Path) -> dict[str, Code]:
    """The kernels of a cubin by their symbols."""
    cuobjdump, environment = find_disassembler()
    dump = partial(run, cuobjdump, env=environment)
    bodies, elf = parse_sass(dump("-sass", cubin)), dump("-elf", cubin)
    usages, offsets = parse_usage(dump("-res-usage", cubin), elf), parse_parameters(elf)
    if unknown := [key for key in bodies if key not in usages]:
        raise ReportError(
            f"{cubin.name}: {cuobjdump} has neither registers nor launch bounds of "
            f"{demangle(unknown[:1])[unknown[0]]}"
        )
    return {key: Code(body, usages[key], offsets.get(key, 0)) for key, body in bodies.items()}


def parse_parameters(elf: str) -> dict[str, int]:
    """Where the parameters of each kernel begin in its constant bank."""
    offsets = {}
    for section in re.split(r"\n\.nv\.info\.", elf)[1:]:
        bank = re.search(r"EIATTR_PARAM_CBANK\s+Format:\s*\S+\s+Value:\s*\S+ 0x(\w+)", section)
        if bank:
            offsets[section.split()[0]] = int(bank[1], 16) & 0xFFFF
    return offsets


def parse_usage(resources: str, elf: str) -> dict[str, Usage]:
    """The resources from `cuobjdump -res-usage`, with the launch bounds from the ELF sections
    `.nv.info.<kernel>`."""
    threads = {}
    for section in re.split(r"\n\.nv\.info\.", elf)[1:]:
        bound = re.search(r"EIATTR_MAX_THREADS\s+Format:\s*\S+\s+Value:\s*0x([0-9a-f]+)", section)
        if bound:
            threads[section.split()[0]] = int(bound[1], 16)
    usages = {}
    for key, line in re.findall(r"Function (\S+):\s+(REG:.*)", resources):
        of = {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", line)}
        if key not in threads:
            continue
        usages[key] = Usage(of["REG"], of["STACK"] + of["LOCAL"], of["SHARED"], threads[key])
    return usages


def demangle(keys: Sequence[str]) -> dict[str, str]:
    """Short names of kernels by their symbols: `softmax_forward_registers<bf16, bf16, 8, 4>`."""
    lines = run("c++filt", input="\n".join(keys)).splitlines()
    short = {"__nv_bfloat16": "bf16", "__half": "half", "void ": "", "fusedops::cuda::": ""}
    names = {}
    for key, line in zip(keys, lines, strict=True):
        names[key] = line.partition("(")[0]
        for long_form, short_form in short.items():
            names[key] = names[key].replace(long_form, short_form)
    return names


def codes_of(
    architectures: Sequence[str], library: Path | None = None
) -> dict[str, dict[str, Code]]:
    """All kernels by architecture and symbol: from the library, if it was built for all the
    architectures; otherwise every source is compiled for each, with one process for each CPU."""
    find_disassembler()  # reports a missing one before a minute of compiling
    codes: dict[str, dict[str, Code]] = {arch: {} for arch in architectures}
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(os.cpu_count()) as pool:
        cubins = cubins_of(architectures, library, Path(name))
        found = pool.map(read_codes, [cubin for cubin, _ in cubins])
        for (_, arch), of_cubin in zip(cubins, found, strict=True):
            codes[arch] |= of_cubin
    return codes


def kernels_of(architectures: Sequence[str], library: Path | None = None) -> list[Kernel]:
    """The report's row for every kernel and architecture."""
    return kernels_in(codes_of(architectures, library))


def kernels_in(codes: dict[str, dict[str, Code]]) -> list[Kernel]:
    kernels = []
    for arch, of_arch in codes.items():
        names = demangle(list(of_arch))
        kernels += [
            analyse(arch, names[key], code.body, code.usage) for key, code in of_arch.items()
        ]
    return sorted(kernels, key=lambda kernel: (int(kernel.arch), kernel.name))


def cubins_of(
    architectures: Sequence[str], library: Path | None, folder: Path
) -> list[tuple[Path, str]]:
    """The compiled kernels, with the architecture of each file."""
    cubins = [] if library is None else extract_cubins(library, architectures, folder)
    if {arch for _, arch in cubins} != {*architectures}:
        jobs = [(source, arch, folder) for arch in architectures for source in SOURCES]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            cubins = list(pool.map(compile_job, jobs))
    return cubins


def compile_job(job: tuple[Path, str, Path]) -> tuple[Path, str]:
    return compile_cubin(*job), job[1]


def extract_cubins(
    library: Path, architectures: Sequence[str], folder: Path
) -> list[tuple[Path, str]]:
    """The cubins in a library that are for one of the architectures, with the architecture."""
    cuobjdump, environment = find_disassembler()
    run(cuobjdump, "-xelf", "all", library.resolve(), env=environment, cwd=folder)
    found = [(path, path.suffixes[-2].removeprefix(".sm_")) for path in folder.glob("*.cubin")]
    return [(path, arch) for path, arch in sorted(found) if arch in architectures]
