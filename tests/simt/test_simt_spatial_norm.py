"""LayerNorm and RMSNorm over a dimension that is not the last on the emulator, through the
package's own launch code."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from .cases.rows import encode
from .cases.spatial_norm import OPS, Prepared, SpatialNormCase, bases, boundary_cases, inputs
from .emulator.library import DTYPES, SCHEDULES, Config
from .families import run
from .judge import Judge, same_bits

FORWARD, BACKWARD = OPS
#: Where a block keeps elements: SpatialKeep of launch_plan.h.
REGISTERS, SHARED, NOTHING = range(3)

#: One thread a column, several in several segments, and the most: kept in registers, in shared
#: memory and not at all.
FEW = [
    SpatialNormCase(op, "bfloat16", 3, dim_size, inner, width, kind, parameters)
    for op in OPS
    for dim_size, inner, width, kind, parameters in [
        *[(3, 40, 8, "layer", ""), (50, 33, 1, "rms", ""), (300, 72, 8, "layer", "float32")],
        *[(1500, 3, 1, "rms", ""), (3073, 8, 8, "layer", "")],
    ]
]
FEW_IDS = [f"{case.op}-{case.dim_size}" for case in FEW]
ROWS_ONLY = (True, False, False)


@pytest.mark.parametrize("op, dtype", list(product(OPS, DTYPES)))
def test_errors_are_within_their_bounds(emulator, op, dtype):
    judge = Judge()
    for base in bases():
        if (base.op, base.dtype) == (op, dtype):
            for case in boundary_cases(emulator, base):
                given = inputs(case)
                judge.add(case, given, run(emulator, case, given))
    judge.conclude()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("outer, dim_size, inner", [(40, 96, 49), (2, 7, 5000), (700, 3, 8)])
def test_sums_over_many_positions_are_within_their_bounds(emulator, dtype, outer, dim_size, inner):
    judge = Judge()
    for kind in ("layer", "rms"):
        case = SpatialNormCase(BACKWARD, dtype, outer, dim_size, inner, 1, kind)
        given = inputs(case)
        judge.add(case, given, run(emulator, case, given))
    judge.conclude()


@pytest.mark.parametrize("offset", [1e2, 1e4])
@pytest.mark.parametrize("dim_size", [64, 1000, 4000])
def test_a_large_mean_costs_no_digits(emulator, dim_size, offset):
    case = SpatialNormCase(FORWARD, "float32", 2, dim_size, 24, 4)
    given = inputs(case)
    given["input"] = encode(given["input"] + offset, "float32")
    judge = Judge()
    judge.add(case, given, run(emulator, case, given))
    judge.conclude()


@pytest.mark.parametrize("case", FEW, ids=FEW_IDS)
def test_the_order_of_threads_and_blocks_and_unwritten_memory_change_no_bit(emulator, case):
    results = []
    for schedule in SCHEDULES.values():
        emulator.configure(schedule)
        results.append(run(emulator, case))
    assert all(same_bits(results[0], result) for result in results)


@pytest.mark.parametrize("case", FEW, ids=FEW_IDS)
def test_a_column_alone_and_among_others_has_equal_bits(emulator, case):
    case = replace(case, wanted=ROWS_ONLY)
    batch, rows = case.as_rows(run(emulator, case)), case.as_rows(inputs(case))
    alone = replace(case, outer=1, inner=1, width=1)
    for row in (0, case.inner - 1, case.outer * case.inner - 1):
        own = {
            name: values if name in ("weight", "bias") else values[row : row + 1]
            for name, values in rows.items()
        }
        outputs = alone.as_rows(run(emulator, alone, alone.as_slices(own)))
        for name, values in outputs.items():
            assert values[0].tobytes() == batch[name][row].tobytes(), (name, row)


@pytest.mark.parametrize("case", FEW, ids=FEW_IDS)
def test_a_launch_split_at_the_grids_limit_gives_the_same_bits(emulator, case):
    case = replace(case, wanted=ROWS_ONLY)
    whole = run(emulator, case)
    emulator.configure(Config(max_grid=2))
    assert same_bits(run(emulator, case), whole)


@pytest.mark.parametrize("case", FEW, ids=FEW_IDS)
def test_columns_have_equal_bits_where_shared_memory_is_too_small_to_keep_them(emulator, case):
    kept = run(emulator, case)
    emulator.configure(Config(max_shared_bytes=8 << 10))
    assert same_bits(run(emulator, case), kept)


@pytest.mark.parametrize("op, longest", [(FORWARD, 3072), (BACKWARD, 1536)])
@pytest.mark.parametrize("dtype, width", [("bfloat16", 8), ("float32", 4), ("bfloat16", 1)])
def test_elements_are_loaded_once_as_long_as_a_block_can_keep_them(
    emulator, op, longest, dtype, width
):
    for dim_size, keep in [
        (256, REGISTERS),
        (257, SHARED),
        (longest, SHARED),
        (longest + 1, NOTHING),
    ]:
        case = SpatialNormCase(op, dtype, 1, dim_size, 2 * width, width, wanted=ROWS_ONLY)
        (kernel,) = emulator.kernels_of(Prepared(emulator, case, inputs(case)).args)
        assert kernel.endswith(f", {keep}>")


@pytest.mark.parametrize("op", OPS)
def test_a_single_misaligned_array_is_enough_for_narrow_accesses(emulator, op):
    case = SpatialNormCase(op, "bfloat16", 2, 20, 24, 8, wanted=ROWS_ONLY)
    given = inputs(case)
    expected = run(emulator, replace(case, width=1), given)
    for name in ("input", "output", "grad_output", "grad_input"):
        prepared = Prepared(emulator, case, given, misaligned=name)
        emulator.launch(prepared.args)
        assert same_bits(prepared.outputs(), expected), name


@pytest.mark.parametrize(
    "wanted", [(False, True, False), (False, False, True), (True, True, False)]
)
def test_gradients_have_equal_bits_whichever_are_wanted(emulator, wanted):
    case = SpatialNormCase(BACKWARD, "float32", 3, 20, 24, 4)
    given, everything = inputs(case), run(emulator, case)
    some = run(emulator, replace(case, wanted=wanted), given)
    assert len(some) == sum(wanted)
    assert all(np.array_equal(values, everything[name]) for name, values in some.items())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dim_size", [8, 200, 4000])
def test_a_column_that_is_not_finite_becomes_nan_and_no_other_does(emulator, dim_size, value):
    case = SpatialNormCase(FORWARD, "float32", 1, dim_size, 6, 1)
    given = inputs(case)
    given["input"][dim_size - 1, 2] = value
    is_nan = np.isnan(run(emulator, case, given)["output"])
    assert is_nan[:, 2].all() and not np.delete(is_nan, 2, axis=1).any()


@pytest.mark.parametrize("op", OPS)
def test_no_outer_index_launches_nothing(emulator, op):
    case = SpatialNormCase(op, "float32", 1, 9, 8, 4, wanted=ROWS_ONLY)
    prepared = Prepared(emulator, case, inputs(case))
    prepared.args.outer = 0
    assert emulator.kernels_of(prepared.args) == set()
