"""What LayerNorm, RMSNorm and StdNorm are run on: as in rows.py, with and without residuals and
dropout, and with every option. Needs numpy only, so that it runs under sanitizers.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from norm_kinds import KINDS as DEFINITIONS

from .. import philox
from ..emulator.library import DTYPES, Args, Emulator
from ..emulator.structs import Dropout, NormBackward, NormForward
from . import rows as row_cases
from .prepared import Form, InDeviceMemory
from .rows import FEW_COLS, Arrays, decode, encode

OPS = ["norm_forward", "norm_backward"]
KINDS = list(DEFINITIONS)
EPS = 1e-5
#: Arrays with one value for each row, and with one for each column.
STATISTICS, PARAMETERS = ("mean", "rstd"), ("weight", "bias", "grad_weight", "grad_bias")
#: The last length that dry launches look at; the kernels that keep a row end at 32768.
MAX_LENGTH = 33_000


@dataclass(frozen=True)
class NormCase:
    op: str
    dtype: str
    rows: int
    cols: int
    width: int  # elements of the vectors that all pointers and strides are aligned for
    #: Forward, whether there is a residual; backward, gradients of what comes with one.
    adds: bool = False
    parameters: str = ""  # the dtype of weight and bias, where it is not that of the rows
    kind: str = "layer"
    padded: bool = False
    weight: bool = True
    bias: bool = True
    weight_offset: float = 0.0
    rounds_normalized: bool = False
    with_sum: bool = True  # forward, the sum is wanted; backward, it has a gradient
    p: float = 0.0
    wanted: tuple[bool, bool, bool] = (True, True, True)  # gradients of input, weight and bias
    # Not in repr(), which chooses options: whether the device has clusters of blocks, and the dtype
    # of the branch or of its gradient, where it is not that of the rows.
    clusters: bool = field(default=False, repr=False)
    eps: float = field(default=EPS, repr=False)
    branch: str = field(default="", repr=False)

    @property
    def is_forward(self) -> bool:
        return self.op == "norm_forward"

    @property
    def has_mean(self) -> bool:
        return DEFINITIONS[self.kind].has_mean

    @property
    def statistics(self) -> str:
        return "float64" if self.dtype == "float64" else "float32"

    @property
    def parameter_dtype(self) -> str:
        return self.parameters or self.dtype

    @property
    def branch_dtype(self) -> str:
        return self.branch or self.dtype

    @property
    def drops(self) -> bool:
        return self.adds and self.p > 0

    def factors(self) -> np.ndarray:
        """What dropout multiplies with."""
        return philox.factors(self.rows, self.cols, self.p * self.drops)

    def output_dtypes(self) -> dict[str, str]:
        """The dtype of each array that the case computes, by its name."""
        if self.is_forward:
            names = ["output", *(["sum"] if self.adds and self.with_sum else [])]
            saved = STATISTICS if self.has_mean else ["rstd"]
            return dict.fromkeys(names, self.dtype) | dict.fromkeys(saved, self.statistics)
        gradients = ("grad_input", "grad_weight", "grad_bias")
        names = [name for name, wanted in zip(gradients, self.wanted, strict=True) if wanted]
        dtypes = {name: self.parameter_dtype for name in names} | {"grad_input": self.dtype}
        branch = ["grad_branch"] if self.drops or self.branch else []
        return {name: dtypes[name] for name in names} | dict.fromkeys(branch, self.branch_dtype)

    def form(self, name: str) -> Form:
        """What an array of the case is like."""
        if name in STATISTICS:
            return Form((self.rows, 1), self.statistics, self.width)
        if name in PARAMETERS:
            return Form((1, self.cols), self.parameter_dtype, self.width)
        is_branch = name == ("input" if self.is_forward else "grad_branch")
        dtype = self.branch_dtype if is_branch else self.dtype
        return Form((self.rows, self.cols), dtype, self.width, self.padded)


def inputs(case: NormCase) -> Arrays:
    """The inputs of a case, the same each time: rows as the kernel gets them."""
    shape = (case.rows, case.cols)
    random = np.random.default_rng(zlib.crc32(repr((case.op, shape)).encode()))
    normal = random.standard_normal
    dtype = case.branch_dtype if case.is_forward else case.dtype
    given = {"input": encode(normal(shape) * 2 + 1, dtype)}
    if case.weight:
        weight = normal((1, case.cols)) - case.weight_offset
        given["weight"] = encode(weight, case.parameter_dtype)
    if case.is_forward:
        if case.bias:
            given["bias"] = encode(normal((1, case.cols)), case.parameter_dtype)
        if case.adds:
            given["residual"] = encode(normal(shape), case.dtype)
        return given
    given["grad_output"] = encode(normal(shape), case.dtype)
    if case.adds and case.with_sum:
        given["grad_sum"] = encode(normal(shape), case.dtype)
    return given | statistics(case, decode(given["input"], case.dtype))


def statistics(case: NormCase, x: np.ndarray) -> Arrays:
    """The statistics of rows, as the forward pass saves them."""
    mean, rstd = exact_statistics(case, x)
    found = {"mean": mean, "rstd": rstd} if case.has_mean else {"rstd": rstd}
    return {name: encode(values, case.statistics) for name, values in found.items()}


def exact_statistics(case: NormCase, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """mean and rstd, by the definition."""
    mean = x.mean(-1, keepdims=True) if case.has_mean else np.zeros((len(x), 1))
    squares = np.square(x - mean).sum(-1, keepdims=True)
    return mean, 1 / DEFINITIONS[case.kind].scale(squares, case.cols, case.eps)


def args_of(case: NormCase, dropout: Dropout) -> Args:
    """The arguments of a launch but for its arrays."""
    options = {"rounds_normalized": case.rounds_normalized} if case.is_forward else {}
    return (NormForward if case.is_forward else NormBackward)(
        kind=KINDS.index(case.kind),
        dropout=dropout,
        rows=case.rows,
        cols=case.cols,
        eps=case.eps,
        weight_offset=case.weight_offset,
        **options,
    )


class Prepared(InDeviceMemory):
    def _args(self) -> Args:
        return args_of(self._case, self._dropout())


def bases() -> list[NormCase]:
    """A case for each op, dtype and width of vectors (16 bytes, 4, one element), of one vector,
    with and without what comes with a residual."""
    return [
        NormCase(op, dtype, rows=1, cols=width, width=width, adds=adds)
        for op in OPS
        for dtype in DTYPES
        for adds in (False, True)
        for width in row_cases.widths(dtype)
    ]


def varied(case: NormCase, i: int) -> NormCase:
    """With the i-th choice of options; the choices repeat after different numbers, so that many
    cases see most pairs of them. Of one element there is no standard deviation."""
    kinds = KINDS if case.cols > 1 else KINDS[:2]
    is_short = DTYPES[case.dtype].itemsize == 2
    mixes = case.adds and case.dtype == "float32"
    p = 0.3 if i % 3 == 1 else 0.0
    return replace(
        case,
        kind=kinds[i // 3 % len(kinds)],
        parameters="float32" if is_short and i % 5 in (1, 4) else "",
        padded=i // 2 % 2 == 1,
        weight=i % 7 != 3,
        bias=i % 5 != 3,
        weight_offset=1.0 if i % 3 == 2 else 0.0,
        rounds_normalized=i % 5 == 2,
        with_sum=i % 4 != 1 or (p == 0 and not case.is_forward),
        p=p,
        branch=("", "bfloat16", "float16")[i // 2 % 3] if mixes else "",
    )


def boundary_lengths(emulator: Emulator, base: NormCase) -> list[int]:
    one_launch = replace(base, wanted=(True, False, False))
    args = Prepared(emulator, one_launch, inputs(one_launch)).args
    return row_cases.boundary_lengths(emulator, args, base.width, MAX_LENGTH)


def boundary_cases(emulator: Emulator, base: NormCase, elements: int = 1000) -> Iterator[NormCase]:
    """At each of these lengths rows of so many elements together, at least five and at most 1000.

    Column sums of long rows cost more than all else: they are wanted once where a kernel keeps its
    longest row, and once where rows go by segments.
    """
    lengths = boundary_lengths(emulator, base)
    is_widest = base.width == row_cases.widths(base.dtype)[0]
    few = lengths[-1:] if base.adds else lengths[-2:-1] if is_widest else []
    first = zlib.crc32(repr(base).encode())
    for i, cols in enumerate(lengths, first):
        columns = cols <= FEW_COLS or cols in few
        case = replace(base, cols=cols, rows=min(max(5, elements // cols), 1000))
        yield varied(replace(case, wanted=(True, columns, columns)), i)


def cluster_cases(emulator: Emulator) -> Iterator[NormCase]:
    """The shortest rows that a cluster has to hold, for each of its kernels."""
    for i, base in enumerate(bases()):
        if base.dtype == "float64":
            continue
        base = replace(base, rows=3, clusters=True, wanted=(True, False, False))
        if base.width == row_cases.widths(base.dtype)[0]:
            lengths = boundary_lengths(emulator, replace(base, rows=1))
            cases = [replace(base, cols=cols) for cols in lengths]
            yield varied(next(case for case in cases if is_in_clusters(emulator, case)), i)
        elif base.width == 1 and not base.adds:
            yield varied(replace(base, cols=row_cases.NARROW_CLUSTER_COLS), i)


def is_in_clusters(emulator: Emulator, case: NormCase) -> bool:
    kernels = emulator.kernels_of(Prepared(emulator, case, inputs(case)).args)
    return any("_cluster<" in kernel for kernel in kernels)


def racing_candidates(emulator: Emulator) -> list[NormCase]:
    """As those of rows.py. Of kernels that keep rows the short ones sum columns."""
    candidates = [case for base in bases() for case in boundary_cases(emulator, base)]
    candidates = [
        case if case.adds or case.cols <= FEW_COLS else replace(case, wanted=(True, False, False))
        for case in candidates
    ]
    return row_cases.several_warps_first([replace(case, rows=3) for case in candidates])
