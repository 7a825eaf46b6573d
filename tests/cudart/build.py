"""Links the objects that nvcc has made of the package with the stand-in for the runtime."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path

from simt.emulator import build
from simt.emulator.build import ROOT

sys.path.insert(0, str(ROOT / "tools"))
from sass import toolchain

HERE = Path(__file__).resolve().parent
CMAKE = ROOT / "build" / "cmake"
CUDA_OBJECTS = CMAKE / "csrc/cuda/CMakeFiles"
C_INTERFACE_OBJECTS = CMAKE / "csrc/c_api/CMakeFiles/fusedops_c_cuda.dir"
#: The architectures whose code the devices of the tests run.
ARCHITECTURES = ("80", "90")
#: The launches whose host code ThreadSanitizer watches: they set a limit for each of their kernels.
WATCHED = "softmax/spatial_launch.cu"
TO_BUILD = "`make cuda-check` builds what is missing"

#: The code of a kernel for one architecture: what Code in runtime.cpp has, in its order.
Code = tuple[int, int, int, int, list[int]]


def objects() -> list[Path]:
    """The objects of libfusedops_kernels_cuda and libfusedops_c_cuda."""
    kernels = sorted(CUDA_OBJECTS.rglob("*.cu.o"))
    interface = sorted(C_INTERFACE_OBJECTS.rglob("*.o"))
    if not kernels or not interface:
        raise build.BuildError(f"{CMAKE} has no objects for CUDA: {TO_BUILD}")
    return [*kernels, *interface]


@functools.cache
def library() -> Path:
    """The C interface for CUDA and all launches, on the stand-in for the runtime."""
    return link("libcudart_stand_in.so", objects(), [])


@functools.cache
def watched_library() -> Path:
    """The same, but ThreadSanitizer watches the host code of WATCHED."""
    others = [path for path in objects() if not str(path).endswith(f"{WATCHED}.o")]
    # The linker takes the first of an inline function that several objects have.
    return link("libcudart_watched.so", [watched_object(), *others], ["-fsanitize=thread"])


@functools.cache
def torch_library() -> Path:
    """The same, and the operators for CUDA, on the stand-in for libtorch_cuda."""
    torch = Path(importlib.util.find_spec("torch").origin).parent
    operators = CUDA_OBJECTS / "fusedops_cuda.dir/register_cuda.cpp.o"
    stand_in = compile_object("torch_cuda", f"-isystem{torch / 'include'}")
    libraries = [f"-L{torch / 'lib'}", "-Wl,--no-as-needed", "-ltorch_cpu", "-lc10"]
    return link("libcudart_torch.so", [stand_in, operators, *objects()], libraries)


def compile_object(name: str, *flags: str) -> Path:
    compiled = ["-std=c++20", "-O1", "-g1", "-fPIC", "-Wall", "-Werror", "-MMD", "-c"]
    headers = [f"-I{ROOT / 'csrc'}", f"-I{build.HERE}", f"-isystem{toolkit_headers()}"]
    command = [build.compiler(), *compiled, *headers, *flags, str(HERE / f"{name}.cpp")]
    return build.make(f"{name}.o", command)


def link(name: str, linked: list[Path], flags: list[str]) -> Path:
    exports = HERE / "exports.map"
    closed = f"-Wl,--no-undefined,--version-script={exports}"
    inputs = [compile_object("runtime"), *linked]
    command = [build.compiler(), "-shared", *flags, closed, *map(str, inputs)]
    return build.make(name, command, [*inputs, exports])


def watched_object() -> Path:
    """Compiled as CMake does it, but for the kernels: they stay PTX, which is not run either."""
    (target,) = (path for path in objects() if str(path).endswith(f"{WATCHED}.o"))
    cache = (CMAKE / "CMakeCache.txt").read_text()
    ninja = re.search(r"^CMAKE_MAKE_PROGRAM:\w+=(.*)", cache, re.M)[1]
    commands = toolchain.run(ninja, "-C", CMAKE, "-t", "commands", target.relative_to(CMAKE))
    nvcc = shlex.split(commands.splitlines()[-1].partition(" -MD ")[0])
    nvcc = nvcc[next(i for i, word in enumerate(nvcc) if word.endswith("nvcc")) :]
    nvcc = [word for word in nvcc if not word.startswith("--generate-code")]
    nvcc += ["--generate-code=arch=compute_90,code=compute_90", "-Xcompiler=-fsanitize=thread"]
    source = ROOT / "csrc/cuda" / WATCHED
    return build.make("watched.o", [*nvcc, "-MMD", "-x", "cu", "-c", str(source)])


def toolkit_headers() -> str:
    """The headers of the toolkit that CMake has found."""
    (found,) = CMAKE.glob("CMakeFiles/*/CMakeCUDACompiler.cmake")
    name = "CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES"
    return re.search(rf'{name} "([^";]+)', found.read_text())[1]


def kernel_codes() -> dict[str, list[Code]]:
    """The codes of every kernel, by its mangled name. They are read once for the same objects."""
    kernels = [path for path in objects() if path.name.endswith(".cu.o")]
    contents = b"".join(path.read_bytes() for path in [*kernels, Path(__file__)])
    cached = build.CACHE / f"codes-{hashlib.sha256(contents).hexdigest()[:16]}.json"
    if not cached.exists():
        found: dict[str, list[Code]] = {}
        for path in kernels:
            for name, codes in codes_in(path).items():
                found.setdefault(name, []).extend(codes)
        cached.write_text(json.dumps(found))
    return json.loads(cached.read_text())


def codes_in(path: Path) -> dict[str, list[Code]]:
    """The codes of an object's kernels.

    Objects that were built for sm_90 alone have no code for older devices. That of sm_90 stands for
    it, but for the kernels of clusters, which CMake compiles for no older architecture.
    """
    cuobjdump, environment = toolchain.find_disassembler()
    listed = toolchain.run(cuobjdump, "-lelf", path, env=environment)
    built = [arch for arch in ARCHITECTURES if f"sm_{arch}.cubin" in listed]
    found: dict[str, list[Code]] = {}
    for arch in built:
        command = (cuobjdump, f"-arch=sm_{arch}", "-res-usage", "-elf", path)
        dump = toolchain.run(*command, env=environment)
        parameters = parse_parameter_bytes(dump)
        stands_for = [arch] if path.name == "clusters.cu.o" or "80" in built else ARCHITECTURES
        for name, usage in toolchain.parse_usage(dump).items():
            needs = (usage.registers, usage.shared_bytes, usage.threads, parameters[name])
            found.setdefault(name, []).extend((int(arch), *needs) for arch in stands_for)
    return found


def parse_parameter_bytes(dump: str) -> dict[str, list[int]]:
    """The size of each parameter of each kernel."""
    sizes = {}
    for section in re.split(r"\n\.nv\.info\.", dump)[1:]:
        found = re.findall(r"Ordinal : 0x(\w+)\s+Offset\s*: 0x\w+\s+Size\s*: 0x(\w+)", section)
        by_place = sorted((int(ordinal, 16), int(size, 16)) for ordinal, size in found)
        sizes[section.split()[0]] = [size for _, size in by_place]
    return sizes
