"""What masked softmax is run on: as in rows.py, with operands of every kind and shape, causality
and dropout. Needs numpy only, so that it runs under sanitizers.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..emulator.library import (
    DTYPES,
    VECTOR_BYTES,
    Args,
    Causal,
    DeviceArray,
    Dropout,
    Emulator,
    MaskedSoftmaxBackward,
    MaskedSoftmaxForward,
    Operand,
    RowDims,
    Rows,
    Scores,
)
from . import rows as row_cases
from .rows import PAIRS, Arrays, encode

OPS = ["masked_softmax_forward", "masked_softmax_backward"]
SEED = 0x0123_4567_89AB_CDEF
#: The last length that dry launches look at; the kernels that keep a row end at 16384 and 8192.
MAX_LENGTH = 17_000
#: Two tiles of the looped kernels in float64, which has no other kernels. One vector more needs a
#: third tile.
LONG_COLS = 8192


@dataclass(frozen=True)
class MaskedCase:
    op: str
    dtype: str  # of input and its gradient
    other: str  # of outputs and their gradients
    dims: tuple[int, ...]  # their product is the number of rows; the last are queries
    cols: int
    width: int  # elements of the vectors that all pointers and strides are aligned for
    padded: bool = False
    mask: str = ""  # a dtype and the dimensions of [*dims, cols] that it has, as in "bool 1011"
    bias: str = ""
    diagonal: int | None = None  # None: not causal
    scale: float = 1.0
    mask_value: float = -np.inf
    zero_masked_rows: bool = False
    p: float = 0.0
    wants_probabilities: bool = True

    @property
    def rows(self) -> int:
        return math.prod(self.dims)

    @property
    def is_forward(self) -> bool:
        return self.op == "masked_softmax_forward"

    @property
    def threshold(self) -> int:
        return min(round(self.p * 2**32), 2**32 - 1)

    def operand_shape(self, operand: str) -> tuple[int, ...]:
        kept = operand.split()[1]
        sizes = zip((*self.dims, self.cols), kept, strict=True)
        return tuple(size if is_kept == "1" else 1 for size, is_kept in sizes)

    def shown_by_causality(self) -> np.ndarray:
        """Whether causality shows each element of [rows, cols]."""
        if self.diagonal is None:
            return np.ones((self.rows, self.cols), bool)
        query = np.arange(self.rows)[:, None] % self.dims[-1]
        return np.arange(self.cols)[None] <= query + self.diagonal

    def shown(self, given: Arrays) -> np.ndarray:
        shown = self.shown_by_causality()
        return shown & self.broadcast(given["mask"] != 0) if self.mask[:4] == "bool" else shown

    def broadcast(self, operand: np.ndarray) -> np.ndarray:
        """As one value for each row and column."""
        return np.broadcast_to(operand, (*self.dims, self.cols)).reshape(self.rows, self.cols)


def inputs(case: MaskedCase) -> Arrays:
    """The inputs of a case, the same each time. Operands have their own shapes."""
    shape = (case.rows, case.cols)
    random = np.random.default_rng(zlib.crc32(repr((case.op, shape, case.mask)).encode()))
    normal = random.standard_normal
    given = {}
    for name, operand in (("mask", case.mask), ("bias", case.bias)):
        if operand.startswith("bool"):
            given[name] = (random.random(case.operand_shape(operand)) < 0.7).astype(np.uint8)
        elif operand:
            values = normal(case.operand_shape(operand))
            if name == "mask":  # column 0 stays visible in every row
                values[..., 1:][values[..., 1:] < -1] = -np.inf
            given[name] = encode(values, operand.split()[0])
    if case.is_forward:
        return given | {"input": encode(normal(shape) * 3, case.dtype)}
    power = np.where(case.shown(given), np.exp(normal(shape) * 2), 0)
    probabilities = power / np.maximum(power.sum(-1, keepdims=True), 1e-30)
    return given | {
        "grad_output": encode(normal(shape), case.other),
        "probabilities": encode(probabilities, case.other),
    }


def output_dtypes(case: MaskedCase) -> dict[str, str]:
    if not case.is_forward:
        return {"grad_input": case.dtype}
    names = ["output", "probabilities"] if case.wants_probabilities else ["output"]
    return dict.fromkeys(names, case.other)


class Prepared:
    """A case in device memory: launch ``args``, then read the outputs."""

    def __init__(
        self, emulator: Emulator, case: MaskedCase, given: Arrays, misaligned: str = ""
    ) -> None:
        self._emulator, self._case, self._misaligned = emulator, case, misaligned
        self.arrays: dict[str, DeviceArray] = {}
        for name, values in given.items():
            rows = values.reshape(-1, values.shape[-1])
            self.arrays[name] = self._array(name, rows.shape)
            self.arrays[name].values[:] = rows
        self.seed = emulator.array((1, 1), "int64", 8)
        self.seed.values[:] = SEED
        shape = (case.rows, case.cols)
        self._outputs = {name: self._array(name, shape) for name in output_dtypes(case)}
        self.arrays |= self._outputs
        self.args = self._args()

    def _array(self, name: str, shape: tuple[int, int]) -> DeviceArray:
        case = self._case
        operands = {"mask": case.mask, "bias": case.bias}
        if name in operands:
            dtype = operands[name].split()[0]
        else:
            dtype = case.dtype if name in ("input", "grad_input") else case.other
        width = 1 if name == self._misaligned else case.width
        item = 1 if dtype == "bool" else DTYPES[dtype].itemsize
        alignment = min(VECTOR_BYTES, (width if shape[1] > 1 else 1) * item)
        return self._emulator.array(shape, dtype, alignment, case.padded)

    def _scores(self) -> Scores:
        case = self._case
        operands = {
            name: self.arrays[name].operand(case.operand_shape(text)) if text else Operand()
            for name, text in (("bias", case.bias), ("mask", case.mask))
        }
        return Scores(
            RowDims(*case.dims),
            **operands,
            causal=Causal(case.diagonal is not None, case.dims[-1], case.diagonal or 0),
            scale=case.scale,
            mask_value=case.mask_value,
        )

    def _args(self) -> Args:
        case = self._case
        rows = {name: a.rows for name, a in self.arrays.items() if name not in ("mask", "bias")}
        scale = 0.0 if case.p == 1 else 1 / (1 - case.p)
        given = {
            "scores": self._scores(),
            "dropout": Dropout(self.seed.address if case.p else None, case.threshold, scale),
            "rows": case.rows,
            "cols": case.cols,
        }
        if case.is_forward:
            return MaskedSoftmaxForward(
                rows["input"],
                rows["output"],
                rows.get("probabilities", Rows()),
                **given,
                zero_masked_rows=case.zero_masked_rows,
            )
        return MaskedSoftmaxBackward(
            rows["grad_output"], rows["probabilities"], rows["grad_input"], **given
        )

    def outputs(self) -> Arrays:
        return {name: array.read() for name, array in self._outputs.items()}


def bases() -> list[MaskedCase]:
    """A case for each op, pair of dtypes and width of vectors (16 bytes, one element), of one
    vector."""
    return [
        MaskedCase(op, dtype, other, dims=(1, 1, 1), cols=width, width=width)
        for op in OPS
        for dtype, other in PAIRS
        for width in (VECTOR_BYTES // DTYPES[dtype].itemsize, 1)
    ]


def varied(case: MaskedCase, i: int) -> MaskedCase:
    """The case with the i-th choice of operands and options. The choices have different periods, so
    that many cases together have most pairs of them."""
    own, wide = case.dtype, "float64" if case.dtype == "float64" else "float32"
    masks = ["bool 1011", "", f"{own} 0011", "bool 1110", f"{wide} 1101", "bool 0001", "bool 1111"]
    biases = ["", f"{own} 0111", f"{wide} 1010", f"{own} 1111", f"{wide} 0001"]
    diagonals = [None, case.cols // 2, -1, case.cols - case.dims[-1]]
    lowest = -65504.0 if case.other == "float16" else float(np.finfo(np.float32).min)
    mask_value, zeros = [(-1e4, False), (-np.inf, True), (lowest, False)][i % 3]
    return replace(
        case,
        padded=i % 2 == 1,
        mask=masks[i % 7],
        bias=biases[i % 5] if case.is_forward else "",
        diagonal=diagonals[i % 4],
        scale=0.125 if i % 3 == 1 else 1.0,
        mask_value=mask_value,
        zero_masked_rows=zeros,
        p=0.3 if i % 5 > 2 else 0.0,
        wants_probabilities=i % 4 != 1,
    )


def boundary_cases(emulator: Emulator, base: MaskedCase) -> Iterator[MaskedCase]:
    """The shortest row, both sides of every change of kernel or of launch shape, and long rows."""
    args = Prepared(emulator, base, inputs(base)).args
    ends = emulator.ends_of_launch_shapes(args, base.width, MAX_LENGTH)
    ends = ends if ends[-1] > row_cases.FEW_COLS else [*ends, LONG_COLS]
    lengths = sorted({base.width, *ends, *(end + base.width for end in ends)})
    first = zlib.crc32(repr(base).encode())
    for i, cols in enumerate(lengths, first):
        dims = (2, 2, 3) if cols <= row_cases.FEW_COLS else (1, 1, 3)
        yield varied(replace(base, cols=cols, dims=dims), i)


def racing_candidates(emulator: Emulator) -> list[MaskedCase]:
    """In the order of those of rows.py."""
    candidates = [case for base in bases() for case in boundary_cases(emulator, base)]
    candidates = [replace(case, dims=(1, 1, 3)) for case in candidates]
    return sorted(candidates, key=lambda case: (case.cols <= 512, case.cols))
