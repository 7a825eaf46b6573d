"""What the sums over rows are run on. Needs numpy only."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..emulator.library import DTYPES, DeviceArray, Emulator
from ..emulator.structs import ColumnSums
from .rows import Arrays, encode

#: A block has 2048 columns.
LENGTHS = (1, 300, 2048, 2049, 5000)
#: Beyond a block the launches differ in the number of blocks alone.
MAX_LENGTH = 5000


@dataclass(frozen=True)
class ColumnSumsCase:
    dtype: str
    rows: int
    cols: int
    padded: bool = False

    op = "column_sums"

    @property
    def wide(self) -> str:
        """The dtype of the sums."""
        return "float64" if self.dtype == "float64" else "float32"


def inputs(case: ColumnSumsCase) -> Arrays:
    random = np.random.default_rng(case.cols)
    x = random.standard_normal((case.rows, case.cols))
    sums = random.standard_normal((1, case.cols)).astype(DTYPES[case.wide])
    return {"input": encode(x, case.dtype), "sums": sums}


def output_dtypes(case: ColumnSumsCase) -> dict[str, str]:
    return {"sums": case.wide}


class Prepared:
    """A case in device memory."""

    def __init__(self, emulator: Emulator, case: ColumnSumsCase, given: Arrays) -> None:
        alignment = DTYPES[case.dtype].itemsize
        shape = (case.rows, case.cols)
        self.arrays: dict[str, DeviceArray] = {
            "input": emulator.array(shape, case.dtype, alignment, case.padded),
            "sums": emulator.array((1, case.cols), case.wide, 8),
        }
        for name, array in self.arrays.items():
            array.values[:] = given[name]
        self.args = ColumnSums(self.arrays["input"].rows, self.arrays["sums"].address, *shape)

    def outputs(self) -> Arrays:
        return {"sums": self.arrays["sums"].read()}


def bases() -> list[ColumnSumsCase]:
    """A case for each dtype, of one column."""
    return [ColumnSumsCase(dtype, 3, 1) for dtype in DTYPES]


def racing_candidates(emulator: Emulator) -> list[ColumnSumsCase]:
    return [replace(base, cols=LENGTHS[-1]) for base in bases()]
