"""Rows that a cluster holds: one launch reads them once, and always gives the same bits."""

from __future__ import annotations

from dataclasses import replace

import bounds
import numpy as np
import pytest
import torch

from . import families
from .cases.norm import KINDS, NormCase
from .cases.rows import Case, encode
from .emulator.library import SCHEDULES, Config, Emulator
from .families import RowsCase
from .judge import Judge, same_bits, tensor

BLOCKS = 8
ROWS_ONLY = (True, False, False)
#: The longest row that a cluster holds, by case.
LONGEST = {
    Case("softmax_forward", "float32", "float32", 1, 4, 4): 262_144,
    Case("softmax_forward", "bfloat16", "float32", 1, 8, 8, log=True): 262_144,
    Case("softmax_backward", "float32", "float32", 1, 4, 4): 131_072,
    Case("softmax_backward", "float16", "float16", 1, 8, 8, log=True): 131_072,
    NormCase("norm_forward", "float16", 1, 8, 8): 262_144,
    NormCase("norm_forward", "float32", 1, 4, 4): 131_072,
    NormCase("norm_forward", "bfloat16", 1, 8, 8, adds=True, p=0.3): 131_072,
    NormCase("norm_backward", "float32", 1, 4, 4, wanted=ROWS_ONLY): 65_536,
    NormCase("norm_backward", "bfloat16", 1, 8, 8, True, p=0.3, wanted=ROWS_ONLY): 65_536,
}
of_every_kind = pytest.mark.parametrize("base", LONGEST, ids=lambda base: f"{base.op}-{base.dtype}")


def held(base: RowsCase, rows: int, cols: int) -> RowsCase:
    return replace(base, rows=rows, cols=cols, clusters=True)


def kernels_of(emulator: Emulator, case: RowsCase) -> set[str]:
    kernels = emulator.kernels_of(families.prepared_args(emulator, case))
    return {kernel.split("<")[0].rpartition("_")[2] for kernel in kernels}


@of_every_kind
def test_errors_are_within_their_bounds(emulator, base):
    judge = Judge()
    for cols in (32_768 + base.width, 50_000, LONGEST[base]):
        case = held(base, 2, cols)
        given = families.inputs(case)
        judge.add(case, given, families.run(emulator, case, given))
    judge.conclude()


@of_every_kind
def test_one_launch_holds_a_row_and_longer_narrower_or_older_ones_go_by_segments(emulator, base):
    longest = held(base, 1, LONGEST[base])
    assert kernels_of(emulator, longest) == {"cluster"}
    by_segments = [replace(longest, clusters=False), replace(longest, width=1)]
    by_segments.append(replace(longest, cols=longest.cols + base.width))
    for case in by_segments:
        assert kernels_of(emulator, case) in ({"parts", "apply"}, {"parts", "rows"}), case


@of_every_kind
def test_no_schedule_no_grid_limit_and_no_other_row_changes_a_bit(emulator, base):
    case = held(base, 5, 33_000)
    case = replace(case, p=0.0) if isinstance(case, NormCase) else case
    given = families.inputs(case)
    first = families.run(emulator, case, given)
    for config in (*SCHEDULES.values(), Config(max_grid=2 * BLOCKS)):
        emulator.configure(config)
        assert same_bits(families.run(emulator, case, given), first)
    last = {name: values[-1:] for name, values in given.items()}
    alone = families.run(emulator, replace(case, rows=1), last)
    assert same_bits(alone, {name: values[-1:] for name, values in first.items()})


INF, NAN = np.inf, np.nan


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_blocks_of_nothing_but_minus_inf_do_not_touch_the_rest(emulator, dtype, log):
    cols = 33_000
    rows = np.full((7, cols), -INF)
    rows[1, 0], rows[2, -1], rows[3, cols // BLOCKS - 1 : cols // BLOCKS + 1] = 2.0, -3.0, 1.0
    rows[4:, : cols // 2] = np.linspace(-1, 1, cols // 2)
    rows[4, -1], rows[5, 20_000] = NAN, INF
    stored = encode(rows, dtype)
    width = 4 if dtype == "float32" else 8
    case = Case("softmax_forward", dtype, dtype, 7, cols, width, log=log, clusters=True)
    actual = tensor(families.run(emulator, case, {"input": stored})["output"], dtype)
    eager = (torch.log_softmax if log else torch.softmax)(tensor(stored, dtype), -1)
    assert torch.equal(actual.isnan(), eager.isnan())
    formula = bounds.log_softmax if log else bounds.softmax
    bounds.assert_within(actual, formula(tensor(stored, dtype)))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_far_from_zero_and_of_uneven_blocks_are_within_their_bounds(emulator, kind):
    judge = Judge()
    normal = np.random.default_rng(0).standard_normal((6, 33_000))
    for values in (1e4 + normal, normal * 1e-3 + np.arange(33_000)):
        case = held(NormCase("norm_forward", "float32", 1, 4, 4, kind=kind), 6, 33_000)
        given = families.inputs(case) | {"input": encode(values, "float32")}
        judge.add(case, given, families.run(emulator, case, given))
    judge.conclude()


@pytest.mark.parametrize("dtype, width, adds", [("float32", 4, True), ("bfloat16", 8, False)])
def test_column_sums_of_rows_in_clusters_are_right(emulator, dtype, width, adds):
    case = NormCase("norm_backward", dtype, 20, 8192 + width, width, adds, clusters=True)
    given = families.inputs(case)
    judge = Judge()
    judge.add(case, given, families.run(emulator, case, given))
    judge.conclude()
