"""What LayerNorm and RMSNorm over a dimension that is not the last are run on: as in norm.py. Needs
numpy only, so that it runs under sanitizers.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..emulator.library import DTYPES, VECTOR_BYTES, DeviceArray, Emulator
from ..emulator.structs import Columns, Slices, SpatialNormBackward, SpatialNormForward
from . import norm as norm_cases
from .norm import EPS, KINDS
from .rows import Arrays

OPS = ["spatial_norm_forward", "spatial_norm_backward"]
#: The last dim_size that dry launches look at; the last change of shape is at 3072.
MAX_LENGTH = 3200
#: The arrays that have one value for each index of dim_size.
PARAMETERS = ("weight", "bias", "grad_weight", "grad_bias")


@dataclass(frozen=True)
class SpatialNormCase:
    op: str
    dtype: str
    outer: int
    dim_size: int
    inner: int
    width: int  # elements of the vectors that all pointers and strides are aligned for
    kind: str = "layer"
    parameters: str = ""  # the dtype of weight and bias, where it is not that of the input
    padded: bool = False
    weight: bool = True
    bias: bool = True
    wanted: tuple[bool, bool, bool] = (True, True, True)  # gradients of input, weight and bias

    @property
    def of_rows(self) -> norm_cases.NormCase:
        """The norm of the same values as rows."""
        return norm_cases.NormCase(
            self.op.removeprefix("spatial_"),
            self.dtype,
            self.outer * self.inner,
            self.dim_size,
            1,
            parameters=self.parameters,
            kind=self.kind,
            weight=self.weight,
            bias=self.bias,
            wanted=self.wanted,
        )

    def as_rows(self, arrays: Arrays) -> Arrays:
        """The arrays with dim_size last: a row for each outer and inner index."""
        return self._swapped(arrays, (self.outer, self.dim_size, self.inner))

    def as_slices(self, arrays: Arrays) -> Arrays:
        """What as_rows() undoes."""
        return self._swapped(arrays, (self.outer, self.inner, self.dim_size))

    @staticmethod
    def _swapped(arrays: Arrays, shape: tuple[int, int, int]) -> Arrays:
        def swapped(name: str, values: np.ndarray) -> np.ndarray:
            if name in (*PARAMETERS, "mean", "rstd"):
                return values
            return np.ascontiguousarray(values.reshape(shape).swapaxes(1, 2)).reshape(-1, shape[1])

        return {name: swapped(name, values) for name, values in arrays.items()}


def inputs(case: SpatialNormCase) -> Arrays:
    """The inputs of a case, the same each time."""
    return case.as_slices(norm_cases.inputs(case.of_rows))


def output_dtypes(case: SpatialNormCase) -> dict[str, str]:
    return norm_cases.output_dtypes(case.of_rows)


class Prepared:
    """A case in device memory: launch ``args``, then read the outputs."""

    def __init__(
        self, emulator: Emulator, case: SpatialNormCase, given: Arrays, misaligned: str = ""
    ) -> None:
        self._emulator, self._case, self._misaligned = emulator, case, misaligned
        self.arrays = {name: self._array(name) for name in given}
        for name, values in given.items():
            self.arrays[name].values[:] = values
        self._outputs = {name: self._array(name) for name in output_dtypes(case)}
        self.arrays |= self._outputs
        forward = case.op == OPS[0]
        args = SpatialNormForward if forward else SpatialNormBackward
        sizes = {"outer": case.outer, "dim_size": case.dim_size, "inner": case.inner}
        self.args = args(kind=KINDS.index(case.kind), **sizes)
        if forward:
            self.args.eps = EPS
        for name, array in self.arrays.items():
            setattr(self.args, name, self._argument(name, array))
        self._workspace = emulator.workspace(self.args)

    def _argument(self, name: str, array: DeviceArray) -> Slices | Columns | int:
        if name in PARAMETERS:
            return array.columns
        return array.address if name in ("mean", "rstd") else array.slices(self._case.dim_size)

    def _array(self, name: str) -> DeviceArray:
        case = self._case
        shape, dtype = (case.outer * case.dim_size, case.inner), case.dtype
        if name in PARAMETERS:
            shape, dtype = (1, case.dim_size), case.of_rows.parameter_dtype
        elif name in ("mean", "rstd"):
            shape, dtype = (case.outer * case.inner, 1), case.of_rows.statistics
        is_narrow = name == self._misaligned or dtype != case.dtype or name in PARAMETERS
        alignment = min(VECTOR_BYTES, (1 if is_narrow else case.width) * DTYPES[dtype].itemsize)
        padded = case.padded and shape[1] == case.inner and name not in ("mean", "rstd")
        return self._emulator.array(shape, dtype, alignment, padded)

    def outputs(self) -> Arrays:
        return {name: array.read() for name, array in self._outputs.items()}


def bases() -> list[SpatialNormCase]:
    """A case for each op, dtype and width of vectors (16 bytes, one element)."""
    return [
        SpatialNormCase(op, dtype, outer=1, dim_size=1, inner=3 * width, width=width)
        for op in OPS
        for dtype in DTYPES
        for width in (VECTOR_BYTES // DTYPES[dtype].itemsize, 1)
    ]


def boundary_cases(emulator: Emulator, base: SpatialNormCase) -> Iterator[SpatialNormCase]:
    """A dim_size of one, both sides of every change of the launch shape, and one beyond the last of
    them; inner columns that end within a segment, in one segment or, of a short dim_size, in many.
    Options vary along the way."""
    args = Prepared(emulator, replace(base, wanted=(True, False, False)), inputs(base)).args
    ends = emulator.ends_of_launch_shapes(args, 1, MAX_LENGTH)
    first = zlib.crc32(repr(base).encode())
    is_short = DTYPES[base.dtype].itemsize == 2
    for i, dim_size in enumerate([1, *ends, *(end + 1 for end in ends), MAX_LENGTH + 3], first):
        is_one_segment = i % 3 > 0 or dim_size > 400
        inner = base.width * (3 if is_one_segment else 17 + 300 // dim_size)
        yield replace(
            base,
            dim_size=dim_size,
            inner=inner,
            outer=1 + i % 2,
            padded=i % 4 > 1,
            kind=KINDS[i % 2],
            parameters="float32" if is_short and i % 5 in (1, 4) else "",
            weight=i % 7 != 3,
            bias=i % 5 != 3,
        )


def racing_candidates(emulator: Emulator) -> list[SpatialNormCase]:
    """First those with columns that threads share: from a dim_size of eight on."""
    candidates = [case for base in bases() for case in boundary_cases(emulator, base)]
    return sorted(candidates, key=lambda case: (case.dim_size < 8, case.dim_size))
