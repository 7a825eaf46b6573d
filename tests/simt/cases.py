"""What is run on the emulator: every op with every pair of dtypes and every alignment, at the row
lengths where the launch code changes its mind. Needs numpy only, so that it runs under sanitizers.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from .emulator import (
    DTYPES,
    VECTOR_BYTES,
    Args,
    Columns,
    DeviceArray,
    Emulator,
    LayerNormBackward,
    LayerNormForward,
    Rows,
    SoftmaxBackward,
    SoftmaxForward,
)

OPS = ["softmax_forward", "softmax_backward", "layer_norm_forward", "layer_norm_backward"]

#: Of input and output (softmax) or of input and parameters (layer_norm).
PAIRS = [
    *((dtype, dtype) for dtype in DTYPES),
    ("float16", "float32"),
    ("bfloat16", "float32"),
]

#: Lengths are looked at as far as this; every kernel's last change of shape is at 32768.
MAX_LENGTH = 70_000
#: Two tiles of the looped kernels in float64, which have no other. A vector more is a third.
LONG_COLS = 8192
#: The kernel that ends the column sums has 1024 threads for 32 columns, whatever the types above
#: it, and costs more than all others together: of longer rows only the longest of the two last
#: kernels go through it, with one type of parameters.
FEW_COLS = 1100
EPS = 1e-5


@dataclass(frozen=True)
class Case:
    op: str
    dtype: str
    other: str
    rows: int
    cols: int
    width: int  # elements of the vectors that all pointers and strides are aligned for
    padded: bool = False  # places between rows
    log: bool = False
    weight: bool = True
    bias: bool = True
    wanted: tuple[bool, bool, bool] = (True, True, True)  # gradients of input, weight and bias

    @property
    def statistics(self) -> str:
        return "float64" if self.dtype == "float64" else "float32"


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
    """Of one case always the same: rows as the kernel gets them."""
    shape = (case.rows, case.cols)
    random = np.random.default_rng(zlib.crc32(repr((case.op, shape)).encode()))
    normal = random.standard_normal
    if case.op == "softmax_forward":
        return {"input": encode(normal(shape) * 3, case.dtype)}
    if case.op == "softmax_backward":
        power = np.exp(normal(shape) * 2)
        output = power / power.sum(-1, keepdims=True)
        return {
            "grad_output": encode(normal(shape), case.other),
            "output": encode(np.log(output) if case.log else output, case.other),
        }
    given = {"input": encode(normal(shape) * 2 + 1, case.dtype)}
    if case.weight:
        given["weight"] = encode(normal((1, case.cols)), case.other)
    if case.op == "layer_norm_forward":
        if case.bias:
            given["bias"] = encode(normal((1, case.cols)), case.other)
        return given
    x = decode(given["input"], case.dtype)
    rstd = 1 / np.sqrt(x.var(-1, keepdims=True) + EPS)
    return given | {
        "grad_output": encode(normal(shape), case.dtype),
        "mean": encode(x.mean(-1, keepdims=True), case.statistics),
        "rstd": encode(rstd, case.statistics),
    }


def output_dtypes(case: Case) -> dict[str, str]:
    """Of what the case computes, by name."""
    if case.op == "softmax_forward":
        return {"output": case.other}
    if case.op == "softmax_backward":
        return {"grad_input": case.dtype}
    if case.op == "layer_norm_forward":
        return {"output": case.dtype, "mean": case.statistics, "rstd": case.statistics}
    dtypes = {"grad_input": case.dtype, "grad_weight": case.other, "grad_bias": case.other}
    return {name: dtypes[name] for name, wanted in zip(dtypes, case.wanted, strict=True) if wanted}


class Prepared:
    """A case in device memory: launch ``args``, then read the outputs."""

    def __init__(
        self, emulator: Emulator, case: Case, given: Arrays, misaligned: str | None = None
    ) -> None:
        self._emulator, self._case, self._misaligned = emulator, case, misaligned
        self._inputs = {name: self._array(name, values.shape) for name, values in given.items()}
        for name, array in self._inputs.items():
            array.values[:] = given[name]
        self._outputs = {name: self._array(name, self._shape(name)) for name in output_dtypes(case)}
        self.arrays = self._inputs | self._outputs
        self.args = self._args()

    def _shape(self, name: str) -> tuple[int, int]:
        if name in ("mean", "rstd"):
            return (self._case.rows, 1)
        return (1 if name in ("grad_weight", "grad_bias") else self._case.rows, self._case.cols)

    def _dtype(self, name: str) -> str:
        if name in ("mean", "rstd"):
            return self._case.statistics
        if name in ("weight", "bias", "grad_weight", "grad_bias"):
            return self._case.other
        is_softmax = self._case.op.startswith("softmax")
        return self._case.other if is_softmax and "output" in name else self._case.dtype

    def _array(self, name: str, shape: tuple[int, int]) -> DeviceArray:
        dtype, whole_rows = self._dtype(name), shape == (self._case.rows, self._case.cols)
        width = 1 if name == self._misaligned else self._case.width
        alignment = min(VECTOR_BYTES, width * DTYPES[dtype].itemsize)
        return self._emulator.array(shape, dtype, alignment, self._case.padded and whole_rows)

    def _args(self) -> Args:
        case, arrays = self._case, self.arrays
        rows = {name: array.rows for name, array in arrays.items()}
        columns = {name: array.columns for name, array in arrays.items()}
        size = {"rows": case.rows, "cols": case.cols}
        if case.op == "softmax_forward":
            return SoftmaxForward(rows["input"], rows["output"], log=case.log, **size)
        if case.op == "softmax_backward":
            return SoftmaxBackward(**rows, log=case.log, **size)
        statistics = {name: arrays[name].address for name in ("mean", "rstd")}
        parameters = {name: columns.get(name, Columns()) for name in ("weight", "bias")}
        if case.op == "layer_norm_forward":
            return LayerNormForward(
                rows["input"], rows["output"], **parameters, **statistics, **size, eps=EPS
            )
        args = LayerNormBackward(
            rows["grad_output"],
            rows["input"],
            **statistics,
            weight=parameters["weight"],
            grad_input=rows.get("grad_input", Rows()),
            grad_weight=columns.get("grad_weight", Columns()),
            grad_bias=columns.get("grad_bias", Columns()),
            **size,
        )
        accumulators = self._emulator.workspace_bytes(args) // DTYPES[case.statistics].itemsize
        if accumulators:
            shape = (1, accumulators)
            self._workspace = self._emulator.array(shape, case.statistics, VECTOR_BYTES)
            args.workspace = self._workspace.address
        return args

    def outputs(self) -> Arrays:
        return {name: array.read() for name, array in self._outputs.items()}


def run(emulator: Emulator, case: Case, given: Arrays | None = None) -> Arrays:
    """The outputs of a case, on its own inputs or on given ones."""
    prepared = Prepared(emulator, case, inputs(case) if given is None else given)
    emulator.launch(prepared.args)
    return prepared.outputs()


def bases() -> list[Case]:
    """A case for each op, pair of dtypes and width of vectors (16 bytes, 4, one element), of one
    vector."""
    return [
        Case(op, dtype, other, rows=1, cols=width, width=width)
        for op in OPS
        for dtype, other in PAIRS
        for item in [DTYPES[dtype].itemsize]
        for width in sorted({VECTOR_BYTES // item, max(1, 4 // item), 1}, reverse=True)
    ]


def boundary_lengths(emulator: Emulator, base: Case) -> list[int]:
    """The shortest row, both sides of every change of kernel or of launch shape, and for kernels
    without an end long rows."""
    one_launch = replace(base, wanted=(True, False, False))
    args = Prepared(emulator, one_launch, inputs(one_launch)).args
    ends = emulator.ends_of_launch_shapes(args, base.width, MAX_LENGTH)
    ends = ends if ends[-1] > FEW_COLS else [*ends, FEW_COLS // 32 * 32, LONG_COLS]
    return sorted({base.width, *ends, *(end + base.width for end in ends)})


def boundary_cases(emulator: Emulator, base: Case, elements: int = 1000) -> Iterator[Case]:
    """At each of these lengths rows of so many elements together, at least five and at most 1000.

    Logarithm, padding and parameters are varied along the way.
    """
    lengths = boundary_lengths(emulator, base)
    for i, cols in enumerate(lengths):
        case = replace(base, cols=cols, rows=min(max(5, elements // cols), 1000))
        if base.op.startswith("softmax"):
            yield replace(case, padded=i % 2 == 1, log=False)
            yield replace(case, padded=i % 2 == 0, log=True)
        else:
            columns = cols <= FEW_COLS or (cols in lengths[-2:] and base.dtype == base.other)
            yield replace(
                case,
                padded=i % 2 == 1,
                weight=i % 4 != 2,
                bias=i % 4 != 3,
                wanted=(True, columns, columns),
            )


def all_boundary_cases(emulator: Emulator) -> list[Case]:
    return [case for base in bases() for case in boundary_cases(emulator, base)]


def racing_candidates(emulator: Emulator) -> list[Case]:
    """With few rows, first those that several warps share, so that they meet at a barrier: more
    than 512 elements have several warps wherever a row of that kernel can have them."""
    candidates = [replace(case, rows=3) for case in all_boundary_cases(emulator)]
    return sorted(candidates, key=lambda case: (case.cols <= 512, case.cols))
