"""What masked softmax is run on: as in rows.py, with operands of every kind and shape, causality
and dropout. Needs numpy only, so that it runs under sanitizers.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from .. import philox
from ..emulator.library import DTYPES, VECTOR_BYTES, Args, Emulator
from ..emulator.structs import (
    Causal,
    MaskedSoftmaxBackward,
    MaskedSoftmaxForward,
    RowDims,
    Scores,
)
from . import rows as row_cases
from .prepared import Arrays, Form, InDeviceMemory
from .rows import PAIRS, encode

OPS = ["masked_softmax_forward", "masked_softmax_backward"]
#: The last length that dry launches look at; the kernels that keep a row end at 32768 at most.
MAX_LENGTH = 33_000
#: Two tiles of the looped kernels in float64, which has no other kernels. One vector more needs a
#: third tile.
LONG_COLS = 6144
#: The terms that scores may have, one of which is enough for a kernel of its own.
TERMS = ["none", "causal", "bool", "numbers", "any", "capped"]
#: Those whose kernels take every operand.
GENERAL = ("any", "capped")
#: Short rows of single elements have one kernel for the terms before these, or several of them.
PLAIN = "plain"

#: Arrays with one value for each row, adjacent.
STATISTICS = ("sink_probabilities", "grad_sinks")
#: Arrays that are no rows of the launch.
OPERANDS = ("mask", "bias", "start", "end", "sinks")


@dataclass(frozen=True)
class MaskedCase:
    op: str
    dtype: str  # of input and its gradient
    other: str  # of outputs and their gradients
    dims: tuple[int, ...]  # their product is the number of rows; the last are queries
    cols: int
    width: int  # elements of the vectors that all pointers and strides are aligned for
    terms: str = "any"  # one of TERMS; varied() gives the case such operands
    padded: bool = False
    mask: str = ""  # a dtype and the dimensions of [*dims, cols] that it has, as in "bool 1011"
    bias: str = ""
    diagonal: int | None = None  # None: not causal
    lower: int | None = None  # the lower diagonal
    start: str = ""  # as mask, with 0 for the columns, as in "int32 1010"
    end: str = ""
    sinks: str = ""
    softcap: float = 0.0  # 0: none
    scale: float = 1.0
    mask_value: float = -np.inf
    zero_masked_rows: bool = False
    p: float = 0.0
    wants_probabilities: bool = True
    #: Whether the device has clusters of blocks. Not in repr(), which chooses options.
    clusters: bool = field(default=False, repr=False)

    @property
    def rows(self) -> int:
        return math.prod(self.dims)

    @property
    def wide(self) -> str:
        """The dtype of sinks and of their probabilities."""
        return "float64" if self.other == "float64" else "float32"

    @property
    def is_forward(self) -> bool:
        return self.op == "masked_softmax_forward"

    @property
    def drops(self) -> bool:
        return self.p > 0

    @property
    def operands(self) -> dict[str, str]:
        """Those of the launch by name. Backward, the probabilities of sinks stand for them."""
        names = OPERANDS if self.is_forward else OPERANDS[:-1]
        return {name: getattr(self, name) for name in names if getattr(self, name)}

    def factors(self) -> np.ndarray:
        """What dropout multiplies with."""
        return philox.factors(self.rows, self.cols, self.p)

    def output_dtypes(self) -> dict[str, str]:
        if not self.is_forward:
            of_sinks = {"grad_sinks": self.wide} if self.sinks else {}
            return {"grad_input": self.dtype} | of_sinks
        names = ["output", "probabilities"] if self.wants_probabilities else ["output"]
        of_sinks = {"sink_probabilities": self.wide} if self.sinks else {}
        return dict.fromkeys(names, self.other) | of_sinks

    def form(self, name: str) -> Form:
        if name in OPERANDS:
            *of_rows, cols = self.operand_shape(self.operands[name])
            dtype = self.wide if name == "sinks" else self.operands[name].split()[0]
            return Form((math.prod(of_rows), cols), dtype, min(self.width, cols), self.padded)
        if name in STATISTICS:
            return Form((self.rows, 1), self.wide)
        dtype = self.dtype if name in ("input", "grad_input") else self.other
        return Form((self.rows, self.cols), dtype, self.width, self.padded)

    def operand_shape(self, operand: str) -> tuple[int, ...]:
        kept = operand.split()[1]
        sizes = zip((*self.dims, self.cols), kept, strict=True)
        return tuple(size if is_kept == "1" else 1 for size, is_kept in sizes)

    def interval(self, given: Arrays) -> np.ndarray:
        """Whether each element of [rows, cols] is in the interval of its row."""
        shown = np.ones((self.rows, self.cols), bool)
        query = np.arange(self.rows)[:, None] % self.dims[-1]
        column = np.arange(self.cols)[None]
        if self.diagonal is not None:
            shown &= column <= query + self.diagonal
        if self.lower is not None:
            shown &= column >= query + self.lower
        if self.start:
            shown &= column >= self.broadcast(given["start"])
        if self.end:
            shown &= column < self.broadcast(given["end"])
        return shown

    def shown(self, given: Arrays) -> np.ndarray:
        shown = self.interval(given)
        return shown & self.broadcast(given["mask"] != 0) if self.mask[:4] == "bool" else shown

    def broadcast_rows(self, operand: np.ndarray) -> np.ndarray:
        """As one value for each row."""
        return np.broadcast_to(operand, (*self.dims, 1)).reshape(self.rows, 1)

    def broadcast(self, operand: np.ndarray) -> np.ndarray:
        """As one value for each row and column."""
        return np.broadcast_to(operand, (*self.dims, self.cols)).reshape(self.rows, self.cols)


def inputs(case: MaskedCase) -> Arrays:
    """The inputs of a case, the same each time. Operands have their own shapes."""
    shape = (case.rows, case.cols)
    random = np.random.default_rng(zlib.crc32(repr((case.op, shape, case.mask)).encode()))
    normal = random.standard_normal
    given = {name: _operand(case, name, random) for name in case.operands}
    if case.is_forward:
        return given | {"input": encode(normal(shape) * 3, case.dtype)}
    shown = case.shown(given)
    power = np.where(shown, np.exp(normal(shape) * 2), 0)
    if np.isfinite(case.mask_value) and not case.zero_masked_rows:
        power[~shown.any(-1)] = 1  # the columns of a row that sees none are equal
    probabilities = power / np.maximum(power.sum(-1, keepdims=True), 1e-30)
    if case.sinks:
        given["sink_probabilities"] = encode(random.random((case.rows, 1)), case.wide)
    return given | {
        "grad_output": encode(normal(shape), case.other),
        "probabilities": encode(probabilities, case.other),
    }


def _operand(case: MaskedCase, name: str, random: np.random.Generator) -> np.ndarray:
    dtype, shape = case.operands[name].split()[0], case.operand_shape(case.operands[name])
    if dtype == "bool":
        return (random.random(shape) < 0.7).astype(np.uint8)
    if name in ("start", "end"):
        low, high = (-3, case.cols // 2 + 2) if name == "start" else (case.cols // 3, case.cols + 3)
        return random.integers(low, high, shape).astype(dtype)
    values = random.standard_normal(shape)
    if name == "sinks":
        return encode(values * 3, case.wide)
    if name == "mask":  # column 0 stays visible in every row
        values[..., 1:][values[..., 1:] < -1] = -np.inf
    return encode(values, dtype)


class Prepared(InDeviceMemory):
    def _scores(self) -> Scores:
        case = self._case
        scores = Scores(
            RowDims(len(case.dims), tuple(case.dims)),
            causal=Causal(
                *(case.diagonal is not None, case.dims[-1], case.diagonal or 0),
                *(case.lower is not None, case.lower or 0),
            ),
            scale=case.scale,
            mask_value=case.mask_value,
            softcap=case.softcap,
        )
        for name, operand in case.operands.items():
            kind, shape = dict(Scores._fields_)[name], case.operand_shape(operand)
            setattr(scores, name, self.arrays[name].operand(kind, shape))
        return scores

    def _args(self) -> Args:
        case = self._case
        options = {"zero_masked_rows": case.zero_masked_rows} if case.is_forward else {}
        return (MaskedSoftmaxForward if case.is_forward else MaskedSoftmaxBackward)(
            scores=self._scores(),
            dropout=self._dropout(),
            rows=case.rows,
            cols=case.cols,
            **options,
        )


def bases() -> list[MaskedCase]:
    """A case for each op, pair of dtypes, width of vectors (16 bytes, one element) and terms of the
    scores that kernels differ in, of one vector."""
    wide = [
        with_operands(MaskedCase(op, dtype, other, (1, 1, 1), width, width, terms), 0)
        for op in OPS
        for dtype, other in PAIRS
        for width in (wide_vector(op, dtype, other),)
        for terms in (TERMS if dtype != "float64" else GENERAL)
        if op == "masked_softmax_forward" or terms not in ("numbers", "capped")
    ]
    general = [case for case in wide if case.terms in GENERAL]
    plain = [
        with_operands(replace(case, terms=PLAIN), 0)
        for case in general
        if case.terms == "any" and case.dtype != "float64"
    ]
    return [*wide, *(replace(case, width=1, cols=1) for case in [*general, *plain])]


def wide_vector(op: str, dtype: str, other: str) -> int:
    read = dtype if op == "masked_softmax_forward" else other
    return VECTOR_BYTES // DTYPES[read].itemsize


def with_operands(case: MaskedCase, i: int) -> MaskedCase:
    """The case with the i-th choice of mask, bias and causality that its terms allow."""
    own, wide = case.dtype, "float64" if case.dtype == "float64" else "float32"
    masks, biases, diagonals = [""], [""], [None]
    lowers, starts, ends, sinks, caps = [None], [""], [""], [""], [0.0]
    if case.terms == "none" and not case.is_forward:
        masks = ["", f"{own} 0011"]  # what was added does not matter
    elif case.terms == "causal":
        diagonals = [case.cols // 2, -1, case.cols - case.dims[-1], 0]
    elif case.terms == "bool":
        masks = ["bool 1011", "bool 0001", "bool 1111"]
    elif case.terms == "numbers":
        masks = [f"{own} 0011", "", f"{own} 1101", ""]
        biases = ["", f"{own} 0111", "", f"{own} 1111"]
    elif case.terms == PLAIN:
        masks = ["", "bool 1011", f"{own} 0011", "bool 1111", f"{own} 1101"]
        biases = ["", f"{own} 0111", f"{own} 1011"]
        diagonals = [case.cols // 2, None, -1, case.cols - case.dims[-1]]
    elif case.terms in GENERAL:
        masks = ["bool 1110", "bool 1011", "", f"{own} 0011", f"{wide} 1101", "bool 0001"]
        masks.append("bool 1111")
        biases = ["", f"{own} 0111", f"{wide} 1010", f"{own} 1111", f"{wide} 0001"]
        diagonals = [None, case.cols // 2, -1, case.cols - case.dims[-1]]
        lowers = [None, case.cols // 3, None, -1, None]
        starts = ["", "", "int32 1110", "", "int64 0110", ""]
        ends = ["", "int64 1000", "", "", "int32 0010", "", "int32 1110"]
        sinks = ["", "", "float 0100", "", "", "float 1110", "", "float 0000"]
        caps = [2.0, 50.0, 0.5] if case.terms == "capped" else caps
    return replace(
        case,
        mask=masks[i % len(masks)],
        bias=biases[i % len(biases)] if case.is_forward else "",
        diagonal=diagonals[i % len(diagonals)],
        lower=lowers[i % len(lowers)],
        start=starts[i % len(starts)],
        end=ends[i % len(ends)],
        sinks=sinks[i % len(sinks)],
        softcap=caps[i % len(caps)],
    )


def varied(case: MaskedCase, i: int) -> MaskedCase:
    """The case with the i-th choice of operands and options. The choices have different periods, so
    that many cases together have most pairs of them."""
    lowest = -65504.0 if case.other == "float16" else float(np.finfo(np.float32).min)
    mask_value, zeros = [(-1e4, False), (-np.inf, True), (lowest, False)][i % 3]
    return replace(
        with_operands(case, i),
        padded=i % 2 == 1,
        scale=0.125 if i % 3 == 1 else 1.0,
        mask_value=mask_value,
        zero_masked_rows=zeros,
        p=0.3 if i % 5 > 2 and case.terms != PLAIN else 0.0,  # which has kernels of other terms
        wants_probabilities=i % 4 != 1,
    )


def boundary_cases(emulator: Emulator, base: MaskedCase) -> Iterator[MaskedCase]:
    """The shortest row, both sides of every change of kernel or of launch shape, and long rows. Of
    the shapes of a kernel for one part, every multiple of a warp is like the next one."""
    args = Prepared(emulator, base, inputs(base)).args
    ends = emulator.ends_of_launch_shapes(args, base.width, MAX_LENGTH)
    ends = ends if ends[-1] > row_cases.FEW_COLS else [*ends, LONG_COLS]
    if base.terms not in GENERAL:
        ends = [end for end in ends if end <= 2048 or end == ends[-1]]
    lengths = sorted({base.width, *ends, *(end + base.width for end in ends)})
    first = zlib.crc32(repr(base).encode())
    for i, cols in enumerate(lengths, first):
        dims = (2, 2, 3) if cols <= row_cases.FEW_COLS else (1, 1, 3)
        yield varied(replace(base, cols=cols, dims=dims), i)


def cluster_bases() -> list[MaskedCase]:
    """A case for each kernel of clusters, which are for scores of any terms. The lengths are the
    shortest that one block does not hold."""
    longest = {2: 14_336, 4: 8192}
    return [
        replace(base, cols=longest[VECTOR_BYTES // base.width] + base.width, clusters=True)
        for base in bases()
        if base.terms in GENERAL and base.width > 1 and "float64" not in (base.dtype, base.other)
    ]


def cluster_cases(emulator: Emulator) -> list[MaskedCase]:
    """Each kernel of clusters once: with a mask beside causality no block holds such rows."""
    return [
        replace(varied(base, i), dims=(1, 1, 3), mask="bool 1011", diagonal=base.cols // 2)
        for i, base in enumerate(cluster_bases())
    ]


def racing_candidates(emulator: Emulator) -> list[MaskedCase]:
    """In the order of those of rows.py."""
    candidates = [case for base in bases() for case in boundary_cases(emulator, base)]
    return row_cases.several_warps_first([replace(case, dims=(1, 1, 3)) for case in candidates])
