"""Rows that are cut into segments, a block each: the same bits alone, in any batch and schedule."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from . import cases, families, norm_cases
from .cases import Case, encode
from .emulator import DTYPES, SCHEDULES, EmulatorError
from .families import RowsCase
from .judge import Judge, same_bits, tensor
from .norm_cases import KINDS, NormCase

#: Columns of a segment; rows of more than 64 segments have longer ones.
SEGMENT = 4096
DOUBLES = 64 * SEGMENT
ROWS_ONLY = (True, False, False)


def long_cases(cols: int, rows: int, width: int, dtype: str) -> list[RowsCase]:
    """Of every op, softmax and its logarithm, LayerNorm with and without a residual."""
    width = min(width, 16 // DTYPES[dtype].itemsize)
    softmax = [
        Case(op, dtype, dtype, rows, cols, width, log=log)
        for op, log in product(cases.OPS, (False, True))
    ]
    norms = [
        NormCase(op, dtype, rows, cols, width, adds=adds, p=0.3, wanted=ROWS_ONLY)
        for op, adds in product(norm_cases.OPS, (False, True))
    ]
    return [*softmax, *norms]


def segments_of(emulator, case: RowsCase) -> int:
    """Blocks of a row, by the bytes of the workspace; a pair of floats for each."""
    forward = replace(case, op="softmax_forward")
    return emulator.workspace(families.prepared_args(emulator, forward)).values.size // 8 // case.rows


#: One column off the multiples of a segment, of a tile (of 4-byte and single elements), and of the
#: rows that have twice as long segments; widths that divide the length, and that do not.
LENGTHS = [
    *[(2 * SEGMENT + 1, 1), (3 * SEGMENT - 1, 1), (3 * SEGMENT, 1), (3 * SEGMENT + 1, 1)],
    *[(8 * SEGMENT + 1024 + offset, 8) for offset in (-8, 0, 8)],
    *[(DOUBLES - 8, 8), (DOUBLES, 8), (DOUBLES + 8, 8)],
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("cols, width", LENGTHS)
def test_error_is_no_larger_than_eagers_where_segments_begin(emulator, dtype, cols, width):
    judge = Judge()
    for case in long_cases(cols, 2, width, dtype):
        given = families.inputs(case)
        judge.add(case, given, families.run(emulator, case, given))
    judge.conclude()


def test_segments_double_with_the_row_and_are_never_more_than_1024(emulator):
    def count(cols):
        return segments_of(emulator, Case("softmax_forward", "bfloat16", "bfloat16", 1, cols, 8))

    assert [count(n) for n in (DOUBLES, DOUBLES + 8)] == [64, 33]
    assert [count(n) for n in (4 * DOUBLES, 4 * DOUBLES + 8)] == [128, 65]
