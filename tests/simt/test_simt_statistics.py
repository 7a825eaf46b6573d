"""softmax in two steps on the emulator, through the package's own launch code."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from . import families
from .cases import statistics as statistics_cases
from .cases.rows import Case, encode
from .cases.statistics import APPLY, STATISTICS, StatisticsCase
from .emulator.library import Config, EmulatorError
from .judge import assert_row_is_alike


@pytest.mark.parametrize("op", [STATISTICS, APPLY])
def test_neither_schedule_nor_batch_nor_grid_changes_a_bit(emulator, in_any_order, op):
    of = Case("softmax_forward", "bfloat16", "bfloat16", rows=5, cols=9000, width=8)
    case = StatisticsCase(op, of)
    given = statistics_cases.inputs(case)
    first = in_any_order(case, given, Config(max_grid=4))
    assert_row_is_alike(emulator, case, 4, given, first)


def test_hidden_segments_and_rows_and_nan_come_through(emulator):
    of = Case("softmax_forward", "float32", "float32", rows=3, cols=9000, width=4)
    x = np.random.default_rng(0).standard_normal((3, 9000))
    x[0, :5000], x[1], x[2, 8999] = -np.inf, -np.inf, np.nan
    found = families.run(emulator, StatisticsCase(STATISTICS, of), {"input": encode(x, "float32")})
    assert found["max"][0] == np.float32(x[0, 5000:].max()) and found["sum"][0] > 1
    assert found["max"][1] == -np.inf and found["sum"][1] == 0 and np.isnan(found["sum"][2])
    given = {"input": encode(x, "float32")} | found
    y = families.run(emulator, StatisticsCase(APPLY, of), given)["output"]
    assert (y[0, :5000] == 0).all() and abs(y[0].sum() - 1) < 1e-5
    assert np.isnan(y[1]).all() and np.isnan(y[2]).all()


@pytest.mark.parametrize("dtypes", [("float16", "float64"), ("float32", "bfloat16")])
def test_results_of_another_dtype_than_the_input_or_float_are_refused(emulator, dtypes):
    case = StatisticsCase(STATISTICS, Case("softmax_forward", *dtypes, 1, 64, 1))
    given = statistics_cases.inputs(case)
    apply = replace(case, op=APPLY)
    with pytest.raises(EmulatorError, match="status 1"):
        families.run(emulator, apply, given | families.run(emulator, case, given))
