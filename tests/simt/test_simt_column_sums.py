"""The sums over rows on the emulator, through the package's own launch code."""

from __future__ import annotations

import numpy as np
import pytest

from . import families
from .cases import column_sums as column_sums_cases
from .cases.column_sums import ColumnSumsCase
from .cases.rows import decode
from .emulator.library import DTYPES, Config


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("padded", [False, True])
def test_rows_are_added_in_their_order(emulator, dtype, rows, padded):
    for cols in column_sums_cases.LENGTHS:
        case = ColumnSumsCase(dtype, rows, cols, padded)
        given = families.inputs(case)
        expected = given["sums"]
        for row in decode(given["input"], dtype).astype(expected.dtype):
            expected = expected + row
        assert np.array_equal(families.run(emulator, case, given)["sums"], expected), case


def test_neither_schedule_nor_grid_changes_a_bit(in_any_order):
    case = ColumnSumsCase("bfloat16", 3, 9000)
    in_any_order(case, families.inputs(case), Config(max_grid=2))
