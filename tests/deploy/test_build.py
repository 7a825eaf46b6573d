"""The build makes libraries without Python and a record of itself, or refuses clearly."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import output, run_python

import fusedops
from fusedops.ops.registration import libraries

ROOT = Path(__file__).parents[2]
#: Those for ARM that `python -m tests.aarch64.build` has made, but for the stand-in for torch's.
ARM = (ROOT / "build/aarch64-linux-gnu").glob("csrc/*/*.so")
ALL_LIBRARIES = [
    *(pytest.param(path, id=path.name) for path in sorted(libraries.LIB_DIR.glob("*.so"))),
    *(
        pytest.param(path, id=f"{path.name}-aarch64", marks=pytest.mark.exhaustive)
        for path in sorted(ARM)
    ),
]
LIBRARIES = [each for each in ALL_LIBRARIES if re.match(r"libfusedops(_cuda)?\.so", each.id)]


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_names_no_path_of_the_machine_that_built_it(library):
    needed = output("readelf", "-d", library)
    assert "libtorch_cpu.so" in needed
    assert re.findall(r"R(?:UN)?PATH.*\[(.*)\]", needed) in ([], ["$ORIGIN"])
    assert str(ROOT).encode() not in library.read_bytes()


@pytest.mark.parametrize("library", ALL_LIBRARIES)
def test_a_library_is_hardened(library):
    """Its tables of addresses are filled and made read-only before its code runs; its stack is not
    executable and guarded, and so are the standard library's copies and indices."""
    assert re.search(r"FLAGS_1.*\bNOW\b", output("readelf", "-d", library))
    segments = output("readelf", "-lW", library)
    assert "GNU_RELRO" in segments
    assert re.search(r"GNU_STACK.* RW +0x", segments)
    undefined = output("nm", "-D", "--undefined-only", library)
    assert "__stack_chk_fail" in undefined
    calls_what_is_checked = not re.search("cuda|op_call", library.name)
    assert not calls_what_is_checked or re.search(r"__\w+_chk\b", undefined)


#: The newest symbols of manylinux_2_34: glibc 2.34, GCC 11.
NEWEST = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)}
#: The stable C functions of torch, and what the toolchain leaves to whoever loads a library.
STABLE = r"(aoti_torch|torch)_[a-z0-9_]+(_Tensor)?|_ITM_\w+TMCloneTable|__gmon_start__"
#: What the libraries of kernels export, mangled.
_CUDA = r"4cuda(6launch|13query_capture|15workspace_bytes)E\w+"
KERNELS = rf"_ZN8fusedops(11cpu_kernelsEv|{_CUDA}|5c_api3gpu\w+)"
HEADER = (ROOT / "csrc/include/fusedops/c_api.h").read_text()
C_INTERFACE = set(re.findall(r"^FUSEDOPS_API [\w* ]+?(\w+)\(", HEADER, re.MULTILINE))
#: The functions of c_memory_cuda.h.
GPU_FUNCTIONS = ("allocate", "release", "clear", "variances_of", "rstd_of")
GPU_FUNCTIONS += ("is_out_of_memory", "error_text")
#: What each library is there to be called for; the operators are registered, not exported. A
#: library that the kernels were linked into once more would export them too.
EXPORTS = {
    "libfusedops.so": {
        "fusedops_cpu_kernel",
        "fusedops_interpreter_exits",
        "fusedops_threads_under_way",
        "fusedops_version",
    },
    "libfusedops_cuda.so": {"fusedops_version"},
    "libfusedops_c.so": C_INTERFACE,
    "libfusedops_c_cuda.so": C_INTERFACE,
    "libfusedops_kernels.so": {"fusedops::cpu_kernels", "fusedops_cpu_isa", "fusedops_version"},
    "libfusedops_kernels_cuda.so": {
        *(f"fusedops::c_api::gpu::{name}" for name in GPU_FUNCTIONS),
        "fusedops::cuda::launch",
        "fusedops::cuda::query_capture",
        "fusedops::cuda::workspace_bytes",
        "fusedops_cuda_refusals",
        "fusedops_version",
    },
    "op_call.abi3.so": {"PyInit_op_call", "fusedops_version"},
}


