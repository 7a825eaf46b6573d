"""What a spatial softmax is run on: as in rows.py. Needs numpy only, so that it runs under
sanitizers.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..emulator.library import DTYPES, VECTOR_BYTES, DeviceArray, Emulator
from ..emulator.structs import SpatialSoftmaxBackward, SpatialSoftmaxForward
from . import rows as row_cases
from .rows import PAIRS, Arrays

OPS = ["spatial_softmax_forward", "spatial_softmax_backward"]
#: The last dim_size that dry launches look at; the last change of shape is at 3072.
MAX_LENGTH = 3200
#: A longer dim_size has few inner columns in boundary_cases().
MANY_COLUMNS = 400


@dataclass(frozen=True)
class SpatialCase:
    op: str
    dtype: str  # of input and its gradient
    other: str  # of output and its gradient
    outer: int
    dim_size: int
    inner: int
    width: int  # elements of the vectors that all pointers and strides are aligned for
    padded: bool = False
    log: bool = False

    @property
    def of_rows(self) -> row_cases.Case:
        """The softmax of the same values as rows."""
        op = self.op.removeprefix("spatial_")
        rows = self.outer * self.inner
        return row_cases.Case(op, self.dtype, self.other, rows, self.dim_size, 1, log=self.log)

    def as_rows(self, arrays: Arrays) -> Arrays:
        """The arrays with dim_size last: a row for each outer and inner index."""
        return _swapped(arrays, (self.outer, self.dim_size, self.inner))

    def as_slices(self, arrays: Arrays) -> Arrays:
        """What as_rows() undoes."""
        return _swapped(arrays, (self.outer, self.inner, self.dim_size))


def _swapped(arrays: Arrays, shape: tuple[int, int, int]) -> Arrays:
    """Arrays of that shape with the last two dimensions exchanged, and the first two made one."""
    swapped = {name: values.reshape(shape).swapaxes(1, 2) for name, values in arrays.items()}
    return {
        name: np.ascontiguousarray(values).reshape(-1, shape[1]) for name, values in swapped.items()
    }


def inputs(case: SpatialCase) -> Arrays:
    """The inputs of a case, the same each time."""
    return case.as_slices(row_cases.inputs(case.of_rows))


def output_dtypes(case: SpatialCase) -> dict[str, str]:
    return row_cases.output_dtypes(case.of_rows)


class Prepared:
    """A case in device memory: launch ``args``, then read the outputs."""

    def __init__(
        self, emulator: Emulator, case: SpatialCase, given: Arrays, misaligned: str = ""
    ) -> None:
        self._emulator, self._case, self._misaligned = emulator, case, misaligned
        dtypes = {name: case.dtype if name == "input" else case.other for name in given}
        self.arrays = {name: self._array(name, dtype) for name, dtype in dtypes.items()}
        for name, values in given.items():
            self.arrays[name].values[:] = values
        self._outputs = {name: self._array(name, of) for name, of in output_dtypes(case).items()}
        self.arrays |= self._outputs
        slices = {name: array.slices(case.dim_size) for name, array in self.arrays.items()}
        forward = case.op == "spatial_softmax_forward"
        args = SpatialSoftmaxForward if forward else SpatialSoftmaxBackward
        sizes = {"outer": case.outer, "dim_size": case.dim_size, "inner": case.inner}
        self.args = args(**slices, **sizes, log=case.log)

    def _array(self, name: str, dtype: str) -> DeviceArray:
        case = self._case
        width = 1 if name == self._misaligned else case.width
        alignment = min(VECTOR_BYTES, width * DTYPES[dtype].itemsize)
        shape = (case.outer * case.dim_size, case.inner)
        return self._emulator.array(shape, dtype, alignment, case.padded)

    def outputs(self) -> Arrays:
        return {name: array.read() for name, array in self._outputs.items()}


def bases() -> list[SpatialCase]:
    """A case for each op, pair of dtypes and width of vectors (16 bytes, one element)."""
    return [
        SpatialCase(op, dtype, other, outer=1, dim_size=1, inner=3 * width, width=width)
        for op in OPS
        for dtype, other in PAIRS
        for width in (VECTOR_BYTES // DTYPES[dtype].itemsize, 1)
    ]


def boundary_cases(emulator: Emulator, base: SpatialCase) -> Iterator[SpatialCase]:
    """A dim_size of one, both sides of every change of the launch shape, and one beyond the last of
    them; inner columns that end within a segment, in one segment or in three where they are few
    elements. Logarithm, padding and outer are varied along the way."""
    args = Prepared(emulator, base, inputs(base)).args
    ends = emulator.ends_of_launch_shapes(args, 1, MAX_LENGTH)
    first = zlib.crc32(repr(base).encode())
    for i, dim_size in enumerate([1, *ends, *(end + 1 for end in ends), MAX_LENGTH + 3], first):
        is_one_segment = i % 3 > 0 or dim_size > MANY_COLUMNS
        inner = base.width * (3 if is_one_segment else 17 + 300 // dim_size)
        case = replace(base, dim_size=dim_size, inner=inner, outer=1 + i % 2, padded=i % 4 > 1)
        yield replace(case, log=i % 5 < 2)


def racing_candidates(emulator: Emulator) -> list[SpatialCase]:
    """First those with columns that threads share: from a dim_size of eight on."""
    candidates = [case for base in bases() for case in boundary_cases(emulator, base)]
    return sorted(candidates, key=lambda case: (case.dim_size < 8, case.dim_size))
