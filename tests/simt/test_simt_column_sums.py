"""The sums over rows on the emulator, through the package's own launch code."""

from __future__ import annotations

import pytest

from . import families
from .cases import column_sums as column_sums_cases
from .cases.column_sums import ColumnSumsCase
from .cases.rows import decode, encode
from .emulator.library import DTYPES, Config


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("is_last", [False, True])
def test_rows_are_added_in_their_order(emulator, dtype, rows, padded, is_first, is_last):
    for cols in column_sums_cases.LENGTHS:
        case = ColumnSumsCase(dtype, rows, cols, padded, is_first, is_last)
        given = families.inputs(case)
        sums = column_sums_cases.joined(case, given) * (not is_first)
        for row in decode(given["input"], dtype).astype(sums.dtype):
            sums = sums + row
        kept = column_sums_cases.kept(case, sums)
        expected = {"sums": encode(sums, dtype)} if is_last else kept
        results = families.run(emulator, case, given)
        for name, values in expected.items():
            assert results[name].tobytes() == values.tobytes(), case


def test_neither_schedule_nor_grid_changes_a_bit(in_any_order):
    case = ColumnSumsCase("bfloat16", 3, 1300)
    in_any_order(case, families.inputs(case), Config(max_grid=2))
