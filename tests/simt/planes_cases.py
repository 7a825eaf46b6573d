"""What softmax over the rows of planes is run on: as cases.py. Needs numpy only, so that it runs
under sanitizers.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from . import cases
from .cases import PAIRS, Arrays
from .emulator import (
    DTYPES,
    VECTOR_BYTES,
    DeviceArray,
    Emulator,
    SpatialSoftmaxBackward,
    SpatialSoftmaxForward,
)

OPS = ["spatial_softmax_forward", "spatial_softmax_backward"]
#: The last number of rows that dry launches look at; the last change of shape is at 128.
MAX_LENGTH = 400


@dataclass(frozen=True)
class PlanesCase:
    op: str
    dtype: str  # of input and its gradient
    other: str  # of output and its gradient
    planes: int
    rows: int
    lanes: int
    width: int  # elements of the vectors that all pointers and strides are aligned for
    padded: bool = False
    log: bool = False

    @property
    def of_rows(self) -> cases.Case:
        """The softmax of every lane as that of a row."""
        op = self.op.replace("_planes", "")
        rows = self.planes * self.lanes
        return cases.Case(op, self.dtype, self.other, rows, self.rows, 1, log=self.log)

    def as_rows(self, arrays: Arrays) -> Arrays:
        """The arrays as rows: those of every plane, one after the other."""
        shape = (self.planes, self.rows, self.lanes)
        lanes_last = {name: values.reshape(shape) for name, values in arrays.items()}
        return {
            name: np.ascontiguousarray(values.transpose(0, 2, 1)).reshape(-1, self.rows)
            for name, values in lanes_last.items()
        }

    def as_planes(self, arrays: Arrays) -> Arrays:
        shape = (self.planes, self.lanes, self.rows)
        lanes = {name: values.reshape(shape) for name, values in arrays.items()}
        return {
            name: np.ascontiguousarray(values.transpose(0, 2, 1)).reshape(-1, self.lanes)
            for name, values in lanes.items()
        }


def inputs(case: PlanesCase) -> Arrays:
    """The inputs of a case, the same each time."""
    return case.as_planes(cases.inputs(case.of_rows))


def output_dtypes(case: PlanesCase) -> dict[str, str]:
    return cases.output_dtypes(case.of_rows)


class Prepared:
    """A case in device memory: launch ``args``, then read the outputs."""

    def __init__(
        self, emulator: Emulator, case: PlanesCase, given: Arrays, misaligned: str = ""
    ) -> None:
        self._emulator, self._case, self._misaligned = emulator, case, misaligned
        dtypes = {name: case.dtype if name == "input" else case.other for name in given}
        self.arrays = {name: self._array(name, dtype) for name, dtype in dtypes.items()}
        for name, values in given.items():
            self.arrays[name].values[:] = values
        self._outputs = {name: self._array(name, of) for name, of in output_dtypes(case).items()}
        self.arrays |= self._outputs
        slices = {name: array.slices(case.rows) for name, array in self.arrays.items()}
        forward = case.op == "spatial_softmax_forward"
        args = SpatialSoftmaxForward if forward else SpatialSoftmaxBackward
        sizes = {"outer": case.planes, "dim_size": case.rows, "inner": case.lanes}
        self.args = args(**slices, **sizes, log=case.log)

    def _array(self, name: str, dtype: str) -> DeviceArray:
        case = self._case
        width = 1 if name == self._misaligned else case.width
        alignment = min(VECTOR_BYTES, width * DTYPES[dtype].itemsize)
        shape = (case.planes * case.rows, case.lanes)
        return self._emulator.array(shape, dtype, alignment, case.padded)

    def outputs(self) -> Arrays:
        return {name: array.read() for name, array in self._outputs.items()}


def bases() -> list[PlanesCase]:
    """A case for each op, pair of dtypes and width of vectors (16 bytes, one element)."""
    return [
        PlanesCase(op, dtype, other, planes=1, rows=1, lanes=3 * width, width=width)
        for op in OPS
        for dtype, other in PAIRS
        for width in (VECTOR_BYTES // DTYPES[dtype].itemsize, 1)
    ]


def boundary_cases(emulator: Emulator, base: PlanesCase) -> Iterator[PlanesCase]:
    """A single row, both sides of every change of the launch shape, and rows beyond the last of
    them; lanes that end within a strip, in one strip or in three. Logarithm, padding and planes are
    varied along the way."""
    args = Prepared(emulator, base, inputs(base)).args
    ends = emulator.ends_of_launch_shapes(args, 1, MAX_LENGTH)
    first = zlib.crc32(repr(base).encode())
    for i, rows in enumerate([1, *ends, *(end + 1 for end in ends), MAX_LENGTH + 3], first):
        lanes = base.width * (3 if i % 3 else 17 + 300 // rows)
        case = replace(base, rows=rows, lanes=lanes, planes=1 + i % 2, padded=i % 4 > 1)
        yield replace(case, log=i % 5 < 2)


def racing_candidates(emulator: Emulator) -> list[PlanesCase]:
    """First those with lanes that threads share: from eight rows on."""
    candidates = [case for base in bases() for case in boundary_cases(emulator, base)]
    return sorted(candidates, key=lambda case: (case.rows < 8, case.rows))
