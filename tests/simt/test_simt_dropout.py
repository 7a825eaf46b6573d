"""Dropout on the emulator, through the package's own launch code."""

from __future__ import annotations

import numpy as np
import pytest

from . import families
from .cases import dropout as dropout_cases
from .cases.dropout import WIDTH, DropoutCase
from .cases.rows import decode, encode
from .emulator.library import DTYPES, Config, EmulatorError


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("width", [WIDTH, 1])
@pytest.mark.parametrize("relu", [False, True])
def test_elements_are_kept_and_scaled_to_the_bit(emulator, dtype, p, padded, width, relu):
    for cols in dropout_cases.LENGTHS:
        if cols % width:
            continue
        case = DropoutCase(dtype, 5, cols, width, padded, p, relu)
        given = families.inputs(case)
        output = families.run(emulator, case, given)["output"]
        assert output.tobytes() == dropout_cases.expected(case, given).tobytes(), case


@pytest.mark.parametrize("cols", [65, 9001])
def test_neither_schedule_nor_grid_changes_a_bit(in_any_order, cols):
    case = DropoutCase("bfloat16", max(3, 10_000 // cols), cols)
    in_any_order(case, families.inputs(case), Config(max_grid=2))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [WIDTH, 1])
def test_nan_stays_and_infinity_becomes_nan_where_it_is_dropped(emulator, dtype, width):
    case = DropoutCase(dtype, 2, 200, width, relu=True)
    x = encode(np.array([[np.nan], [np.inf]]) + np.zeros(case.cols), dtype)
    output = decode(families.run(emulator, case, {"input": x})["output"], dtype)
    assert np.isnan(output[0]).all()
    kept = case.factors()[1] > 0
    assert (output[1][kept] == np.inf).all() and np.isnan(output[1][~kept]).all()


def test_results_of_another_dtype_than_the_input_are_refused(emulator):
    args = families.prepared_args(emulator, DropoutCase("float32", 1, 64))
    args.output.dtype = list(DTYPES).index("float64")
    with pytest.raises(EmulatorError, match="status 1"):
        emulator.launch(args)
