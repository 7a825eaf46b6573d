"""The emulator from Python: its library, arrays in its memory, launches. Needs numpy only."""

from __future__ import annotations

import ctypes
import re
from ctypes import Structure, c_char_p, c_int64, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np

from . import structs
from .build import ROOT
from .structs import Columns, NormStackBackward, RowBound, Rows, RowSpacing, RowValues, Slices

LAUNCHES = ROOT / "csrc/launches.def"

#: In the order of fusedops::DType. bfloat16 is kept as the upper half of a float32.
DTYPES = {
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
}
_CODES = {name: code for code, name in enumerate(DTYPES)}

#: All that arrays may hold.
STORED = DTYPES | {
    "bool": np.dtype(np.uint8),
    "bytes": np.dtype(np.uint8),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
}

#: The widest access of a kernel.
VECTOR_BYTES = 16


class EmulatorError(Exception):
    """A kernel broke a rule of CUDA, or a launch is not valid; the message says where."""


class Order(IntEnum):
    FIFO = 0
    LIFO = 1
    RANDOM = 2


class Config(structs.Config):
    def __init__(
        self,
        threads: Order = Order.FIFO,
        blocks: Order = Order.FIFO,
        seed: int = 1,
        poison: int = 0xFF,
        **others: int,
    ) -> None:
        defaults = {
            "late_stores": True,
            "cluster_limit": 16,
            "max_grid": 2**31 - 1,
            "max_shared_bytes": 227 << 10,
            "multiprocessors": 132,
        }
        super().__init__(threads, blocks, seed, poison, **defaults | others)


#: The order of threads and of blocks, and what shared memory holds before it is written.
SCHEDULES = {
    "fifo": Config(),
    "lifo": Config(Order.LIFO, Order.LIFO, poison=0x7F),
    "random": Config(Order.RANDOM, Order.RANDOM, seed=7, concurrent_blocks=True),
    "random_7f": Config(Order.RANDOM, Order.RANDOM, seed=8, poison=0x7F, concurrent_blocks=True),
}


#: Arguments of a launch, in the order in which the library numbers their types.
Args = Structure
_OPS = [
    getattr(structs, name) for name in re.findall(r"^LAUNCH\((\w+)\)", LAUNCHES.read_text(), re.M)
]


def op_of(args: Args) -> int:
    """The number of a launch in the library."""
    return _OPS.index(type(args))


@dataclass(frozen=True)
class Record:
    launches: int  # that ran
    threads: int  # of the largest block


class DeviceArray:
    """Rows in device memory, in an allocation of exactly their size.

    Every row begins at a multiple of ``alignment`` bytes, and with ``padded`` or a single row at no
    higher power of two. The places between rows hold NaN and must stay as they are.
    """

    def __init__(
        self, emulator: Emulator, shape: tuple[int, int], dtype: str, alignment: int, padded: bool
    ) -> None:
        rows, cols = shape
        self.dtype, self._library = dtype, emulator.library
        item = STORED[dtype].itemsize
        self.stride = _stride(cols, item, alignment) if padded else cols
        count = (rows - 1) * self.stride + cols
        # `alignment` bytes behind a multiple of 256, so that the address is aligned no further.
        self.address = self._library.simt_allocate(count * item, alignment)
        memory = (ctypes.c_ubyte * (count * item)).from_address(self.address)
        np.frombuffer(memory, np.uint8)[:] = 0xFF
        self._flat = np.frombuffer(memory, STORED[dtype])
        self.values = np.lib.stride_tricks.as_strided(self._flat, shape, (self.stride * item, item))

    def __del__(self) -> None:
        self._library.simt_free(self.address)

    @property
    def rows(self) -> Rows:
        return Rows(self.address, RowSpacing(self.stride), _CODES[self.dtype])

    def slices(self, dim_size: int) -> Slices:
        """The array as slices: `dim_size` of its rows for each outer index."""
        return Slices(self.address, self.stride * dim_size, self.stride, _CODES[self.dtype])

    def operand(self, kind: type[Structure], shape: tuple[int, ...]) -> Structure:
        """An operand of that kind and shape. The last dimension is this array's rows, or 1; a 1
        repeats a value."""
        strides, step = [], self.stride
        for size in reversed(shape[:-1]):
            strides.insert(0, step if size > 1 else 0)
            step *= size
        place = self.address, tuple(strides)
        if kind is RowValues:
            return RowValues(*place)
        if kind is RowBound:
            return RowBound(*place, self.dtype == "int64")
        return structs.Operand(
            *place, shape[-1] > 1, self.dtype == "bool", _CODES.get(self.dtype, 0)
        )

    @property
    def columns(self) -> Columns:
        return Columns(self.address, _CODES[self.dtype])

    def read(self) -> np.ndarray:
        """A copy of the values; what lies between the rows must be as it was."""
        between = np.ones(self._flat.size, bool)
        np.lib.stride_tricks.as_strided(
            between, self.values.shape, (self.stride, 1), writeable=True
        )[:] = False
        bits = self._flat.view(f"u{self._flat.itemsize}")[between]
        if (bits != np.iinfo(bits.dtype).max).any():
            raise EmulatorError(f"{np.count_nonzero(~bits)} elements written between rows")
        return self.values.copy()


