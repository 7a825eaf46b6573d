"""What a softmax in two steps is run on: the statistics of rows, and the softmax from them. Needs
numpy only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..emulator.library import DTYPES, Args, Emulator
from ..emulator.structs import SoftmaxApply, SoftmaxStatistics
from . import rows as row_cases
from .prepared import Arrays, Form, InDeviceMemory
from .rows import Case, decode

#: Up to here the number of segments changes, and their length.
MAX_LENGTH = 10_000
STATISTICS, APPLY = "softmax_statistics", "softmax_apply"
LENGTHS = (1, 40, 1000, 4096, 4104, 9000)


@dataclass(frozen=True)
class StatisticsCase:
    op: str
    of: Case  # the softmax forward

    @property
    def dtype(self) -> str:
        return self.of.dtype

    @property
    def wide(self) -> str:
        """The dtype of the statistics."""
        return "float64" if self.of.dtype == "float64" else "float32"

    def output_dtypes(self) -> dict[str, str]:
        if self.op == STATISTICS:
            return {"max": self.wide, "sum": self.wide}
        return {"output": self.of.other}

    def form(self, name: str) -> Form:
        of = self.of
        if name in ("max", "sum"):
            return Form((of.rows, 1), self.wide)
        dtype = of.dtype if name == "input" else of.other
        return Form((of.rows, of.cols), dtype, of.width, of.padded)


def inputs(case: StatisticsCase) -> Arrays:
    given = row_cases.inputs(case.of)
    return given if case.op == STATISTICS else given | exact_statistics(case, given)


def exact_statistics(case: StatisticsCase, given: Arrays) -> Arrays:
    x = decode(given["input"], case.of.dtype)
    max = x.max(-1, keepdims=True)
    sum = np.exp(x - max).sum(-1, keepdims=True)
    return {"max": max.astype(DTYPES[case.wide]), "sum": sum.astype(DTYPES[case.wide])}


class Prepared(InDeviceMemory):
    def _args(self) -> Args:
        args = SoftmaxStatistics if self._case.op == STATISTICS else SoftmaxApply
        return args(rows=self._case.of.rows, cols=self._case.of.cols)


def bases() -> list[StatisticsCase]:
    plain = [base for base in row_cases.bases() if base.op == "softmax_forward"]
    same = [base for base in plain if base.other == base.dtype]
    cases = [StatisticsCase(STATISTICS, base) for base in same]
    return cases + [StatisticsCase(APPLY, base) for base in plain]


def boundary_cases(emulator: Emulator, base: StatisticsCase) -> Iterator[StatisticsCase]:
    """Rows of one segment and of several."""
    for i, cols in enumerate(LENGTHS):
        whole = -(-cols // base.of.width) * base.of.width
        yield replace(base, of=replace(base.of, cols=whole, rows=3, padded=i % 2 == 1))


def racing_candidates(emulator: Emulator) -> list[StatisticsCase]:
    return [case for base in bases() for case in boundary_cases(emulator, base)]
