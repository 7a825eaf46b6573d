"""What the sums over rows are run on. Needs numpy only."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..emulator.library import DTYPES, Args, Emulator
from ..emulator.structs import ColumnSums
from .prepared import Arrays, Form, InDeviceMemory
from .rows import encode

#: A block has 256 columns.
LENGTHS = (1, 100, 256, 257, 1000)
#: Beyond a block the launches differ in the number of blocks alone.
MAX_LENGTH = 1000


@dataclass(frozen=True)
class ColumnSumsCase:
    dtype: str
    rows: int
    cols: int
    padded: bool = False
    is_first: bool = False
    is_last: bool = True

    op = "column_sums"

    @property
    def wide(self) -> str:
        """The dtype of the sums between calls."""
        return "float64" if self.dtype == "float64" else "float32"

    @property
    def has_halves(self) -> bool:
        """Whether sums between calls are in halves."""
        return DTYPES[self.dtype].itemsize == 2

    def output_dtypes(self) -> dict[str, str]:
        has_lower = self.has_halves and not self.is_last
        return {"sums": self.dtype} | ({"lower": "bfloat16"} if has_lower else {})

    def form(self, name: str) -> Form:
        if name == "input":
            return Form((self.rows, self.cols), self.dtype, padded=self.padded)
        # Any array of 16 bits will do for the lower halves.
        return Form((1, self.cols), "bfloat16" if name == "lower" else self.dtype)


def kept(case: ColumnSumsCase, sums: np.ndarray) -> Arrays:
    """Sums as they are between calls."""
    if not case.has_halves:
        return {"sums": sums}
    bits = sums.view(np.uint32)
    upper, lower = (bits >> 16).astype(np.uint16), bits.astype(np.uint16)
    return {"sums": upper.view(DTYPES[case.dtype]), "lower": lower}


def joined(case: ColumnSumsCase, given: Arrays) -> np.ndarray:
    """The sums that are kept."""
    if not case.has_halves:
        return given["sums"]
    upper = given["sums"].view(np.uint16).astype(np.uint32)
    return (upper << 16 | given["lower"]).view(np.float32)


def inputs(case: ColumnSumsCase) -> Arrays:
    random = np.random.default_rng(case.cols)
    x = random.standard_normal((case.rows, case.cols))
    sums = random.standard_normal((1, case.cols)).astype(DTYPES[case.wide])
    return {"input": encode(x, case.dtype), **kept(case, sums)}


class Prepared(InDeviceMemory):
    def _args(self) -> Args:
        case = self._case
        return ColumnSums(
            rows=case.rows, cols=case.cols, is_first=case.is_first, is_last=case.is_last
        )


def bases() -> list[ColumnSumsCase]:
    """A case for each dtype, of one column."""
    return [ColumnSumsCase(dtype, 3, 1) for dtype in DTYPES]


def racing_candidates(emulator: Emulator) -> list[ColumnSumsCase]:
    return [replace(base, cols=LENGTHS[-1]) for base in bases()]
