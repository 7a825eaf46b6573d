"""What a softmax in two steps is run on: the statistics of rows, and the softmax from them. Needs
numpy only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..emulator.library import DTYPES, VECTOR_BYTES, Args, Emulator
from ..emulator.structs import SoftmaxApply, SoftmaxStatistics
from . import rows as row_cases
from .rows import Arrays, Case, decode

#: Up to here the number of segments changes, and their length.
MAX_LENGTH = 10_000
STATISTICS, APPLY = "softmax_statistics", "softmax_apply"
LENGTHS = (1, 40, 1000, 4096, 4104, 9000)


@dataclass(frozen=True)
class StatisticsCase:
    op: str
    of: Case  # the softmax forward

    @property
    def wide(self) -> str:
        """The dtype of the statistics."""
        return "float64" if self.of.dtype == "float64" else "float32"


def inputs(case: StatisticsCase) -> Arrays:
    given = row_cases.inputs(case.of)
    return given if case.op == STATISTICS else given | exact_statistics(case, given)


def exact_statistics(case: StatisticsCase, given: Arrays) -> Arrays:
    x = decode(given["input"], case.of.dtype)
    max = x.max(-1, keepdims=True)
    sum = np.exp(x - max).sum(-1, keepdims=True)
    return {"max": max.astype(DTYPES[case.wide]), "sum": sum.astype(DTYPES[case.wide])}


def output_dtypes(case: StatisticsCase) -> dict[str, str]:
    if case.op == STATISTICS:
        return {"max": case.wide, "sum": case.wide}
    return {"output": case.of.other}


class Prepared:
    """A case in device memory: launch ``args``, then read the outputs."""

    def __init__(self, emulator: Emulator, case: StatisticsCase, given: Arrays) -> None:
        of, outputs = case.of, output_dtypes(case)
        dtypes = {"input": of.dtype, "max": case.wide, "sum": case.wide} | outputs
        self._arrays = {}
        for name in (*given, *outputs):
            is_row = name in ("input", "output")
            alignment = (of.width if is_row else 1) * DTYPES[dtypes[name]].itemsize
            shape = (of.rows, of.cols if is_row else 1)
            padded = of.padded and is_row
            alignment = min(VECTOR_BYTES, alignment)
            self._arrays[name] = emulator.array(shape, dtypes[name], alignment, padded)
            if name in given:
                self._arrays[name].values[:] = given[name]
        self._outputs = outputs
        self.args = self._args(case)
        self._workspace = emulator.workspace(self.args)

    def _args(self, case: StatisticsCase) -> Args:
        arrays, sizes = self._arrays, {"rows": case.of.rows, "cols": case.of.cols}
        statistics = {name: arrays[name].address for name in ("max", "sum")}
        if case.op == STATISTICS:
            return SoftmaxStatistics(arrays["input"].rows, **statistics, **sizes)
        return SoftmaxApply(arrays["input"].rows, arrays["output"].rows, **statistics, **sizes)

    def outputs(self) -> Arrays:
        return {name: self._arrays[name].read() for name in self._outputs}


def bases() -> list[StatisticsCase]:
    plain = [base for base in row_cases.bases() if base.op == "softmax_forward"]
    applied = [StatisticsCase(APPLY, base) for base in plain]
    return [
        *(StatisticsCase(STATISTICS, base) for base in plain if base.other == base.dtype),
        *applied,
    ]


def length_cases(base: StatisticsCase) -> Iterator[StatisticsCase]:
    """Rows of one segment and of several."""
    for i, cols in enumerate(LENGTHS):
        whole = -(-cols // base.of.width) * base.of.width
        yield replace(base, of=replace(base.of, cols=whole, rows=3, padded=i % 2 == 1))


def racing_candidates(emulator: Emulator) -> list[StatisticsCase]:
    return [case for base in bases() for case in length_cases(base)]
