"""Finds and loads the shared libraries, and reports how they were built and what they support.

``libfusedops.so`` (schemas, operators on the CPU) always exists. ``libfusedops_cuda.so`` exists if
the build found nvcc, and is loaded if torch is a CUDA build. Otherwise every op refuses CUDA
tensors with the reason and the fix. The kernels of each are in a library beside it, which the C
interface uses too.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib
import json
import struct
import sys
import time
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from fusedops._installation import (
    FIX_OF_HIDDEN,
    REBUILD,
    hidden_installation,
    hidden_message,
    version,
)

LIB_DIR = Path(__file__).resolve().parents[2] / "lib"
CPU_LIBRARY = LIB_DIR / "libfusedops.so"
CPU_KERNELS = LIB_DIR / "libfusedops_kernels.so"
CUDA_LIBRARY = LIB_DIR / "libfusedops_cuda.so"
CUDA_KERNELS = LIB_DIR / "libfusedops_kernels_cuda.so"
OP_CALL = LIB_DIR / "op_call.abi3.so"

#: The functions of the CPU library that Python calls, besides the operators.
_C_FUNCTIONS = (
    "fusedops_cpu_kernel",
    "fusedops_interpreter_exits",
    "fusedops_threads_under_way",
)

_TO_REBUILD = f"To rebuild, in a checkout of fusedops run: {REBUILD}"

#: The header of a 64-bit ELF file: magic number, machine, and the offset, size and number of the
#: section headers, which are at the end of the file.
_ELF = struct.Struct("<4s14xH20xQ10xHH2x")


def _check_file(path: Path) -> None:
    """Raises if a file is not a complete library for this machine. Loading a truncated one can
    crash the process."""
    if not path.exists():
        if installed := hidden_installation():
            fix = FIX_OF_HIDDEN.replace("start", "Start", 1)
            raise ImportError(f"fusedops: {hidden_message(installed)}. {fix}")
        raise ImportError(f"fusedops: {path} is missing, the package was not built. {_TO_REBUILD}")
    with open(path, "rb") as file, open(torch._C.__file__, "rb") as torchs:
        head, torchs_head = file.read(_ELF.size), torchs.read(_ELF.size)
    if len(head) < _ELF.size or not head.startswith(b"\x7fELF"):
        raise ImportError(f"fusedops: {path} is not a shared library. {_TO_REBUILD}")
    _, machine, sections, size, count = _ELF.unpack(head)
    if machine != _ELF.unpack(torchs_head)[1]:
        raise ImportError(
            f"fusedops: {path} is built for another processor architecture (ELF machine {machine}) "
            f"than this torch. {_TO_REBUILD}"
        )
    if path.stat().st_size < sections + size * count:
        raise ImportError(f"fusedops: {path} is cut off. {_TO_REBUILD}")


def _load(path: Path) -> None:
    _check_file(path)
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise ImportError(
            f"fusedops: {path.name} does not load into torch {torch.__version__}: {error}. "
            f"torch >= 2.10 is needed. {_TO_REBUILD}"
        ) from error
    _check_version(path)


def _check_version(path: Path) -> None:
    built = version_of(path)
    if built != version():
        raise ImportError(
            f"fusedops: {path} is of version {built}, but the Python files are of version "
            f"{version()}. {_TO_REBUILD}"
        )


def version_of(path: Path) -> str:
    """Returns the version that a library was built from, or "unknown" if it does not tell."""
    version = getattr(ctypes.CDLL(str(path)), "fusedops_version", None)
    if version is None:
        return "unknown"
    version.restype = ctypes.c_char_p
    text: bytes = version()
    return text.decode()


def load_op_call() -> ModuleType | None:
    """Returns the extension module ``op_call``. Returns None if the build had no Python headers, or
    if Python is free-threaded, which cannot load a module of the limited API."""
    if not OP_CALL.exists():
        return None
    _check_file(OP_CALL)
    try:
        module = importlib.import_module("fusedops.lib.op_call")
    except ModuleNotFoundError:
        return None
    _check_version(OP_CALL)
    return module


def _load_cpu_library() -> None:
    _load(CPU_KERNELS)  # first, because CPU_LIBRARY needs it and would load it unchecked
    _load(CPU_LIBRARY)
    library = ctypes.CDLL(str(CPU_LIBRARY))
    for name in _C_FUNCTIONS:
        if not hasattr(library, name):
            raise _older_library(name)


def cpu_kernel(op: str) -> int:
    """Returns the address of an operator's kernel on the CPU."""
    find = ctypes.CDLL(str(CPU_LIBRARY)).fusedops_cpu_kernel
    find.restype = ctypes.c_void_p
    address: int | None = find(op.encode())
    assert address is not None
    return address