def undefined_symbols(library: Path) -> list[str]:
    return [
        line.split()[-1] for line in output("nm", "-D", "--undefined-only", library).splitlines()
    ]


@pytest.mark.parametrize("library", ALL_LIBRARIES)
def test_a_library_needs_no_symbol_that_a_torch_or_a_system_may_lack(library):
    """A symbol has a version, and so belongs to the C or C++ library, or is of torch's stable ABI,
    or of a library of kernels, or, in the extension module, of Python's limited API, which the
    compiler has checked."""
    python = r"|_?Py[A-Z]?\w+" if "op_call" in library.name else ""
    unversioned = [name for name in undefined_symbols(library) if "@" not in name]
    known = rf"{STABLE}|{KERNELS}{python}"
    assert [name for name in unversioned if not re.fullmatch(known, name)] == []


@pytest.mark.parametrize("library", ALL_LIBRARIES)
def test_a_library_loads_on_every_system_of_its_wheels_tag(library):
    for name in undefined_symbols(library):
        found = re.search(r"@(GLIBC|GLIBCXX|CXXABI|GCC)_([0-9.]+)$", name)
        if found:
            version = tuple(map(int, found[2].split(".")))
            assert version <= NEWEST[found[1]], name


@pytest.mark.parametrize("library", ALL_LIBRARIES)
def test_a_library_exports_what_is_meant_to_be_called_and_nothing_else(library):
    defined = output("nm", "-DCj", "--defined-only", library)
    assert {line.partition("(")[0] for line in defined.splitlines()} == EXPORTS[library.name]


@pytest.mark.parametrize("library", ALL_LIBRARIES)
def test_a_function_of_a_library_begins_where_jumps_may_land(library):
    symbols = output("nm", "-D", library)
    start = int(re.search(r"(\w+) T fusedops_version\b", symbols)[1], 16)
    with library.open("rb") as file:  # where code lies as in memory
        file.seek(start)
        first = file.read(4)
    assert first in (b"\xf3\x0f\x1e\xfa", b"\x5f\x24\x03\xd5")  # endbr64, ARM's bti c


def test_the_build_record_says_what_was_built_and_why():
    info = libraries.build_info()
    assert info["version"] == fusedops.__version__
    assert info["torch_target"] == "0x020a000000000000"  # 2.10
    assert info["cuda"]["built"] == libraries.CUDA_LIBRARY.exists()
    assert info["cuda"]["reason"]
    assert libraries.cpu_isa() in info["cpu_isas"]


def configure(tmp_path: Path, *options: str, **variables: str) -> subprocess.CompletedProcess:
    command = ["cmake", "-S", ROOT, "-B", tmp_path, f"-DPython3_EXECUTABLE={sys.executable}"]
    environment = os.environ | variables
    return subprocess.run([*command, *options], env=environment, capture_output=True, text=True)


def test_a_build_without_nvcc_is_complete_and_says_so(tmp_path):
    result = configure(tmp_path, "-DCMAKE_CUDA_COMPILER=", "-DFUSEDOPS_BUILD_CUDA=auto")
    assert result.returncode == 0, result.stderr
    assert "CUDA kernels: not built, nvcc was not found" in result.stdout
    assert '"built": false' in (tmp_path / "build_info.json").read_text()


def test_a_build_for_this_machine_alone_has_its_widest_instructions_and_no_cuda_without_a_gpu(
    tmp_path,
):
    ask = "import fusedops; print(fusedops.ops.registration.libraries.cpu_isa())"
    widest = output("env", "-u", "FUSEDOPS_CPU_ISA", sys.executable, "-c", ask)
    result = configure(tmp_path, "-DFUSEDOPS_NATIVE=1", PATH=without_nvidia_smi(tmp_path))
    assert result.returncode == 0, result.stderr
    info = json.loads((tmp_path / "build_info.json").read_text())
    assert info["cpu_isas"] == [widest.strip()]
    assert not info["cuda"]["built"] and "had no GPU" in info["cuda"]["reason"]


