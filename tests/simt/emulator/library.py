"""The emulator from Python: its library, arrays in its device memory, launches. Needs numpy only.

The ctypes structures repeat csrc/include/fusedops/args.h and the emulator's own Config; their sizes
are compared with the library's.
"""

from __future__ import annotations

import ctypes
import re
from ctypes import (
    POINTER,
    Structure,
    c_bool,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_ubyte,
    c_uint,
    c_uint32,
    c_uint64,
    c_void_p,
)
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, get_args

import numpy as np

#: In the order of fusedops::DType. bfloat16 is kept as the upper half of a float32.
DTYPES = {
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
}
_CODES = {name: code for code, name in enumerate(DTYPES)}

#: All that arrays may hold.
_STORED = DTYPES | {
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


class Config(Structure):
    _fields_ = [
        ("threads", c_int),
        ("blocks", c_int),
        ("seed", c_uint),
        ("poison", c_ubyte),
        ("concurrent_blocks", c_bool),
        ("late_copies", c_bool),
        ("dry", c_bool),
        ("refuse_clusters", c_bool),
        ("max_grid", c_int64),
        ("max_shared_bytes", c_int64),
    ]

    def __init__(
        self,
        threads: Order = Order.FIFO,
        blocks: Order = Order.FIFO,
        seed: int = 1,
        poison: int = 0xFF,
        concurrent_blocks: bool = False,
        dry: bool = False,
        refuse_clusters: bool = False,
        max_grid: int = 2**31 - 1,
        max_shared_bytes: int = 227 << 10,
    ) -> None:
        late_copies = True
        super().__init__(
            *(threads, blocks, seed, poison, concurrent_blocks),
            *(late_copies, dry, refuse_clusters, max_grid, max_shared_bytes),
        )


#: The order of threads and of blocks, and what shared memory holds before it is written.
SCHEDULES = {
    "fifo": Config(),
    "lifo": Config(Order.LIFO, Order.LIFO, poison=0x7F),
    "random": Config(Order.RANDOM, Order.RANDOM, seed=7, concurrent_blocks=True),
    "random_7f": Config(Order.RANDOM, Order.RANDOM, seed=8, poison=0x7F, concurrent_blocks=True),
}


class Rows(Structure):
    _fields_ = [
        *[("data", c_void_p), ("stride", c_int64), ("run_gap", c_int64)],
        *[("multiplier", c_uint32), ("shift", c_uint32), ("dtype", c_int32)],
    ]


class Columns(Structure):
    _fields_ = [("data", c_void_p), ("dtype", c_int32)]


class SoftmaxForward(Structure):
    _fields_ = [
        *[("input", Rows), ("output", Rows), ("workspace", c_void_p)],
        *[("rows", c_int64), ("cols", c_int64), ("log", c_bool)],
    ]


class SoftmaxBackward(Structure):
    _fields_ = [
        *[("grad_output", Rows), ("output", Rows), ("grad_input", Rows), ("workspace", c_void_p)],
        *[("rows", c_int64), ("cols", c_int64), ("log", c_bool)],
    ]


class SoftmaxStatistics(Structure):
    _fields_ = [
        *[("input", Rows), ("max", c_void_p), ("sum", c_void_p), ("workspace", c_void_p)],
        *[("rows", c_int64), ("cols", c_int64)],
    ]


class SoftmaxApply(Structure):
    _fields_ = [
        *[("input", Rows), ("output", Rows), ("max", c_void_p), ("sum", c_void_p)],
        *[("rows", c_int64), ("cols", c_int64)],
    ]


class Slices(Structure):
    _fields_ = [
        *[
            ("data", c_void_p),
            ("outer_stride", c_int64),
            ("dim_stride", c_int64),
            ("dtype", c_int32),
        ]
    ]


class SpatialSoftmaxForward(Structure):
    _fields_ = [
        *[("input", Slices), ("output", Slices)],
        *[("outer", c_int64), ("dim_size", c_int64), ("inner", c_int64), ("log", c_bool)],
    ]


class SpatialSoftmaxBackward(Structure):
    _fields_ = [
        *[("grad_output", Slices), ("output", Slices), ("grad_input", Slices)],
        *[("outer", c_int64), ("dim_size", c_int64), ("inner", c_int64), ("log", c_bool)],
    ]


_RowDims = c_int64 * 4


class RowDims(Structure):
    _fields_ = [("count", c_int32), ("sizes", _RowDims)]

    def __init__(self, *sizes: int) -> None:
        super().__init__(len(sizes), _RowDims(*sizes))


class Operand(Structure):
    _fields_ = [
        *[("data", c_void_p), ("strides", _RowDims)],
        *[("col_stride", c_int32), ("is_bool", c_bool), ("dtype", c_int32)],
    ]


class Causal(Structure):
    _fields_ = [
        *[("on", c_bool), ("queries", c_int64), ("diagonal", c_int64)],
        *[("has_lower_diagonal", c_bool), ("lower_diagonal", c_int64)],
    ]


class RowBound(Structure):
    _fields_ = [("data", c_void_p), ("strides", _RowDims), ("is_int64", c_bool)]


class RowValues(Structure):
    _fields_ = [("data", c_void_p), ("strides", _RowDims)]


class Scores(Structure):
    _fields_ = [
        *[("dims", RowDims), ("bias", Operand), ("mask", Operand), ("causal", Causal)],
        *[("scale", c_double), ("mask_value", c_double)],
        *[("start", RowBound), ("end", RowBound), ("sinks", RowValues)],
        ("softcap", c_double),
    ]


class Dropout(Structure):
    _fields_ = [("seed", c_void_p), ("threshold", c_uint), ("scale", c_double)]


class MaskedSoftmaxForward(Structure):
    _fields_ = [
        *[("input", Rows), ("output", Rows), ("probabilities", Rows)],
        *[("scores", Scores), ("dropout", Dropout)],
        *[("rows", c_int64), ("cols", c_int64), ("zero_masked_rows", c_bool)],
        ("sink_probabilities", c_void_p),
    ]


class MaskedSoftmaxBackward(Structure):
    _fields_ = [
        *[("grad_output", Rows), ("probabilities", Rows), ("grad_input", Rows)],
        *[("scores", Scores), ("dropout", Dropout), ("rows", c_int64), ("cols", c_int64)],
        *[("sink_probabilities", c_void_p), ("grad_sinks", c_void_p)],
    ]


class NormForward(Structure):
    _fields_ = [
        *[("kind", c_int32), ("input", Rows), ("residual", Rows), ("output", Rows), ("sum", Rows)],
        *[("weight", Columns), ("bias", Columns), ("mean", c_void_p), ("rstd", c_void_p)],
        *[("dropout", Dropout), ("workspace", c_void_p), ("rows", c_int64), ("cols", c_int64)],
        *[("eps", c_double), ("weight_offset", c_double), ("rounds_normalized", c_bool)],
    ]


class NormBackward(Structure):
    _fields_ = [
        *[("kind", c_int32), ("grad_output", Rows), ("grad_sum", Rows), ("input", Rows)],
        *[("mean", c_void_p), ("rstd", c_void_p), ("weight", Columns)],
        *[("grad_input", Rows), ("grad_branch", Rows)],
        *[("grad_weight", Columns), ("grad_bias", Columns), ("dropout", Dropout)],
        *[("workspace", c_void_p), ("rows", c_int64), ("cols", c_int64)],
        *[("eps", c_double), ("weight_offset", c_double)],
    ]


class SpatialNormForward(Structure):
    _fields_ = [
        *[("kind", c_int32), ("input", Slices), ("output", Slices)],
        *[("weight", Columns), ("bias", Columns), ("mean", c_void_p), ("rstd", c_void_p)],
        *[("outer", c_int64), ("dim_size", c_int64), ("inner", c_int64), ("eps", c_double)],
    ]


class SpatialNormBackward(Structure):
    _fields_ = [
        *[("kind", c_int32), ("grad_output", Slices), ("input", Slices)],
        *[("mean", c_void_p), ("rstd", c_void_p), ("weight", Columns), ("grad_input", Slices)],
        *[("grad_weight", Columns), ("grad_bias", Columns), ("workspace", c_void_p)],
        *[("outer", c_int64), ("dim_size", c_int64), ("inner", c_int64)],
    ]


MAX_STACK = 32
_Pointers = c_void_p * MAX_STACK


class SoftmaxStack(Structure):
    _fields_ = [
        *[("each", SoftmaxForward), ("inputs", Rows * MAX_STACK)],
        *[("slot", c_int64), ("count", c_int32)],
    ]


class NormStack(Structure):
    _fields_ = [
        *[("each", NormForward), ("inputs", Rows * MAX_STACK)],
        *[("weights", _Pointers), ("biases", _Pointers), ("slot", c_int64), ("count", c_int32)],
    ]


class NormStackBackward(Structure):
    _fields_ = [
        *[("each", NormBackward), ("inputs", Rows * MAX_STACK), ("weights", _Pointers)],
        *[("slot", c_int64), ("workspace_bytes", c_int64), ("count", c_int32)],
    ]


Args = (
    SoftmaxForward
    | SoftmaxBackward
    | SoftmaxStatistics
    | SoftmaxApply
    | SpatialSoftmaxForward
    | SpatialSoftmaxBackward
    | MaskedSoftmaxForward
    | MaskedSoftmaxBackward
    | NormForward
    | NormBackward
    | SpatialNormForward
    | SpatialNormBackward
    | SoftmaxStack
    | NormStack
    | NormStackBackward
)
#: In the order of csrc/include/fusedops/launches.def.
_OPS = list(get_args(Args))


@dataclass(frozen=True)
class Record:
    launches: int  # that ran
    dry_launches: int
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
        item = _STORED[dtype].itemsize
        self.stride = _stride(cols, item, alignment) if padded else cols
        count = (rows - 1) * self.stride + cols
        # `alignment` bytes behind a multiple of 256, so that the address is aligned no further.
        self.address = self._library.simt_allocate(count * item, alignment)
        memory = (c_ubyte * (count * item)).from_address(self.address)
        np.frombuffer(memory, np.uint8)[:] = 0xFF
        self._flat = np.frombuffer(memory, _STORED[dtype])
        self.values = np.lib.stride_tricks.as_strided(self._flat, shape, (self.stride * item, item))

    def __del__(self) -> None:
        self._library.simt_free(self.address)

    @property
    def rows(self) -> Rows:
        return Rows(self.address, self.stride, 0, 0, 0, _CODES[self.dtype])

    def slices(self, dim_size: int) -> Slices:
        """The array as slices: `dim_size` of its rows for each outer index."""
        return Slices(self.address, self.stride * dim_size, self.stride, _CODES[self.dtype])

    def operand(self, shape: tuple[int, ...]) -> Operand:
        """An operand of that shape. The last dimension is this array's rows; a 1 repeats it."""
        is_bool = self.dtype == "bool"
        code = 0 if is_bool else _CODES[self.dtype]
        return Operand(self.address, self._strides(shape), shape[-1] > 1, is_bool, code)

    def bound(self, shape: tuple[int, ...]) -> RowBound:
        """An operand of that shape, whose last dimension is 1, of integers."""
        return RowBound(self.address, self._strides(shape), self.dtype == "int64")

    def row_values(self, shape: tuple[int, ...]) -> RowValues:
        """An operand of that shape, whose last dimension is 1, of floats."""
        return RowValues(self.address, self._strides(shape))

    def _strides(self, shape: tuple[int, ...]) -> Any:
        strides, step = [], self.stride
        for size in reversed(shape[:-1]):
            strides.insert(0, step if size > 1 else 0)
            step *= size
        return _RowDims(*strides)

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
        library.simt_use_clusters.argtypes = [c_bool]
        library.simt_launch_lengths.restype = c_int64
        library.simt_launch_lengths.argtypes = [
            *[c_int, c_void_p, c_int64, c_int64, POINTER(c_int64), c_int64]
        ]
        assert library.simt_size_of_config() == ctypes.sizeof(Config)
        for op, args in enumerate(_OPS):
            assert library.simt_size_of_args(op) == ctypes.sizeof(args), args.__name__

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
        status = self.library.simt_launch(_OPS.index(type(args)), ctypes.byref(args))
        if status != 0:
            raise EmulatorError(f"status {status}: {self.library.simt_error().decode()}")

    def workspace_bytes(self, args: Args) -> int:
        return self.library.simt_workspace_bytes(_OPS.index(type(args)), ctypes.byref(args))

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
        op, size = _OPS.index(type(args)), len(found)
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

        @ctypes.CFUNCTYPE(None, c_char_p, c_uint64, c_uint64, c_uint)
        def visit(kernel: bytes, launches: int, dry_launches: int, threads: int) -> None:
            found[kernel_name(kernel.decode())] = Record(launches, dry_launches, threads)

        self.library.simt_records(c_uint64(after), visit)
        return found


def kernel_name(demangled: str) -> str:
    """``kernel<...>`` of ``void fusedops::cuda::kernel<...>(...)``."""
    return re.fullmatch(r"void fusedops::cuda::(\w+<.*>)\(.*\)", demangled)[1]
