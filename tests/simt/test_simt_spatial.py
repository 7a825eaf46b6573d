"""The softmax and the norms over a dimension that is not the last on the emulator, through the
package's own launch code."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from .cases import spatial, spatial_norm
from .cases.rows import encode
from .cases.spatial import SpatialCase
from .cases.spatial_norm import SpatialNormCase
from .emulator.library import DTYPES, Config
from .families import inputs, prepare, prepared_args, run
from .judge import Judge, same_bits, tensor

SOFTMAX, SOFTMAX_BACKWARD = spatial.OPS
NORM, NORM_BACKWARD = spatial_norm.OPS
OPS = [*spatial.OPS, *spatial_norm.OPS]
#: Where a block keeps elements: SpatialKeep of cuda/launch/plan.h.
ROWS_ONLY = (True, False, False)

#: One thread a column, several in several segments, and the most: kept in registers, in shared
#: memory and not at all. With a second dtype, and a kind of norm.
FEW = [
    ((3, 40, 8), "bfloat16", "layer"),
    ((50, 33, 1), "bfloat16", "rms"),
    ((300, 72, 8), "float32", "layer"),
    ((1500, 3, 1), "bfloat16", "rms"),
    ((3073, 8, 8), "bfloat16", "layer"),
]
SOFTMAXES = [
    SpatialCase(op, "bfloat16", other, 3, *sizes, log=sizes[0] == 50)
    for op in spatial.OPS
    for sizes, other, _ in FEW
]
NORMS = [
    SpatialNormCase(op, "bfloat16", 3, *sizes, kind, parameters)
    for op in spatial_norm.OPS
    for sizes, parameters, kind in FEW
]


def id_of(case):
    return f"{case.op}-{case.dim_size}"


few = pytest.mark.parametrize("case", [*SOFTMAXES, *NORMS], ids=id_of)
every_op = pytest.mark.parametrize("op", OPS)

GROUPS = {}
for _module in (spatial, spatial_norm):
    for _base in _module.bases():
        _dtypes = (_base.dtype, _base.other) if _module is spatial else (_base.dtype,)
        GROUPS.setdefault("-".join((_base.op, *_dtypes)), []).append((_module, _base))


def case_of(op, dtype, *sizes):
    """A case of any operator; of a norm's gradients that of its input alone."""
    if op in spatial.OPS:
        return SpatialCase(op, dtype, dtype, *sizes)
    return SpatialNormCase(op, dtype, *sizes, wanted=ROWS_ONLY)


def without_column_sums(case):
    return replace(case, wanted=ROWS_ONLY) if isinstance(case, SpatialNormCase) else case


@pytest.mark.parametrize("group", GROUPS)
def test_errors_are_within_their_bounds(emulator, group):
    judge = Judge()
    for module, base in GROUPS[group]:
        for case in module.boundary_cases(emulator, base):
            given = inputs(case)
            judge.add(case, given, run(emulator, case, given))
    judge.conclude()


@few
def test_the_order_of_threads_and_blocks_and_unwritten_memory_change_no_bit(in_any_order, case):
    in_any_order(case)


@few
def test_a_column_alone_and_among_others_has_equal_bits(emulator, case):
    case = without_column_sums(case)
    batch, rows = case.as_rows(run(emulator, case)), case.as_rows(inputs(case))
    alone = replace(case, outer=1, inner=1, width=1)
    for row in (0, case.inner - 1, case.outer * case.inner - 1):
        own = {
            name: values if name in spatial_norm.PARAMETERS else values[row : row + 1]
            for name, values in rows.items()
        }
        outputs = alone.as_rows(run(emulator, alone, alone.as_slices(own)))
        for name, values in outputs.items():
            assert values[0].tobytes() == batch[name][row].tobytes(), (name, row)


@few
def test_a_launch_split_at_the_grids_limit_gives_the_same_bits(emulator, case):
    case = without_column_sums(case)
    whole = run(emulator, case)
    emulator.configure(Config(max_grid=2))
    assert same_bits(run(emulator, case), whole)


@pytest.mark.parametrize("case", SOFTMAXES, ids=id_of)
def test_a_split_launch_in_place_gives_the_same_bits(emulator, case):
    case = replace(case, dtype=case.other, width=min(case.width, 4))
    whole = run(emulator, case)
    emulator.configure(Config(max_grid=2))
    prepared = prepare(emulator, case, inputs(case))
    source, to = ("input", "output") if case.op == SOFTMAX else ("grad_output", "grad_input")
    setattr(prepared.args, to, getattr(prepared.args, source))
    emulator.launch(prepared.args)
    assert prepared.arrays[source].read().tobytes() == whole[to].tobytes()


