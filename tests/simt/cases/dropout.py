"""What dropout is run on. Needs numpy only."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .. import philox
from ..emulator.library import DTYPES, Args, Emulator
from ..emulator.structs import DropoutForward
from .prepared import Arrays, Form, InDeviceMemory
from .rows import decode, encode

#: The elements of a thread's vectors, and those of the longest row that a block has as a whole.
WIDTH, TILE = 4, 2048
#: Rows of few threads, of several warps and of several tiles; of whole vectors and of others.
LENGTHS = (1, 6, 64, 65, 300, TILE, TILE + 1, 2 * TILE + 500)
#: Beyond a tile the launches differ in the number of blocks alone.
MAX_LENGTH = 2 * TILE


@dataclass(frozen=True)
class DropoutCase:
    dtype: str
    rows: int
    cols: int
    width: int = 1  # elements of the vectors that all pointers and strides are aligned for
    padded: bool = False
    p: float = 0.3
    relu: bool = False

    op = "dropout_forward"
    drops = True  # a p of 0 has a seed too

    def factors(self) -> np.ndarray:
        return philox.factors(self.rows, self.cols, self.p)

    def output_dtypes(self) -> dict[str, str]:
        return {"output": self.dtype}

    def form(self, name: str) -> Form:
        return Form((self.rows, self.cols), self.dtype, self.width, self.padded)


def inputs(case: DropoutCase) -> Arrays:
    random = np.random.default_rng(case.cols)
    return {"input": encode(random.standard_normal((case.rows, case.cols)), case.dtype)}


def expected(case: DropoutCase, given: Arrays) -> np.ndarray:
    """The output, to the bit: one product, which is rounded to the dtype."""
    wide = np.float64 if case.dtype == "float64" else np.float32
    x = decode(given["input"], case.dtype).astype(wide)
    x = np.where(x < 0, wide(0), x) if case.relu else x
    return encode(x * case.factors().astype(wide), case.dtype)


class Prepared(InDeviceMemory):
    def _args(self) -> Args:
        case = self._case
        sizes = {"rows": case.rows, "cols": case.cols}
        return DropoutForward(dropout=self._dropout(), relu=case.relu, **sizes)


def bases() -> list[DropoutCase]:
    """A case for each dtype and alignment, of one vector."""
    return [
        DropoutCase(dtype, rows=1, cols=width, width=width)
        for dtype in DTYPES
        for width in (WIDTH, 1)
    ]


def racing_candidates(emulator: Emulator) -> list[DropoutCase]:
    return [
        replace(base, rows=3, cols=cols)
        for base in bases()
        for cols in LENGTHS
        if cols % base.width == 0
    ]
