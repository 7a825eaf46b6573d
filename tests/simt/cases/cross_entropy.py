"""What cross_entropy is run on. Needs numpy only."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..emulator.library import DTYPES, VECTOR_BYTES, Args, DeviceArray, Emulator
from ..emulator.structs import CrossEntropyBackward, CrossEntropyForward, Logits, Targets
from .prepared import Arrays, Form, InDeviceMemory
from .rows import decode, encode

FORWARD, BACKWARD = "cross_entropy_forward", "cross_entropy_backward"
OPS = [FORWARD, BACKWARD]

#: Columns of a segment.
SEGMENT = 16_384
#: Up to here the number of threads of a row changes, and whether it has segments.
MAX_LENGTH = 20_000
#: Rows of one thread and of several, of a warp and of several, of a tile, of more, and of segments;
#: of whole vectors and of others.
LENGTHS = (1, 2, 10, 33, 128, 1000, 4096, 4097, 16_392, 33_000)
IGNORED = -100


@dataclass(frozen=True)
class CrossEntropyCase:
    op: str
    dtype: str
    rows: int
    cols: int
    aligned: bool = True  # to 16 bytes, or to an element alone
    padded: bool = False
    label_smoothing: float = 0.0
    scale: float = 1.0
    softcap: float = 0.0
    has_ignored: bool = True
    reads_ignored: bool = False
    int32: bool = False
    in_place: bool = False

    @property
    def wide(self) -> str:
        """The dtype of statistics."""
        return "float64" if self.dtype == "float64" else "float32"

    def output_dtypes(self) -> dict[str, str]:
        if self.op == FORWARD:
            return dict.fromkeys(("losses", "lse", "lse_error"), self.wide)
        return {"grad_input": self.dtype}

    def form(self, name: str) -> Form:
        if name in ("input", "grad_input"):
            width = VECTOR_BYTES // DTYPES[self.dtype].itemsize if self.aligned else 1
            return Form((self.rows, self.cols), self.dtype, width, self.padded)
        if name == "target":
            return Form((self.rows, 1), "int32" if self.int32 else "int64")
        return Form((self.rows, 1), self.wide)


def logits_of(case: CrossEntropyCase, stored: np.ndarray) -> np.ndarray:
    """The logits in float64, or in 80 bits of float64."""
    x = decode(stored, case.dtype)
    x = x.astype(np.longdouble) if case.dtype == "float64" else x
    x = x * case.scale
    return np.tanh(x / case.softcap) * case.softcap if case.softcap else x


def is_ignored(case: CrossEntropyCase, target: np.ndarray) -> np.ndarray:
    return (target == IGNORED) & case.has_ignored


def is_unread(case: CrossEntropyCase, target: np.ndarray) -> np.ndarray:
    return is_ignored(case, target) & (not case.reads_ignored)


def exact(case: CrossEntropyCase, given: Arrays) -> Arrays:
    """The losses, and lse, as they would be without rounding, with one column."""
    x, target = logits_of(case, given["input"]), given["target"].astype(np.int64)
    with np.errstate(all="ignore"):
        own = np.take_along_axis(x, np.clip(target, 0, case.cols - 1), 1)
        classes = np.arange(case.cols) == target
        top = x.max(-1, keepdims=True)
        shift = np.where(np.isfinite(top), top, 0)
        lse = shift + np.log(np.exp(x - shift).sum(-1, keepdims=True))
        others = np.where(classes, 0, np.exp(x - own)).sum(-1, keepdims=True)
        losses = np.where(np.isfinite(others), np.log1p(others), lse - own)
        smoothed = lse - x.mean(-1, keepdims=True) if case.label_smoothing else np.zeros_like(lse)
    losses = (1 - case.label_smoothing) * losses + case.label_smoothing * smoothed
    is_class = (target >= 0) & (target < case.cols)
    losses = np.where(is_class & np.isfinite(lse), losses, np.nan)
    ignored = is_ignored(case, target)
    lse = np.where(is_unread(case, target), 0, lse)
    return {"losses": np.where(ignored, 0, losses), "lse": lse}


def exact_gradient(case: CrossEntropyCase, given: Arrays) -> np.ndarray:
    """The gradient of the input, from the exact losses and lse."""
    x, target = logits_of(case, given["input"]), given["target"].astype(np.int64)
    results = exact(replace(case, reads_ignored=True), given)
    ignored, e = is_ignored(case, target), case.label_smoothing
    grad = np.where(ignored, 0, given["grad_losses"].astype(x.dtype))
    p = np.exp(x - results["lse"])
    missing = np.expm1(-results["losses"]) if e == 0 else p - 1
    classes = (np.arange(case.cols) == target) & ~ignored
    of_loss = np.where(classes, missing, p) + e * classes - e / case.cols
    gradient = grad * of_loss + given["grad_lse"].astype(x.dtype) * p
    slope = 1 - (x / case.softcap) ** 2 if case.softcap else 1.0
    return gradient * case.scale * slope


def inputs(case: CrossEntropyCase) -> Arrays:
    shape = (case.rows, case.cols)
    random = np.random.default_rng(zlib.crc32(repr((case.op, shape)).encode()))
    target = random.integers(0, case.cols, (case.rows, 1))
    target[0] = case.cols - 1
    if case.has_ignored and case.rows > 2:
        target[2] = IGNORED
    given = {
        "input": encode(random.standard_normal(shape) * 3, case.dtype),
        "target": target.astype(np.int32 if case.int32 else np.int64),
    }
    if case.op == FORWARD:
        return given
    wide = DTYPES[case.wide]
    results = exact(replace(case, reads_ignored=True), given)
    lse = results["lse"].astype(wide)
    return given | {
        "losses": results["losses"].astype(wide),
        "lse": lse,
        "lse_error": (results["lse"] - lse).astype(wide) * (case.wide == "float32"),
        "grad_losses": random.standard_normal((case.rows, 1)).astype(wide),
        "grad_lse": random.standard_normal((case.rows, 1)).astype(wide),
    }


class Prepared(InDeviceMemory):
    def _array(self, name: str) -> DeviceArray:
        if name == "grad_input" and self._case.in_place:
            return self.arrays["input"]
        return super()._array(name)

    def _args(self) -> Args:
        case, arrays = self._case, self.arrays
        options = {"reads_ignored": case.reads_ignored} if case.op == FORWARD else {}
        return (CrossEntropyForward if case.op == FORWARD else CrossEntropyBackward)(
            Logits(arrays["input"].rows, case.scale, case.softcap),
            Targets(arrays["target"].address, not case.int32, case.has_ignored, IGNORED),
            rows=case.rows,
            cols=case.cols,
            label_smoothing=case.label_smoothing,
            **options,
        )


def bases() -> list[CrossEntropyCase]:
    """A case for each op and dtype, aligned and not, of one column."""
    return [
        CrossEntropyCase(op, dtype, 1, 1, aligned)
        for op in OPS
        for dtype in DTYPES
        for aligned in (True, False)
    ]


def boundary_cases(emulator: Emulator, base: CrossEntropyCase) -> Iterator[CrossEntropyCase]:
    """Rows of each length, with other options each time."""
    for i, cols in enumerate(LENGTHS):
        yield replace(
            base,
            cols=cols,
            rows=5 if cols < SEGMENT else 3,
            padded=i % 2 == 1,
            label_smoothing=(0.0, 0.1)[i // 2 % 2],
            scale=(1.0, 0.7, 1.0, -1.5)[i % 4],
            softcap=(0.0, 0.0, 4.0)[i % 3],
            has_ignored=i % 3 > 0,
            reads_ignored=i % 2 == 0,
            int32=i % 2 == 0,
            in_place=i % 3 == 1,
        )


def racing_candidates(emulator: Emulator) -> list[CrossEntropyCase]:
    long = [replace(base, rows=3, cols=SEGMENT + 8) for base in bases()]
    return [*long, *(replace(base, rows=9, cols=100) for base in bases())]
