"""What softmax is run on: every op with every pair of dtypes and every alignment, at the row
lengths where the launch code changes its mind. Needs numpy only, so that it runs under sanitizers.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..emulator.library import DTYPES, VECTOR_BYTES, Args, Emulator
from ..emulator.structs import SoftmaxBackward, SoftmaxForward
from .prepared import Arrays, Form, InDeviceMemory

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

    @property
    def is_forward(self) -> bool:
        return self.op == "softmax_forward"

    def form(self, name: str) -> Form:
        """What an array of the case is like."""
        dtype = self.other if "output" in name else self.dtype
        return Form((self.rows, self.cols), dtype, self.width, self.padded)

    def output_dtypes(self) -> dict[str, str]:
        """The dtype of each array that the case computes, by its name."""
        return {"output": self.other} if self.is_forward else {"grad_input": self.dtype}


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
    if case.is_forward:
        return {"input": encode(normal(shape) * 3, case.dtype)}
    power = np.exp(normal(shape) * 2)
    output = power / power.sum(-1, keepdims=True)
    return {
        "grad_output": encode(normal(shape), case.other),
        "output": encode(np.log(output) if case.log else output, case.other),
    }


def args_of(case: Case) -> Args:
    """The arguments of a launch but for its arrays."""
    args = SoftmaxForward if case.is_forward else SoftmaxBackward
    return args(rows=case.rows, cols=case.cols, log=case.log)


class Prepared(InDeviceMemory):
    def _args(self) -> Args:
        return args_of(self._case)


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


def boundary_lengths(emulator: Emulator, args: Args, width: int, last: int) -> list[int]:
    """The shortest row, and both sides of every change of kernel or of launch shape."""
    ends = emulator.ends_of_launch_shapes(args, width, last)
    return sorted({width, *ends, *(end + width for end in ends)})


def _lengths(emulator: Emulator, base: Case) -> list[int]:
    args = Prepared(emulator, base, inputs(base)).args
    return boundary_lengths(emulator, args, base.width, MAX_LENGTH)


def boundary_cases(emulator: Emulator, base: Case, elements: int = 1000) -> Iterator[Case]:
    """At each of these lengths as many rows as have that many elements together, at least five and
    at most 1000. Every second case is padded."""
    for i, cols in enumerate(_lengths(emulator, base)):
        case = replace(base, cols=cols, rows=min(max(5, elements // cols), 1000))
        yield replace(case, padded=i % 2 == 1, log=False)
        yield replace(case, padded=i % 2 == 0, log=True)


def cluster_cases(emulator: Emulator) -> Iterator[Case]:
    """The shortest rows that a cluster has to hold, for each of its kernels."""
    for base in bases():
        if base.dtype == "float64":
            continue
        held = replace(base, rows=3, clusters=True)
        if base.width == widths(base.dtype)[0]:
            yield replace(held, cols=_lengths(emulator, replace(held, rows=1))[-1])
        elif base.width == 1:
            yield replace(held, cols=NARROW_CLUSTER_COLS)


def racing_candidates(emulator: Emulator) -> list[Case]:
    """Cases of few rows. Those that several warps share come first, because they meet at a barrier:
    rows of more than 512 elements, in all kernels that can have several warps."""
    candidates = [case for base in bases() for case in boundary_cases(emulator, base)]
    return several_warps_first([replace(case, rows=3) for case in candidates])


def several_warps_first(cases: list[Any]) -> list[Any]:
    return sorted(cases, key=lambda case: (case.cols <= 512, case.cols))
