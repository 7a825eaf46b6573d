"""Rows in segments, a block each, have the same bits alone, in any batch and in any schedule."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from . import families
from .cases import norm as norm_cases
from .cases import rows as row_cases
from .cases.cross_entropy import CrossEntropyCase
from .cases.norm import KINDS, NormCase
from .cases.rows import Case, encode
from .cases.statistics import StatisticsCase
from .emulator.library import DTYPES, EmulatorError
from .families import AnyCase, RowsCase
from .judge import (
    Judge,
    assert_nonfinite_as_in_eager,
    assert_row_is_alike,
    assert_within_bounds,
    rows_of_hidden_parts,
    tensor,
)

#: Columns of a segment, in rows of up to 64 segments.
SEGMENT = 4096
DOUBLES = 64 * SEGMENT
ROWS_ONLY = (True, False, False)


def long_cases(cols: int, rows: int, width: int, dtype: str) -> list[RowsCase]:
    """A case of every op: softmax, its logarithm, LayerNorm with and without a residual."""
    width = min(width, 16 // DTYPES[dtype].itemsize)
    softmax = [
        Case(op, dtype, dtype, rows, cols, width, log=log)
        for op, log in product(row_cases.OPS, (False, True))
    ]
    norms = [
        NormCase(op, dtype, rows, cols, width, adds=adds, p=0.3, wanted=ROWS_ONLY)
        for op, adds in product(norm_cases.OPS, (False, True))
    ]
    return [*softmax, *norms]


def segments_of(emulator, case: RowsCase) -> int:
    """The blocks of a row, from the bytes of the workspace: each has a pair of floats."""
    forward = replace(case, op="softmax_forward")
    workspace = emulator.workspace(families.prepared_args(emulator, forward))
    return workspace.values.size // 8 // case.rows


#: One column more or less than a multiple of a segment, of a tile (of 4-byte and single elements),
#: and than the rows whose segments double; widths that divide the length, and others.
LENGTHS = [
    *[(2 * SEGMENT + 1, 1), (3 * SEGMENT - 1, 1), (3 * SEGMENT, 1), (3 * SEGMENT + 1, 1)],
    *[(8 * SEGMENT + 1024 + offset, 8) for offset in (-8, 0, 8)],
    *[(DOUBLES, 8), (DOUBLES + 8, 8)],
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("cols, width", LENGTHS)
def test_errors_are_within_their_bounds_where_segments_begin(emulator, dtype, cols, width):
    assert_within_bounds(emulator, long_cases(cols, 2 if cols < DOUBLES else 1, width, dtype))


def test_segments_double_with_the_row_and_are_never_more_than_1024(emulator):
    def count(cols):
        return segments_of(emulator, Case("softmax_forward", "bfloat16", "bfloat16", 1, cols, 8))

    assert [count(n) for n in (DOUBLES, DOUBLES + 8)] == [64, 33]
    assert [count(n) for n in (4 * DOUBLES, 4 * DOUBLES + 8)] == [128, 65]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols, width", [(3 * SEGMENT + 1, 1), (9 * SEGMENT + 8, 8)])
def test_no_schedule_and_no_other_row_changes_a_bit(emulator, in_any_order, dtype, cols, width):
    for case in long_cases(cols, 3, width, dtype):
        case = replace(case, p=0.0) if isinstance(case, NormCase) else case
        given = families.inputs(case)
        assert_row_is_alike(emulator, case, 2, given, in_any_order(case, given))


def test_a_row_of_more_segments_than_a_block_has_threads_is_right(emulator):
    """4.2 million columns; a block has 128."""
    cols = 16 * DOUBLES + 16
    softmax = Case("softmax_forward", "bfloat16", "float32", 1, cols, 8)
    assert segments_of(emulator, softmax) == 129
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((1, cols)).astype(np.float32))
    stored = encode(x.numpy(), "bfloat16")
    output = families.run(emulator, softmax, {"input": stored})["output"]
    expected = tensor(stored, "bfloat16").double().softmax(-1).numpy()
    assert np.abs(output / expected - 1).max() < 2e-6
    norm = NormCase("norm_forward", "bfloat16", 1, cols, 8, weight=False, bias=False)
    found = families.run(emulator, norm, {"input": stored})
    mean, rstd = norm_cases.exact_statistics(norm, tensor(stored, "bfloat16").double().numpy())
    assert found["mean"].item() == pytest.approx(mean.item(), abs=1e-7)
    assert found["rstd"].item() == pytest.approx(rstd.item(), rel=1e-7)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("cols, width", [(2 * SEGMENT + 5, 1), (9 * SEGMENT - 16, 8)])
def test_segments_of_nothing_but_minus_inf_do_not_touch_the_rest(emulator, dtype, log, cols, width):
    width = min(width, 16 // DTYPES[dtype].itemsize)
    stored = rows_of_hidden_parts(cols, SEGMENT, dtype)
    case = Case("softmax_forward", dtype, dtype, len(stored), cols, width, log=log)
    found = assert_nonfinite_as_in_eager(emulator, case, stored)
    Judge().add(case, {"input": stored}, {"output": found})
    eager = (torch.log_softmax if log else torch.softmax)(tensor(stored, dtype), -1)
    backward = replace(case, op="softmax_backward")
    given = families.inputs(backward) | {"output": encode(eager.double().numpy(), dtype)}
    found = families.run(emulator, backward, given)["grad_input"]
    # A row is NaN as a whole where its softmax is; for the logarithm exp(-inf) * sum is 0.
    grad = tensor(given["grad_output"], dtype)
    aten = torch.ops.aten
    formula = aten._log_softmax_backward_data if log else aten._softmax_backward_data
    assert torch.equal(tensor(found, dtype).isnan(), formula(grad, eager, -1, grad.dtype).isnan())


#: Means that differ between segments, so that a single base for the row would lose digits.
UNEVEN_ROWS = {
    "a step": lambda normal: normal + np.where(np.arange(normal.shape[1]) < SEGMENT, 1e4, 3e4),
    "a slope": lambda normal: normal * 1e-3 + np.arange(normal.shape[1]),
    "one segment apart": lambda normal: normal * 1e-3 + 100 * (np.arange(normal.shape[1]) >= 8192),
}


@pytest.mark.parametrize("rows", UNEVEN_ROWS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_segments_of_different_means_are_within_their_bounds(emulator, dtype, rows):
    judge = Judge()
    random = np.random.default_rng(1)
    for (cols, width), kind in product([(2 * SEGMENT + 1, 1), (33_800, 8)], KINDS):
        width = min(width, 16 // DTYPES[dtype].itemsize)
        case = NormCase("norm_forward", dtype, 12, cols, width, kind=kind)
        uneven = UNEVEN_ROWS[rows](random.standard_normal((12, cols)))
        given = families.inputs(case) | {"input": encode(uneven, dtype)}
        judge.run(emulator, case, given)
    judge.conclude()


#: A case of each op of long rows, and those whose classes and statistics are in segments.
WITH_WORKSPACE: list[AnyCase] = [
    *(Case(op, "float32", "float32", 2, 9001, 1) for op in row_cases.OPS),
    *(NormCase(op, "float32", 2, 9001, 1) for op in norm_cases.OPS),
    StatisticsCase("softmax_statistics", Case("softmax_forward", "float32", "float32", 1, 64, 4)),
    CrossEntropyCase("cross_entropy_forward", "float32", 2, 16_385),
]


@pytest.mark.parametrize("case", WITH_WORKSPACE, ids=lambda case: case.op)
def test_a_launch_without_its_workspace_is_refused(emulator, case):
    prepared = families.prepare(emulator, case, families.inputs(case))
    prepared.args.workspace = None
    with pytest.raises(EmulatorError, match="status 1"):
        emulator.launch(prepared.args)
