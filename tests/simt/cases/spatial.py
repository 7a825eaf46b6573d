"""What a softmax and the norms over a dimension that is not the last are run on: as in rows.py and
norm.py. Needs numpy only, so that it runs under sanitizers.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..emulator.library import DTYPES, VECTOR_BYTES, Args, Emulator
from ..emulator.structs import (
    SpatialNormBackward,
    SpatialNormForward,
    SpatialSoftmaxBackward,
    SpatialSoftmaxForward,
)
from . import norm as norm_cases
from . import rows as row_cases
from .norm import EPS, KINDS, PARAMETERS, STATISTICS
from .prepared import Arrays, Form, InDeviceMemory
from .rows import PAIRS

SOFTMAXES = ["spatial_softmax_forward", "spatial_softmax_backward"]
NORMS = ["spatial_norm_forward", "spatial_norm_backward"]
OPS = [*SOFTMAXES, *NORMS]
_ARGS = dict(
    zip(
        OPS,
        [SpatialSoftmaxForward, SpatialSoftmaxBackward, SpatialNormForward, SpatialNormBackward],
        strict=True,
    )
)
#: The last dim_size that dry launches look at; the last change of shape is at 3072.
MAX_LENGTH = 3200
#: A longer dim_size has few inner columns in boundary_cases().
MANY_COLUMNS = 400


@dataclass(frozen=True)
class SpatialCase:
    op: str
    dtype: str  # of input and its gradient
    other: str  # of a softmax's output and its gradient; of a norm's weight and bias
    outer: int
    dim_size: int
    inner: int
    width: int  # elements of the vectors that all pointers and strides are aligned for
    padded: bool = False
    log: bool = False
    kind: str = "layer"
    weight: bool = True
    bias: bool = True
    wanted: tuple[bool, bool, bool] = (True, True, True)  # gradients of input, weight and bias

    @property
    def is_norm(self) -> bool:
        return self.op in NORMS

    @property
    def of_rows(self) -> row_cases.Case | norm_cases.NormCase:
        """The softmax or the norm of the same values as rows."""
        op, rows = self.op.removeprefix("spatial_"), self.outer * self.inner
        if not self.is_norm:
            return row_cases.Case(op, self.dtype, self.other, rows, self.dim_size, 1, log=self.log)
        return norm_cases.NormCase(
            *(op, self.dtype, rows, self.dim_size, 1),
            parameters=self.other,
            kind=self.kind,
            weight=self.weight,
            bias=self.bias,
            wanted=self.wanted,
        )

    def output_dtypes(self) -> dict[str, str]:
        return self.of_rows.output_dtypes()

    def form(self, name: str) -> Form:
        if name in PARAMETERS:
            return Form((1, self.dim_size), self.other)
        if name in STATISTICS:
            return Form((self.outer * self.inner, 1), self.of_rows.statistics)
        dtype = self.other if "output" in name and not self.is_norm else self.dtype
        return Form((self.outer * self.dim_size, self.inner), dtype, self.width, self.padded)

    def as_rows(self, arrays: Arrays) -> Arrays:
        """The arrays with dim_size last: a row for each outer and inner index."""
        return _swapped(arrays, (self.outer, self.dim_size, self.inner))

    def as_slices(self, arrays: Arrays) -> Arrays:
        """What as_rows() undoes."""
        return _swapped(arrays, (self.outer, self.inner, self.dim_size))


def _swapped(arrays: Arrays, shape: tuple[int, int, int]) -> Arrays:
    """Arrays of that shape with the last two dimensions exchanged, and the first two made one."""

    def swapped(values: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(values.reshape(shape).swapaxes(1, 2)).reshape(-1, shape[1])

    as_they_are = (*PARAMETERS, *STATISTICS)
    return {
        name: values if name in as_they_are else swapped(values) for name, values in arrays.items()
    }


def inputs(case: SpatialCase) -> Arrays:
    """The inputs of a case, the same each time."""
    module = norm_cases if case.is_norm else row_cases
    return case.as_slices(module.inputs(case.of_rows))


class Prepared(InDeviceMemory):
    def _args(self) -> Args:
        case = self._case
        args = _ARGS[case.op](outer=case.outer, dim_size=case.dim_size, inner=case.inner)
        if not case.is_norm:
            args.log = case.log
            return args
        args.kind = KINDS.index(case.kind)
        if case.op == NORMS[0]:
            args.eps = EPS
        return args


def bases() -> list[SpatialCase]:
    """A case for each op, pair of dtypes and width of vectors (16 bytes, one element)."""
    same = [(dtype, dtype) for dtype in DTYPES]
    return [
        SpatialCase(op, dtype, other, outer=1, dim_size=1, inner=3 * width, width=width)
        for op in OPS
        for dtype, other in (same if op in NORMS else PAIRS)
        for width in (VECTOR_BYTES // DTYPES[dtype].itemsize, 1)
    ]


def boundary_cases(emulator: Emulator, base: SpatialCase) -> Iterator[SpatialCase]:
    """A dim_size of one, both sides of every change of the launch shape, and one beyond the last of
    them; inner columns that end within a segment, in one segment or, of a short dim_size, in many.
    Options vary along the way."""
    one_launch = replace(base, wanted=(True, False, False))
    args = Prepared(emulator, one_launch, inputs(base)).args
    ends = emulator.ends_of_launch_shapes(args, 1, MAX_LENGTH)
    is_short = base.is_norm and DTYPES[base.dtype].itemsize == 2
    first = zlib.crc32(repr(base).encode())
    for i, dim_size in enumerate([1, *ends, *(end + 1 for end in ends), MAX_LENGTH + 3], first):
        is_one_segment = i % 3 > 0 or dim_size > MANY_COLUMNS
        yield replace(
            base,
            dim_size=dim_size,
            inner=base.width * (3 if is_one_segment else 17 + 300 // dim_size),
            outer=1 + i % 2,
            padded=i % 4 > 1,
            log=i % 5 < 2,
            kind=KINDS[i % 2],
            other="float32" if is_short and i % 5 in (1, 4) else base.other,
            weight=i % 7 != 3,
            bias=i % 5 != 3,
        )


def racing_candidates(emulator: Emulator) -> list[SpatialCase]:
    """First those with columns that threads share: from a dim_size of eight on."""
    candidates = [case for base in bases() for case in boundary_cases(emulator, base)]
    return sorted(candidates, key=lambda case: (case.dim_size < 8, case.dim_size))
