"""The package on the stand-in for the CUDA runtime, from Python."""

from __future__ import annotations

import _ctypes
import copy
import ctypes
import functools
import itertools
import re
import shutil
import uuid
from collections.abc import Callable
from ctypes import POINTER, Structure, c_bool, c_char_p, c_int, c_int64, c_size_t, c_uint, c_void_p
from dataclasses import dataclass
from pathlib import Path

from simt.emulator import build as emulator_build
from simt.emulator.library import Args, Emulator, EmulatorError, op_of

from . import build
from .build import toolchain

LAUNCH_FAILURE = 719


class Device(Structure):
    """What a device allows, as the stand-in has it."""

    _fields_ = [
        (name, c_int)
        for name in ("major", "minor", "shared_bytes", "cluster_blocks", "multiprocessors")
    ]


class Code(Structure):
    _fields_ = [(name, c_int) for name in ("arch", "registers", "static_shared_bytes", "threads")]
    _fields_ += [("parameters", c_int), ("parameter_bytes", c_int * 8)]


HOPPER, AMPERE, SMALL, PARTITION, WITHOUT_CLUSTERS = range(5)
#: An H100; an A100; one with the shared memory of an sm_86; parts of an H100 that run clusters of
#: eight blocks, and none.
DEVICES = [
    Device(9, 0, 227 << 10, 16, 132),
    Device(8, 0, 163 << 10, 0, 108),
    Device(8, 6, 99 << 10, 0, 84),
    Device(9, 0, 227 << 10, 8, 60),
    Device(9, 0, 227 << 10, 0, 16),
]


class CudaError(Exception):
    """A call has returned an error of CUDA."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


@dataclass(frozen=True)
class Launch:
    kernel: str  # softmax_forward_apply
    device: int
    blocks: int
    threads: int  # of a block
    dynamic_shared: int
    cluster: int  # blocks
    overlaps: bool  # the launch ahead


@dataclass(frozen=True)
class Kernel:
    name: str  # void fusedops::cuda::softmax_forward_apply<float, float, 4>(...)
    symbol: bytes
    offset: int  # in the emulator's library
    codes: ctypes.Array

    @property
    def signature(self) -> bytes:
        """The types of the parameters: "(fusedops::SoftmaxForward, long)"."""
        return self.name[self.name.rindex("(") :].encode()

    @property
    def short_name(self) -> str:
        return re.search(r"(\w+)(<.*>)?\([^()]*\)$", self.name)[1]


@functools.cache
def kernels() -> dict[bytes, Kernel]:
    """Every kernel of the objects, by its mangled name. The emulator has one of the same name, but
    mangled differently where there is no linkage."""
    codes = build.kernel_codes()
    offsets = symbols(emulator_build.c_interface_library())
    names = toolchain.run("c++filt", input="\n".join(codes)).splitlines()
    found = {}
    for symbol, name in zip(codes, names, strict=True):
        told = [Code(*rest, len(sizes), tuple(sizes)) for *rest, sizes in codes[symbol]]
        array = (Code * len(told))(*told)
        found[symbol.encode()] = Kernel(name, symbol.encode(), offsets[name], array)
    return found


def symbols(path: Path) -> dict[str, int]:
    """The offset of everything in a library, by its demangled name."""
    lines = toolchain.run("nm", "--demangle", "--defined-only", path).splitlines()
    return {name: int(offset, 16) for offset, _, name in (line.split(" ", 2) for line in lines)}


@functools.cache
def emulator_base() -> int:
    """Where the emulator's library lies in this process."""
    path = emulator_build.c_interface_library()
    address = ctypes.cast(ctypes.CDLL(str(path)).simt_launch_kernel, c_void_p).value
    return address - symbols(path)["simt_launch_kernel"]


