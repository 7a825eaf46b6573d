"""The softmax and the norms over a dimension that is not the last on the emulator, through the
package's own launch code."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from .cases.norm import PARAMETERS
from .cases.rows import encode
from .cases.spatial import NORMS, OPS, SOFTMAXES, SpatialCase
from .emulator.library import DTYPES, Config
from .families import inputs, prepare, prepared_args, run
from .judge import assert_nonfinite_as_in_eager, assert_within_bounds

SOFTMAX, SOFTMAX_BACKWARD = SOFTMAXES
NORM, NORM_BACKWARD = NORMS
ROWS_ONLY = (True, False, False)

#: One thread a column, several in several segments, and the most: kept in registers, in shared
#: memory and not at all. With a second dtype, and a kind of norm.
FEW = [
    SpatialCase(op, "bfloat16", other, 3, *sizes, log=sizes[0] == 50, kind=kind)
    for op in OPS
    for sizes, other, kind in (
        ((3, 40, 8), "bfloat16", "layer"),
        ((50, 33, 1), "bfloat16", "rms"),
        ((300, 72, 8), "float32", "layer"),
        ((1500, 3, 1), "bfloat16", "rms"),
        ((3073, 8, 8), "bfloat16", "layer"),
    )
]


def id_of(case):
    return f"{case.op}-{case.dim_size}"


few = pytest.mark.parametrize("case", FEW, ids=id_of)
every_op = pytest.mark.parametrize("op", OPS)
#: Changes only the order of sums over columns.
SPLIT = Config(max_grid=2)


@few
def test_neither_order_nor_split_nor_less_shared_memory_changes_a_bit(in_any_order, case):
    """Also of unwritten memory, and where columns are not kept in shared memory."""
    in_any_order(case, None, Config(max_shared_bytes=8 << 10))
    in_any_order(replace(case, wanted=ROWS_ONLY), None, SPLIT)


@few
def test_a_column_alone_and_among_others_has_equal_bits(emulator, case):
    case = replace(case, wanted=ROWS_ONLY)
    batch, rows = case.as_rows(run(emulator, case)), case.as_rows(inputs(case))
    alone = replace(case, outer=1, inner=1, width=1)
    for row in (0, case.inner - 1, case.outer * case.inner - 1):
        own = {
            name: values if name in PARAMETERS else values[row : row + 1]
            for name, values in rows.items()
        }
        outputs = alone.as_rows(run(emulator, alone, alone.as_slices(own)))
        for name, values in outputs.items():
            assert values[0].tobytes() == batch[name][row].tobytes(), (name, row)


@pytest.mark.parametrize("case", [case for case in FEW if not case.is_norm], ids=id_of)
def test_a_split_launch_in_place_gives_the_same_bits(emulator, case):
    case = replace(case, dtype=case.other, width=min(case.width, 4))
    whole = run(emulator, case)
    emulator.configure(SPLIT)
    prepared = prepare(emulator, case, inputs(case))
    source, to = ("input", "output") if case.op == SOFTMAX else ("grad_output", "grad_input")
    assert prepared.launch_over(source, to).tobytes() == whole[to].tobytes()


@every_op
@pytest.mark.parametrize("dtype, width", [("bfloat16", 8), ("float32", 4), ("bfloat16", 1)])
def test_strips_that_fit_into_shared_memory_are_staged_there(emulator, op, dtype, width):
    """Shorter ones stay in registers, and longer ones are loaded twice."""
    longest = 3072 if op in (SOFTMAX, NORM) else 1536
    staged = {256: False, 257: True, longest: True, longest + 1: False}
    for dim_size, is_staged in staged.items():
        case = SpatialCase(op, dtype, dtype, 1, dim_size, 2 * width, width, wanted=ROWS_ONLY)
        shared_bytes = emulator.shared_bytes_of(prepared_args(emulator, case))
        assert (shared_bytes > 0) == is_staged


# --- softmax --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim_size", [8, 200])
def test_inf_and_nan_come_out_as_in_eager(emulator, dtype, dim_size):
    inf, nan = np.inf, np.nan
    values = np.full((dim_size, 6), -inf)
    values[-1] = [-inf, 2.0, inf, nan, 6e4, nan]  # the first is all -inf
    values[1, 3:] = [1.0, -6e4, inf]
    for log in (False, True):
        case = SpatialCase(SOFTMAX, dtype, dtype, 1, dim_size, 6, 1, log=log)
        assert_nonfinite_as_in_eager(emulator, case, encode(values, dtype), dim=0)


# --- norms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("outer, dim_size, inner", [(40, 40, 49), (2, 7, 5000), (700, 3, 8)])
def test_sums_over_many_positions_are_within_their_bounds(emulator, dtype, outer, dim_size, inner):
    sizes = outer, dim_size, inner
    cases = [
        SpatialCase(NORM_BACKWARD, dtype, dtype, *sizes, 1, kind=kind) for kind in ("layer", "rms")
    ]
    assert_within_bounds(emulator, cases)


@pytest.mark.parametrize("offset", [1e2, 1e4])
@pytest.mark.parametrize("dim_size", [64, 1000, 4000])
def test_a_large_mean_costs_no_digits(emulator, dim_size, offset):
    case = SpatialCase(NORM, "float32", "float32", 2, dim_size, 24, 4)
    given = inputs(case)
    given["input"] = encode(given["input"] + offset, "float32")
    assert_within_bounds(emulator, [case], given)


@pytest.mark.parametrize(
    "wanted", [(False, True, False), (False, False, True), (True, True, False)]
)
def test_gradients_have_equal_bits_whichever_are_wanted(emulator, wanted):
    case = SpatialCase(NORM_BACKWARD, "float32", "float32", 3, 20, 24, 4)
    given, everything = inputs(case), run(emulator, case)
    some = run(emulator, replace(case, wanted=wanted), given)
    assert len(some) == sum(wanted)
    assert all(np.array_equal(values, everything[name]) for name, values in some.items())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dim_size", [8, 200, 4000])
def test_a_column_that_is_not_finite_becomes_nan_and_no_other_does(emulator, dim_size, value):
    case = SpatialCase(NORM, "float32", "float32", 1, dim_size, 6, 1)
    given = inputs(case)
    given["input"][dim_size - 1, 2] = value
    is_nan = np.isnan(run(emulator, case, given)["output"])
    assert is_nan[:, 2].all() and not np.delete(is_nan, 2, axis=1).any()