def without_nvidia_smi(tmp_path: Path) -> str:
    """PATH with a program of that name first that finds no GPU."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 9\n")
    program.chmod(0o755)
    return os.pathsep.join([str(program.parent), os.environ["PATH"]])


NO_NVCC = "-DCMAKE_CUDA_COMPILER="
CROSS = "-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64"


@pytest.mark.parametrize(
    "options, message",
    [
        ("-DFUSEDOPS_BUILD_CUDA=yes", "FUSEDOPS_BUILD_CUDA is 'yes', wanted auto, 1 or 0"),
        ("-DFUSEDOPS_NATIVE=maybe", "FUSEDOPS_BUILD_NATIVE is 'maybe', wanted 1 or 0"),
        (
            f"-DFUSEDOPS_NATIVE=1 {CROSS}",
            "FUSEDOPS_BUILD_NATIVE is 1, but the build is for aarch64, .*; wanted 0",
        ),
        ("-DFUSEDOPS_TORCH_DIR=/nowhere", "Install torch first"),
        ("-DFUSEDOPS_SANITIZE=memory", "FUSEDOPS_SANITIZE is 'memory', wanted address, thread or"),
        (
            f"{NO_NVCC} -DFUSEDOPS_BUILD_CUDA=1",
            "nvcc was not found. Install the CUDA toolkit.*FUSEDOPS_BUILD_CUDA=0",
        ),
        (
            f"{NO_NVCC} -DFUSEDOPS_BUILD_CUDA=1 {CROSS}",
            "but an nvcc whose toolkit has targets/sbsa-linux was not found",
        ),
        (NO_NVCC, "TORCH_CUDA_ARCH_LIST has 'nine', wanted versions such as 8.0"),
    ],
)
def test_a_wrong_setting_is_an_error_that_says_what_was_wanted(tmp_path, options, message):
    architectures = {"TORCH_CUDA_ARCH_LIST": "8.6 nine"} if options == NO_NVCC else {}
    result = configure(tmp_path, *options.split(), **architectures)
    assert result.returncode != 0
    assert re.search(message, " ".join(result.stderr.split()))


@pytest.mark.exhaustive
def test_a_killed_build_resumes_where_it_was(tmp_path):
    build = ["cmake", "--build", tmp_path, "-j1", "--target", "fusedops_cpu_launch"]
    assert configure(tmp_path, "-G", "Ninja", "-DFUSEDOPS_BUILD_CUDA=0").returncode == 0
    killed = subprocess.Popen(build, stdout=subprocess.DEVNULL, start_new_session=True)
    while not list(tmp_path.rglob("*.o")) and killed.poll() is None:
        time.sleep(0.01)
    # A compiler has a process group of its own, but the session of the build.
    subprocess.run(["pkill", "-KILL", "-s", str(killed.pid)], check=True)
    assert killed.wait() != 0, "the build was over before it could be killed"
    subprocess.run(build, check=True, capture_output=True)
    assert "no work to do" in output(*build)
    objects = list(tmp_path.rglob("*.o"))
    assert len(objects) == 9 and all("fusedops" in output("nm", "-C", path) for path in objects)


def test_building_without_torch_says_in_one_line_what_to_run():
    hide_torch = (
        "import importlib.util as u, runpy, sys; find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'torch' else find(name, *a)\n"
        "sys.argv = ['setup.py', 'build_ext']; runpy.run_path('setup.py', run_name='__main__')"
    )
    result = run_python("-c", hide_torch, cwd=ROOT)
    assert result.returncode != 0
    assert "pip install --no-build-isolation ." in result.stderr