def _older_library(name: str) -> ImportError:
    return ImportError(
        f"fusedops: {CPU_LIBRARY} is older than the Python files, it has no {name}. {_TO_REBUILD}"
    )


def _defined_ops() -> tuple[str, ...]:
    """Returns the operators of csrc/ops/operators.def, as the dispatcher knows them."""
    prefix = "fusedops::"
    names = filter(lambda name: name.startswith(prefix), torch._C._dispatch_get_all_op_names())
    ours = sorted(name.removeprefix(prefix) for name in names)
    # A name for which only kernels are registered has no schema: torch.ops has no attribute for it.
    return tuple(op for op in ours if hasattr(torch.ops.fusedops, op))


def argument_names(op: str) -> list[str]:
    return [argument.name for argument in getattr(torch.ops.fusedops, op).default._schema.arguments]


def written_arguments(op: str) -> list[str]:
    """Returns the names of the arguments that an op writes into."""
    arguments = getattr(torch.ops.fusedops, op).default._schema.arguments
    return [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]


def with_variant(op: str) -> list[str]:
    """Returns the names of an op and, if there is one, of its no-autograd variant."""
    return [op, f"_{op}"] if op in OPS_WITH_VARIANT else [op]


def check_defined(op: str) -> None:
    """Raises ImportError where the library does not define an operator that Python registers."""
    if op not in OPS:
        raise _older_library(op)


def _has_no_autograd_variant(op: str) -> bool:
    """Whether there is an operator ``_<op>`` with the same schema."""
    if f"_{op}" not in OPS:
        return False
    schema, schema_of_variant = (
        getattr(torch.ops.fusedops, name).default._schema for name in (op, f"_{op}")
    )
    return str(schema).partition("(")[2] == str(schema_of_variant).partition("(")[2]


def _load_cuda_library() -> str | None:
    """Loads the CUDA kernels; returns the reason if they cannot be loaded, else None."""
    if not CUDA_LIBRARY.exists():
        reason = _reason_for_no_cuda()
        return (
            f"this fusedops has no CUDA kernels ({reason}); to build them, install nvcc and run in "
            f"a checkout of fusedops: {REBUILD}"
        )
    if torch.version.cuda is None:
        return (
            f"fusedops has CUDA kernels, but torch {torch.__version__} is a CPU build; "
            "install a CUDA build of torch"
        )
    try:
        _load(CUDA_KERNELS)
        _load(CUDA_LIBRARY)
    except ImportError as error:
        warnings.warn(f"{error} CUDA tensors will be refused until then.", stacklevel=2)
        return str(error)
    return None


def _reason_for_no_cuda() -> str:
    try:
        reason: str = build_info()["cuda"]["reason"]
    except (RuntimeError, KeyError, TypeError):
        return "why is not known: its build_info.json is missing or damaged"
    return reason


@functools.cache
def build_info() -> dict[str, Any]:
    """Returns the contents of ``build_info.json``, in which CMake records what was built and how.

    Raises:
        RuntimeError: the file is missing or damaged.
    """
    path = LIB_DIR / "build_info.json"
    try:
        info: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RuntimeError(f"fusedops: {path} cannot be read: {error}. {_TO_REBUILD}") from error
    return info


def loaded_libraries() -> list[str]:
    """Returns the paths of the shared libraries in use."""
    paths = [CPU_KERNELS, CPU_LIBRARY]
    if _cuda_problem is None:
        paths += [CUDA_KERNELS, CUDA_LIBRARY]
    return [str(path) for path in paths]


def has_kernels(device_type: str) -> bool:
    """Whether this build runs tensors of ``device_type`` ("cpu", "cuda", ...)."""
    return device_type == "cpu" or (device_type == "cuda" and _cuda_problem is None)


def cuda_status() -> str:
    """Returns a sentence: that the CUDA kernels are loaded, or why they are not and what to do."""
    return _cuda_problem or "the CUDA kernels are loaded"


