"""The sums over rows on the emulator, through the package's own launch code."""

from __future__ import annotations

import numpy as np
import pytest

from .cases.rows import decode, encode
from .emulator.library import DTYPES, SCHEDULES, Config
from .emulator.structs import ColumnSums


def sums_of(emulator, x, start, dtype, padded=False, config=None):
    """``start`` with the rows of ``x`` added, in the accumulator's dtype."""
    emulator.configure(config or Config())
    wide = "float64" if dtype == "float64" else "float32"
    rows = emulator.array(x.shape, dtype, DTYPES[dtype].itemsize, padded)
    sums = emulator.array((1, x.shape[1]), wide, 8)
    rows.values[:], sums.values[:] = encode(x, dtype), start
    emulator.launch(ColumnSums(rows.rows, sums.address, *x.shape))
    return sums.read()[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (1, 5000), (7, 2047), (3, 2049)])
def test_rows_are_added_in_their_order(emulator, dtype, shape):
    random = np.random.default_rng(0)
    x = decode(encode(random.standard_normal(shape), dtype), dtype)
    wide = np.float64 if dtype == "float64" else np.float32
    expected = start = random.standard_normal(shape[1]).astype(wide)
    for row in x:
        expected = expected + row.astype(wide)
    for padded in (False, True):
        found = sums_of(emulator, x, start, dtype, padded)
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_no_schedule_and_no_grid_changes_a_bit(emulator, schedule):
    x = np.random.default_rng(0).standard_normal((3, 9000)).astype(np.float32)
    start = np.zeros(9000, np.float32)
    first = sums_of(emulator, x, start, "float32", config=schedule)
    assert np.array_equal(sums_of(emulator, x, start, "float32", config=Config(max_grid=2)), first)