@few
def test_columns_have_equal_bits_where_shared_memory_is_too_small_to_keep_them(emulator, case):
    kept = run(emulator, case)
    emulator.configure(Config(max_shared_bytes=8 << 10))
    assert same_bits(run(emulator, case), kept)


@every_op
@pytest.mark.parametrize("dtype, width", [("bfloat16", 8), ("float32", 4), ("bfloat16", 1)])
def test_strips_that_fit_into_shared_memory_are_staged_there(emulator, op, dtype, width):
    """Shorter ones stay in registers, and longer ones are loaded twice."""
    longest = 3072 if op in (SOFTMAX, NORM) else 1536
    staged = {256: False, 257: True, longest: True, longest + 1: False}
    for dim_size, is_staged in staged.items():
        case = case_of(op, dtype, 1, dim_size, 2 * width, width)
        shared_bytes = emulator.shared_bytes_of(prepared_args(emulator, case))
        assert (shared_bytes > 0) == is_staged


@every_op
def test_a_single_misaligned_array_is_enough_for_narrow_accesses(emulator, op):
    case = case_of(op, "bfloat16", 2, 20, 24, 8)
    case = replace(case, other="float32") if isinstance(case, SpatialCase) else case
    given = inputs(case)
    expected = run(emulator, replace(case, width=1), given)
    for name in ("input", "output", "grad_output", "grad_input"):
        prepared = prepare(emulator, case, given, misaligned=name)
        emulator.launch(prepared.args)
        assert same_bits(prepared.outputs(), expected), name


@every_op
def test_no_outer_index_launches_nothing(emulator, op):
    args = prepared_args(emulator, case_of(op, "float32", 1, 9, 8, 4))
    args.outer = 0
    assert emulator.kernels_of(args) == set()


# --- softmax --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim_size", [8, 200])
def test_inf_and_nan_come_out_as_in_eager(emulator, dtype, dim_size):
    inf, nan = np.inf, np.nan
    values = np.full((dim_size, 6), -inf)
    values[-1] = [-inf, 2.0, inf, nan, 6e4, nan]  # the first is all -inf
    values[1, 3:] = [1.0, -6e4, inf]
    given = {"input": encode(values, dtype)}
    for log in (False, True):
        case = SpatialCase(SOFTMAX, dtype, dtype, 1, dim_size, 6, 1, log=log)
        actual = tensor(run(emulator, case, given)["output"], dtype)
        softmax = torch.log_softmax if log else torch.softmax
        eager = softmax(tensor(given["input"], dtype), 0)
        assert torch.equal(actual.isnan(), eager.isnan())
        assert torch.equal(actual.isinf(), eager.isinf())


# --- norms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("outer, dim_size, inner", [(40, 40, 49), (2, 7, 5000), (700, 3, 8)])
def test_sums_over_many_positions_are_within_their_bounds(emulator, dtype, outer, dim_size, inner):
    judge = Judge()
    for kind in ("layer", "rms"):
        case = SpatialNormCase(NORM_BACKWARD, dtype, outer, dim_size, inner, 1, kind)
        given = inputs(case)
        judge.add(case, given, run(emulator, case, given))
    judge.conclude()


@pytest.mark.parametrize("offset", [1e2, 1e4])
@pytest.mark.parametrize("dim_size", [64, 1000, 4000])
def test_a_large_mean_costs_no_digits(emulator, dim_size, offset):
    case = SpatialNormCase(NORM, "float32", 2, dim_size, 24, 4)
    given = inputs(case)
    given["input"] = encode(given["input"] + offset, "float32")
    judge = Judge()
    judge.add(case, given, run(emulator, case, given))
    judge.conclude()


@pytest.mark.parametrize(
    "wanted", [(False, True, False), (False, False, True), (True, True, False)]
)
def test_gradients_have_equal_bits_whichever_are_wanted(emulator, wanted):
    case = SpatialNormCase(NORM_BACKWARD, "float32", 3, 20, 24, 4)
    given, everything = inputs(case), run(emulator, case)
    some = run(emulator, replace(case, wanted=wanted), given)
    assert len(some) == sum(wanted)
    assert all(np.array_equal(values, everything[name]) for name, values in some.items())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dim_size", [8, 200, 4000])
def test_a_column_that_is_not_finite_becomes_nan_and_no_other_does(emulator, dim_size, value):
    case = SpatialNormCase(NORM, "float32", 1, dim_size, 6, 1)
    given = inputs(case)
    given["input"][dim_size - 1, 2] = value
    is_nan = np.isnan(run(emulator, case, given)["output"])
    assert is_nan[:, 2].all() and not np.delete(is_nan, 2, axis=1).any()
