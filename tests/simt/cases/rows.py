"""What softmax is run on: every op with every pair of dtypes and every alignment, at the row
lengths where the launch code changes its mind. Needs numpy only, so that it runs under sanitizers.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..emulator.library import DTYPES, VECTOR_BYTES, Args, DeviceArray, Emulator
from ..emulator.structs import SoftmaxBackward, SoftmaxForward

OPS = ["softmax_forward", "softmax_backward"]

#: The dtypes of input and output.
PAIRS = [
    *((dtype, dtype) for dtype in DTYPES),
    ("float16", "float32"),
    ("bfloat16", "float32"),
]

#: Lengths are looked at as far as this; every kernel's last change of shape is at 32768.
MAX_LENGTH = 70_000
#: The shortest row of single elements that a cluster holds.
NARROW_CLUSTER_COLS = 8193
#: The kernel that finishes the column sums of a norm's gradients has 1024 threads for 32 columns,
#: and costs more time than all others together: few cases with longer rows want column sums.
FEW_COLS = 1100


@dataclass(frozen=True)
class Case:
    op: str
    dtype: str
    other: str
    rows: int
    cols: int
    width: int  # elements of the vectors that all pointers and strides are aligned for
    padded: bool = False  # whether there are gaps between rows
    log: bool = False
    clusters: bool = False  # whether the device has them


Arrays = dict[str, np.ndarray]


def encode(values: np.ndarray, dtype: str) -> np.ndarray:
    """Rounded to nearest, as DTYPES stores it."""
    if dtype != "bfloat16":
        return values.astype(DTYPES[dtype])
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def decode(stored: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float64)


def inputs(case: Case) -> Arrays:
    """The inputs of a case, the same each time: rows as the kernel gets them."""
    shape = (case.rows, case.cols)
    random = np.random.default_rng(zlib.crc32(repr((case.op, shape)).encode()))
    normal = random.standard_normal
    if case.op == "softmax_forward":
        return {"input": encode(normal(shape) * 3, case.dtype)}
    power = np.exp(normal(shape) * 2)
    output = power / power.sum(-1, keepdims=True)
    return {
        "grad_output": encode(normal(shape), case.other),
        "output": encode(np.log(output) if case.log else output, case.other),
    }


def output_dtypes(case: Case) -> dict[str, str]:
    """The dtype of each array that the case computes, by its name."""
    if case.op == "softmax_forward":
        return {"output": case.other}
    return {"grad_input": case.dtype}


class Prepared:
    """A case in device memory: launch ``args``, then read the outputs."""

    def __init__(
        self, emulator: Emulator, case: Case, given: Arrays, misaligned: str | None = None
    ) -> None:
        self._emulator, self._case, self._misaligned = emulator, case, misaligned
        emulator.use_clusters(case.clusters)
        self._inputs = {name: self._array(name, values.shape) for name, values in given.items()}
        for name, array in self._inputs.items():
            array.values[:] = given[name]
        shape = (case.rows, case.cols)
        self._outputs = {name: self._array(name, shape) for name in output_dtypes(case)}
        self.arrays = self._inputs | self._outputs
        self.args = self._args()
        self._workspace = emulator.workspace(self.args)

    def _array(self, name: str, shape: tuple[int, int]) -> DeviceArray:
        dtype = self._case.other if "output" in name else self._case.dtype
        width = 1 if name == self._misaligned else self._case.width
        alignment = min(VECTOR_BYTES, width * DTYPES[dtype].itemsize)
        return self._emulator.array(shape, dtype, alignment, self._case.padded)

    def _args(self) -> Args:
        case, rows = self._case, {name: array.rows for name, array in self.arrays.items()}
        size = {"rows": case.rows, "cols": case.cols}
        if case.op == "softmax_forward":
            return SoftmaxForward(rows["input"], rows["output"], log=case.log, **size)
        return SoftmaxBackward(**rows, log=case.log, **size)

    def outputs(self) -> Arrays:
        return {name: array.read() for name, array in self._outputs.items()}


def run(emulator: Emulator, case: Case, given: Arrays | None = None) -> Arrays:
    """The outputs of a case, on its own inputs or on given ones."""
    prepared = Prepared(emulator, case, inputs(case) if given is None else given)
    emulator.launch(prepared.args)
    return prepared.outputs()


def widths(dtype: str) -> list[int]:
    """The widths of vectors in elements: those of 16 bytes, of 4, and one element."""
    item = DTYPES[dtype].itemsize
    return sorted({VECTOR_BYTES // item, max(1, 4 // item), 1}, reverse=True)


def bases() -> list[Case]:
    """A case for each op, pair of dtypes and width of vectors, of one vector."""
    return [
        Case(op, dtype, other, rows=1, cols=width, width=width)
        for op in OPS
        for dtype, other in PAIRS
        for width in widths(dtype)
    ]


def group_of(base: Case) -> str:
    return f"{base.op}-{base.dtype}-{base.other}"


def boundary_lengths(emulator: Emulator, base: Case) -> list[int]:
    """The shortest row, and both sides of every change of kernel or of launch shape."""
    args = Prepared(emulator, base, inputs(base)).args
    ends = emulator.ends_of_launch_shapes(args, base.width, MAX_LENGTH)
    return sorted({base.width, *ends, *(end + base.width for end in ends)})


def boundary_cases(emulator: Emulator, base: Case, elements: int = 1000) -> Iterator[Case]:
    """At each of these lengths as many rows as have that many elements together, at least five and
    at most 1000. Every second case is padded."""
    for i, cols in enumerate(boundary_lengths(emulator, base)):
        case = replace(base, cols=cols, rows=min(max(5, elements // cols), 1000))
        yield replace(case, padded=i % 2 == 1, log=False)
        yield replace(case, padded=i % 2 == 0, log=True)


def all_boundary_cases(emulator: Emulator) -> list[Case]:
    return [case for base in bases() for case in boundary_cases(emulator, base)]


def cluster_cases(emulator: Emulator) -> Iterator[Case]:
    """The shortest rows that a cluster has to hold, for each of its kernels."""
    for base in bases():
        if base.dtype == "float64":
            continue
        held = replace(base, rows=3, clusters=True)
        if base.width == widths(base.dtype)[0]:
            yield replace(held, cols=boundary_lengths(emulator, replace(held, rows=1))[-1])
        elif base.width == 1:
            yield replace(held, cols=NARROW_CLUSTER_COLS)


def racing_candidates(emulator: Emulator) -> list[Case]:
    """Cases of few rows. Those that several warps share come first, because they meet at a barrier:
    rows of more than 512 elements, in all kernels that can have several warps."""
    candidates = [replace(case, rows=3) for case in all_boundary_cases(emulator)]
    return sorted(candidates, key=lambda case: (case.cols <= 512, case.cols))