class Cuda(Emulator):
    """The package's host code for CUDA, on the stand-in for the runtime.

    Each object of this class has a library of its own, which has run nothing yet. Arrays are those
    of the emulator.
    """

    def __init__(self, folder: Path, library: Path | None = None) -> None:
        super().__init__(emulator_build.c_interface_library())
        # A copy is another library, with variables of its own.
        path = build.library() if library is None else library
        self.path = Path(shutil.copy(path, folder / f"{uuid.uuid4()}.so"))
        self.cuda = ctypes.CDLL(str(self.path))
        self._declare()
        run = ctypes.cast(self.library.simt_launch_kernel, c_void_p)
        self.cuda.cudart_start((Device * len(DEVICES))(*DEVICES), len(DEVICES), run)
        self.describe_kernels()

    def close(self) -> None:
        """Unloads the library."""
        _ctypes.dlclose(self.cuda._handle)
        self.path.unlink()

    def _declare(self) -> None:
        cuda = self.cuda
        for name in ("workspace_bytes", "allocation_count", "launch_many"):
            getattr(cuda, f"cudart_{name}").restype = c_int64
        for name in ("cudart_refused_name", "cudaGetErrorString", "fusedops_last_error"):
            getattr(cuda, name).restype = c_char_p
        cuda.cudart_launch.argtypes = [c_int, c_void_p, c_void_p]
        cuda.cudart_launch_many.argtypes = [c_int, c_void_p, c_int64, c_int]
        cuda.cudart_describe.argtypes = [c_char_p, c_void_p, c_char_p, POINTER(Code), c_int]
        cuda.cudart_describe.restype = c_bool
        cuda.cudart_refuse.argtypes = [c_int64, c_int]
        cuda.cudart_execute.argtypes = [c_bool]
        cuda.cudart_launch_graph.argtypes = [c_void_p, c_void_p]
        cuda.cudaStreamSynchronize.argtypes = [c_void_p]
        cuda.cudaStreamBeginCapture.argtypes = [c_void_p, c_int]
        cuda.cudaStreamEndCapture.argtypes = [c_void_p, POINTER(c_void_p)]

    def describe_kernels(self, **changes: int) -> None:
        """Tells the stand-in of every kernel, with changes to what its machine code has."""
        for kernel in kernels().values():
            codes, address = copy.copy(kernel.codes), emulator_base() + kernel.offset
            for code, (field, value) in itertools.product(codes, changes.items()):
                setattr(code, field, value)
            told = (kernel.symbol, address, kernel.signature, codes, len(codes))
            assert self.cuda.cudart_describe(*told), f"nothing has registered {kernel.name}"
        assert self.cuda.cudart_kernel_count() == len(kernels()), "a kernel has no code"

    # --- the launches of the package, as Emulator has them ---------------------------------------

    def launch(self, args: Args, stream: int | None = None) -> None:
        """Launches, and runs what the stream has."""
        self.enqueue(args, stream)
        self.synchronize(stream)

    def enqueue(self, args: Args, stream: int | None = None) -> None:
        self.check(self.cuda.cudart_launch(op_of(args), ctypes.byref(args), stream))

    def failed_launches(self, args: Args, times: int, threads: int) -> int:
        """How many of so many launches the package returns an error for, in one of so many threads
        that begin at the same time."""
        return self.cuda.cudart_launch_many(op_of(args), ctypes.byref(args), times, threads)

    def workspace_bytes(self, args: Args) -> int:
        return self.cuda.cudart_workspace_bytes(op_of(args), ctypes.byref(args))

    def use_clusters(self, use: bool) -> None:
        """The device says whether it has them."""

    # --- the runtime -----------------------------------------------------------------------------

    def check(self, status: int) -> None:
        if status != 0:
            raise CudaError(status, self.cuda.cudaGetErrorString(status).decode())

    def use_device(self, device: int) -> None:
        self.check(self.cuda.cudaSetDevice(device))

    def stream(self) -> int:
        """A new stream of the current device."""
        made = c_void_p()
        self.check(self.cuda.cudaStreamCreate(ctypes.byref(made)))
        return made.value

    def synchronize(self, stream: int | None = None) -> None:
        try:
            self.check(self.cuda.cudaStreamSynchronize(stream))
        except CudaError as error:
            if error.status == LAUNCH_FAILURE:
                raise EmulatorError(self.library.simt_error().decode()) from None
            raise

    def capture(self, stream: int, body: Callable[[], None]) -> int:
        """The graph of what ``body`` puts into a stream."""
        graph = c_void_p()
        self.check(self.cuda.cudaStreamBeginCapture(stream, 0))
        try:
            body()
        finally:
            status = self.cuda.cudaStreamEndCapture(stream, ctypes.byref(graph))
        self.check(status)
        return graph.value

    def launch_graph(self, graph: int, stream: int) -> None:
        self.check(self.cuda.cudart_launch_graph(graph, stream))
        self.synchronize(stream)

    def last_error(self) -> int:
        return self.cuda.cudaGetLastError()

    # --- what tests ask of the stand-in ----------------------------------------------------------

    def refuse(self, call: int, error: int) -> None:
        """The ``call``-th call of the runtime from now on fails."""
        self.cuda.cudart_refuse(call, error)

    def refused_name(self) -> str | None:
        """The function that was refused."""
        name = self.cuda.cudart_refused_name()
        return name.decode() if name else None

    def execute(self, executes: bool) -> None:
        """Whether launches run, or are only checked."""
        self.cuda.cudart_execute(executes)

    def allocations(self) -> int:
        """Those that nothing has freed."""
        return self.cuda.cudart_allocation_count()

    def launches(self) -> list[Launch]:
        """The launches since the last time."""
        found = []

        @ctypes.CFUNCTYPE(None, c_char_p, c_int, c_uint, c_uint, c_size_t, c_uint, c_bool)
        def visit(symbol: bytes, *launch: int) -> None:
            found.append(Launch(kernels()[symbol].short_name, *launch))

        self.cuda.cudart_take_launches(visit)
        return found
