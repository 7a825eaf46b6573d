"""The spatial softmax on the emulator, through the package's own launch code."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from .cases.rows import PAIRS, encode
from .cases.spatial import OPS, Prepared, SpatialCase, bases, boundary_cases, inputs
from .emulator.library import DTYPES, SCHEDULES, Config
from .families import run
from .judge import Judge, same_bits, tensor

FAMILIES = list(product(OPS, PAIRS))
IDS = [f"{op}-{dtype}-{other}" for op, (dtype, other) in FAMILIES]
FORWARD, BACKWARD = OPS
#: Where a block keeps elements: SpatialKeep of launch_plan.h.
REGISTERS, SHARED, NOTHING = range(3)

#: One thread a column, several in several segments, and the most: kept in registers, in shared
#: memory and not at all.
FEW = [
    SpatialCase(op, "bfloat16", other, 3, dim_size, inner, width, log=dim_size == 50)
    for op in OPS
    for dim_size, inner, width, other in [
        *[(3, 40, 8, "bfloat16"), (50, 33, 1, "bfloat16"), (300, 72, 8, "float32")],
        *[(1500, 3, 1, "bfloat16"), (3073, 8, 8, "bfloat16")],
    ]
]
FEW_IDS = [f"{case.op}-{case.dim_size}" for case in FEW]


@pytest.mark.parametrize("op, pair", FAMILIES, ids=IDS)
def test_errors_are_within_their_bounds(emulator, op, pair):
    judge = Judge()
    for base in bases():
        if (base.op, base.dtype, base.other) == (op, *pair):
            for case in boundary_cases(emulator, base):
                given = inputs(case)
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
def test_a_row_alone_and_among_others_has_equal_bits(emulator, case):
    batch = case.as_rows(run(emulator, case))
    rows = case.as_rows(inputs(case))
    alone = replace(case, outer=1, inner=1, width=1)
    for row in (0, case.inner - 1, case.outer * case.inner - 1):
        own = {name: values[row : row + 1] for name, values in rows.items()}
        outputs = alone.as_rows(run(emulator, alone, alone.as_slices(own)))
        for name, values in outputs.items():
            assert values[0].tobytes() == batch[name][row].tobytes(), (name, row)


@pytest.mark.parametrize("case", FEW, ids=FEW_IDS)
def test_a_launch_split_at_the_grids_limit_and_one_in_place_give_the_same_bits(emulator, case):
    case = replace(case, dtype=case.other, width=min(case.width, 4))
    whole = run(emulator, case)
    emulator.configure(Config(max_grid=2))
    prepared = Prepared(emulator, case, inputs(case))
    source, to = ("input", "output") if case.op == FORWARD else ("grad_output", "grad_input")
    setattr(prepared.args, to, getattr(prepared.args, source))
    emulator.launch(prepared.args)
    assert prepared.arrays[source].read().tobytes() == whole[to].tobytes()


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
        case = SpatialCase(op, dtype, dtype, 1, dim_size, 2 * width, width)
        (kernel,) = emulator.kernels_of(Prepared(emulator, case, inputs(case)).args)
        assert kernel.endswith(f", {keep}>")


@pytest.mark.parametrize("op", OPS)
def test_a_single_misaligned_array_is_enough_for_narrow_accesses(emulator, op):
    case = SpatialCase(op, "bfloat16", "float32", 2, 20, 24, 8)
    given = inputs(case)
    expected = run(emulator, replace(case, width=1), given)
    for name in Prepared(emulator, case, given).arrays:
        prepared = Prepared(emulator, case, given, misaligned=name)
        emulator.launch(prepared.args)
        assert same_bits(prepared.outputs(), expected), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim_size", [8, 200])
def test_inf_and_nan_come_out_as_in_eager(emulator, dtype, dim_size):
    inf, nan = np.inf, np.nan
    values = np.full((dim_size, 6), -inf)
    values[-1] = [-inf, 2.0, inf, nan, 6e4, nan]  # the first is all -inf
    values[1, 3:] = [1.0, -6e4, inf]
    given = {"input": encode(values, dtype)}
    for log in (False, True):
        case = SpatialCase(FORWARD, dtype, dtype, 1, dim_size, 6, 1, log=log)
        actual = tensor(run(emulator, case, given)["output"], dtype)
        softmax = torch.log_softmax if log else torch.softmax
        eager = softmax(tensor(given["input"], dtype), 0)
        assert torch.equal(actual.isnan(), eager.isnan())
        assert torch.equal(actual.isinf(), eager.isinf())


@pytest.mark.parametrize("op", OPS)
def test_no_outer_index_launches_nothing(emulator, op):
    case = SpatialCase(op, "float32", "float32", 1, 9, 8, 4)
    prepared = Prepared(emulator, case, inputs(case))
    prepared.args.outer = 0
    assert emulator.kernels_of(prepared.args) == set()