def cpu_isa() -> str:
    """Returns the instruction set that the CPU kernels use: avx512, avx2 or default; on ARM bf16 or
    default.

    Raises:
        ValueError: ``FUSEDOPS_CPU_ISA`` has another value, or excludes all kernels of this build.
    """
    library = ctypes.CDLL(str(CPU_KERNELS))
    library.fusedops_cpu_isa.restype = ctypes.c_char_p
    isa: bytes | None = library.fusedops_cpu_isa()
    if isa is None:
        raise ValueError(
            "FUSEDOPS_CPU_ISA names no instruction set of this processor and this build; unset it "
            f"for the best. This build has kernels for {', '.join(build_info()['cpu_isas'])}"
        )
    return isa.decode()


def function_name(op: str) -> str:
    """Returns the name of the function that calls the op: the op's own, without the prefix and the
    suffixes of variants that users do not name."""
    return op.removeprefix("_").removesuffix("_output").removesuffix("_out")


def _refuse_cuda(op: str) -> Any:
    def kernel(*args: Any) -> None:
        raise RuntimeError(f"{function_name(op)} was given a CUDA tensor, but {cuda_status()}")

    return kernel


def _why_not(argument: Any) -> str | None:
    """Returns why the kernels cannot take an argument, or None."""
    if isinstance(argument, (list, tuple)):
        return next(filter(None, map(_why_not, argument)), None)
    if not isinstance(argument, torch.Tensor):
        return None
    if argument.is_nested:
        return "is a nested tensor, wanted a plain one; make it with .to_padded_tensor(padding)"
    if argument.is_quantized:
        return (
            f"is quantized, {argument.dtype}, wanted a floating dtype; make it with .dequantize()"
        )
    if argument.layout != torch.strided:
        return f"has layout {argument.layout}, wanted torch.strided; make it with .to_dense()"
    if argument.device.type not in ("cpu", "cuda"):
        return f"is on {argument.device}, for which there are no kernels; move it with .cpu()"
    return None


def refuse(op: str) -> Any:
    """Returns the fallback kernel, which raises an error that says why no other is called: no
    argument is a tensor, or one is not a strided tensor on a device that kernels are built for."""
    names = argument_names(op)

    def kernel(*args: Any) -> None:
        for name, argument in zip(names, args, strict=False):
            problem = _why_not(argument)
            if problem is not None:
                raise RuntimeError(f"{function_name(op)}: {name} {problem}")
        what = "is empty, wanted at least one" if names[0] == "inputs" else "is None, wanted a"
        raise RuntimeError(f"{function_name(op)}: {names[0]} {what} tensor")

    return kernel


def _register_refusals() -> None:
    for op in OPS:
        LIBRARY.impl(op, refuse(op), "CompositeExplicitAutograd")
        if _cuda_problem is not None:
            LIBRARY.impl(op, _refuse_cuda(op), "CUDA")


def _address(function: Any) -> ctypes.c_void_p:
    return ctypes.cast(function, ctypes.c_void_p)


def _hold_threads_at_exit() -> None:
    """Makes daemon threads wait in their next op, or at the end of the current one, until the
    process ends. Without this, Python before 3.14 may terminate a thread that leaves an op, which
    aborts the process (csrc/cpu/threads/interpreter_exit.h). The function waits at most 0.2 s until
    no thread is inside an op.
    """
    library, python = ctypes.CDLL(str(CPU_LIBRARY)), ctypes.pythonapi
    is_finalizing = "Py_IsFinalizing" if sys.version_info >= (3, 13) else "_Py_IsFinalizing"
    library.fusedops_interpreter_exits(
        _address(getattr(python, is_finalizing)), _address(python.PyGILState_Check)
    )
    deadline = time.monotonic() + 0.2
    while library.fusedops_threads_under_way() > 0 and time.monotonic() < deadline:
        time.sleep(0.001)


_load_cpu_library()
#: OPS names all operators, PUBLIC_OPS the public ones, and OPS_WITH_VARIANT the public ones with a
#: no-autograd variant of the same schema.
OPS = _defined_ops()
PUBLIC_OPS = tuple(op for op in OPS if not op.startswith("_"))
OPS_WITH_VARIANT = tuple(op for op in PUBLIC_OPS if _has_no_autograd_variant(op))
if sys.version_info < (3, 14):
    atexit.register(_hold_threads_at_exit)
_cuda_problem = _load_cuda_library()
LIBRARY = torch.library.Library("fusedops", "IMPL")
_register_refusals()