def _stride(cols: int, item: int, alignment: int) -> int:
    """More than a row, at least a vector apart, and aligned to nothing beyond ``alignment``."""
    units = (cols * item + VECTOR_BYTES) // alignment + 1
    return (units | 1) * alignment // item


class Emulator:
    """One of the builds. All of a process's emulators of the same build share their records."""

    def __init__(self, path: Path) -> None:
        self.library = library = ctypes.CDLL(str(path))
        library.simt_allocate.argtypes = [c_size_t, c_size_t]
        library.simt_allocate.restype = c_void_p
        library.simt_free.argtypes = [c_void_p]
        library.simt_error.restype = c_char_p
        library.simt_workspace_bytes.restype = c_int64
        library.simt_launch_count.restype = c_uint64
        library.simt_use_clusters.argtypes = [ctypes.c_bool]
        library.simt_launch_lengths.restype = c_int64
        library.simt_launch_lengths.argtypes = [
            *[ctypes.c_int, c_void_p, c_int64, c_int64, ctypes.POINTER(c_int64), c_int64]
        ]

    def configure(self, config: Config) -> None:
        self.library.simt_configure(ctypes.byref(config))

    def use_clusters(self, use: bool) -> None:
        """Whether the device has them, for what is prepared and launched from now on."""
        self.library.simt_use_clusters(use)

    def array(
        self, shape: tuple[int, int], dtype: str, alignment: int, padded: bool = False
    ) -> DeviceArray:
        return DeviceArray(self, shape, dtype, alignment, padded)

    def launch(self, args: Args) -> None:
        """Calls the package's own launch(), which runs kernels on the emulator."""
        status = self.library.simt_launch(op_of(args), ctypes.byref(args))
        if status != 0:
            raise EmulatorError(f"status {status}: {self.library.simt_error().decode()}")

    def workspace_bytes(self, args: Args) -> int:
        return self.library.simt_workspace_bytes(op_of(args), ctypes.byref(args))

    def workspace(self, args: Args) -> DeviceArray | None:
        """Allocates the workspace that ``args`` need and sets it in them. Keep it as long as
        ``args``."""
        each = self.workspace_bytes(args)
        if each == 0:
            return None
        count = args.count if isinstance(args, NormStackBackward) else 1
        array = self.array((1, each * count), "bytes", VECTOR_BYTES)
        getattr(args, "each", args).workspace = array.address
        if isinstance(args, NormStackBackward):
            args.workspace_bytes = each
        return array

    def ends_of_launch_shapes(self, args: Args, step: int, last: int) -> list[int]:
        """The lengths among step, 2 * step, ... after which a row gets another kernel, or another
        shape of block."""
        found = (c_int64 * 64)()
        count = self._dry_launches(args, step, last, found)
        if count == len(found):
            raise EmulatorError(f"{type(args).__name__}: {count} launch shapes and more")
        return found[:count]

    def launch_every_length(self, args: Args, last: int) -> None:
        """Dry launches, for the records."""
        self._dry_launches(args, 1, last, (c_int64 * 0)())

    def _dry_launches(self, args: Args, step: int, last: int, found: ctypes.Array) -> int:
        self.configure(Config(dry=True))
        op, size = op_of(args), len(found)
        count = self.library.simt_launch_lengths(op, ctypes.byref(args), step, last, found, size)
        self.configure(Config())
        if count < 0:
            raise EmulatorError(f"{type(args).__name__}: a length up to {last} has no kernel")
        return count

    def kernels_of(self, args: Args) -> set[str]:
        """The kernels that launch(args) would run."""
        before = self.launch_count()
        self.configure(Config(dry=True))
        self.launch(args)
        self.configure(Config())
        return set(self.records(before))

    def cluster_of(self, args: Args) -> int:
        """The blocks of a cluster of the last kernel that launch(args) would run."""
        self.kernels_of(args)
        return self.library.simt_last_cluster()

    def shared_bytes_of(self, args: Args) -> int:
        """The dynamic shared memory of the last kernel that launch(args) would run, in bytes."""
        self.kernels_of(args)
        return self.library.simt_last_shared_bytes()

    def executed(self) -> set[str]:
        """The kernels that ran in this process."""
        return {kernel for kernel, record in self.records().items() if record.launches > 0}

    def launch_count(self) -> int:
        """The launches in this process, dry ones too."""
        return self.library.simt_launch_count()

    def records(self, after: int = 0) -> dict[str, Record]:
        """The records by kernel, as in ``softmax_forward_apply<float, float, 4>``, but for kernels
        that were not launched since ``launch_count()`` gave ``after``."""
        found = {}

        @ctypes.CFUNCTYPE(None, c_char_p, c_uint64, ctypes.c_uint)
        def visit(kernel: bytes, launches: int, threads: int) -> None:
            found[kernel_name(kernel.decode())] = Record(launches, threads)

        self.library.simt_records(c_uint64(after), visit)
        return found


def kernel_name(demangled: str) -> str:
    """``kernel<...>`` of ``void fusedops::cuda::kernel<...>(...)``."""
    return re.fullmatch(r"void fusedops::cuda::(\w+<.*>)\(.*\)", demangled)[1]
