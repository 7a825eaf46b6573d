"""Rows that a cluster holds: one launch reads them once, and always gives the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from . import families
from .cases.norm import KINDS, NormCase
from .cases.rows import Case, encode
from .emulator.library import Config, Emulator
from .families import RowsCase
from .judge import (
    Judge,
    assert_nonfinite_as_in_eager,
    assert_row_is_alike,
    assert_within_bounds,
    rows_of_hidden_parts,
)

ROWS_ONLY = (True, False, False)
#: The longest row that a block holds, and those that clusters of so many blocks hold.
LIMITS = {
    Case("softmax_forward", "float32", "float32", 1, 4, 4): {1: 16_384, 8: 32_768, 16: 524_288},
    Case("softmax_forward", "bfloat16", "float32", 1, 8, 8, log=True): {
        **{1: 16_384, 4: 32_768, 8: 65_536, 16: 524_288},
    },
    Case("softmax_backward", "float32", "float32", 1, 4, 4): {
        **{1: 8192, 4: 16_384, 8: 32_768, 16: 262_144},
    },
    Case("softmax_backward", "float16", "float16", 1, 8, 8, log=True): {
        **{1: 8192, 4: 16_384, 8: 65_536, 16: 262_144},
    },
    Case("softmax_forward", "float32", "float32", 1, 1, 1): {
        **{1: 8192, 2: 16_384, 4: 32_768, 8: 131_072},
    },
    Case("softmax_backward", "bfloat16", "bfloat16", 1, 1, 1, log=True): {
        **{1: 8192, 2: 16_384, 4: 32_768, 8: 131_072},
    },
    NormCase("norm_forward", "bfloat16", 1, 1, 1): {1: 8192, 2: 16_384, 4: 32_768, 8: 131_072},
    NormCase("norm_forward", "float16", 1, 8, 8): {
        **{1: 32_768, 4: 65_536, 8: 262_144, 16: 524_288},
    },
    NormCase("norm_forward", "float32", 1, 4, 4): {1: 8192, 2: 16_384, 8: 131_072, 16: 262_144},
    NormCase("norm_forward", "bfloat16", 1, 8, 8, adds=True, p=0.3): {
        **{1: 16_384, 4: 32_768, 8: 131_072, 16: 262_144},
    },
    NormCase("norm_backward", "float32", 1, 4, 4, wanted=ROWS_ONLY): {
        **{1: 4096, 2: 16_384, 4: 32_768, 8: 65_536, 16: 131_072},
    },
    NormCase("norm_backward", "float16", 1, 1, 1, wanted=ROWS_ONLY): {
        **{1: 8192, 2: 16_384, 4: 32_768, 8: 65_536},
    },
    NormCase("norm_backward", "bfloat16", 1, 8, 8, True, p=0.3, wanted=ROWS_ONLY): {
        **{1: 8192, 2: 16_384, 4: 32_768, 8: 65_536, 16: 131_072},
    },
}
#: Each base, with each size of its clusters.
SIZES = [(base, blocks) for base, limits in LIMITS.items() for blocks in limits if blocks > 1]
of_every_kind = pytest.mark.parametrize("base", LIMITS, ids=lambda base: f"{base.op}-{base.dtype}")
of_every_size = pytest.mark.parametrize(
    "base, blocks", SIZES, ids=[f"{base.op}-{base.dtype}-{blocks}" for base, blocks in SIZES]
)
REFUSED, PORTABLE = Config(cluster_limit=1), Config(cluster_limit=8)


def held(base: RowsCase, rows: int, cols: int) -> RowsCase:
    return replace(base, rows=rows, cols=cols, clusters=True)


def shortest(base: RowsCase, blocks: int) -> int:
    """The shortest row that clusters of that many blocks hold."""
    return max(cols for size, cols in LIMITS[base].items() if size < blocks) + base.width


def kernels_of(emulator: Emulator, case: RowsCase) -> set[str]:
    kernels = emulator.kernels_of(families.prepared_args(emulator, case))
    return {kernel.split("<")[0].rpartition("_")[2] for kernel in kernels}


def executed_by(emulator: Emulator, case: RowsCase, config: Config) -> set[str]:
    """The kernels that ran under that configuration; the results must be within their bounds."""
    before = emulator.launch_count()
    emulator.configure(config)
    assert_within_bounds(emulator, [case])
    return {name.split("<")[0].rpartition("_")[2] for name in emulator.records(before)}


def has_narrow(case: RowsCase) -> bool:
    """Whether rows of single elements have clusters too."""
    return isinstance(case, Case) or not case.adds


@of_every_size
def test_errors_are_within_their_bounds(emulator, base, blocks):
    lengths = shortest(base, blocks), LIMITS[base][blocks]
    assert_within_bounds(emulator, [held(base, 2, cols) for cols in lengths])


@of_every_size
def test_a_row_is_held_by_the_cluster_that_was_the_fastest(emulator, base, blocks):
    for cols in (shortest(base, blocks), LIMITS[base][blocks]):
        case = held(base, 1, cols)
        assert kernels_of(emulator, case) == {"cluster"}
        assert emulator.cluster_of(families.prepared_args(emulator, case)) == blocks


@of_every_kind
def test_longer_narrower_or_older_rows_go_by_segments(emulator, base):
    longest = held(base, 1, max(LIMITS[base].values()))
    longer = replace(longest, cols=longest.cols + base.width)
    by_segments = [replace(longest, clusters=False), longer]
    if not has_narrow(base) or longest.cols > 131_072:
        by_segments.append(replace(longest, width=1))
    for case in by_segments:
        assert kernels_of(emulator, case) in ({"partials", "apply"}, {"partials", "segments"}), case


@of_every_size
def test_rows_whose_clusters_are_refused_are_right_without_them(emulator, base, blocks):
    """As on a part of a GPU, and by code for older devices."""
    case = held(base, 2, LIMITS[base][blocks])
    one_block = emulator.kernels_of(families.prepared_args(emulator, replace(case, clusters=False)))
    without = {kernel.split("<")[0].rpartition("_")[2] for kernel in one_block}
    assert executed_by(emulator, case, REFUSED) == without
    assert executed_by(emulator, case, Config()) == {"cluster"}


@pytest.mark.parametrize("base", [base for base in LIMITS if 16 in LIMITS[base]])
def test_where_large_clusters_are_refused_smaller_ones_hold_what_they_can(emulator, base):
    shorter = executed_by(emulator, held(base, 2, shortest(base, 16)), PORTABLE)
    assert ("cluster" in shorter) == isinstance(base, Case)  # softmax has a plan for 8 blocks too
    assert "cluster" not in executed_by(emulator, held(base, 1, LIMITS[base][16]), PORTABLE)


@of_every_size
def test_no_schedule_no_grid_limit_and_no_other_row_changes_a_bit(
    emulator, in_any_order, base, blocks
):
    case = held(base, 5, shortest(base, blocks))
    case = replace(case, p=0.0) if isinstance(case, NormCase) else case
    given = families.inputs(case)
    first = in_any_order(case, given, Config(max_grid=2 * blocks))
    assert_row_is_alike(emulator, case, 4, given, first)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_blocks_of_nothing_but_minus_inf_do_not_touch_the_rest(emulator, dtype, log):
    cols, width = 65_536, 4 if dtype == "float32" else 8
    stored = rows_of_hidden_parts(cols, cols // 4, dtype)
    case = Case("softmax_forward", dtype, dtype, len(stored), cols, width, log=log, clusters=True)
    found = assert_nonfinite_as_in_eager(emulator, case, stored)
    Judge().add(case, {"input": stored}, {"output": found})


@pytest.mark.parametrize("kind", KINDS)
def test_rows_far_from_zero_and_of_uneven_blocks_are_within_their_bounds(emulator, kind):
    judge = Judge()
    normal = np.random.default_rng(0).standard_normal((6, 33_000))
    for values in (1e4 + normal, normal * 1e-3 + np.arange(33_000)):
        case = held(NormCase("norm_forward", "float32", 1, 4, 4, kind=kind), 6, 33_000)
        given = families.inputs(case) | {"input": encode(values, "float32")}
        judge.run(emulator, case, given)
    judge.conclude()


@pytest.mark.parametrize("dtype, width, adds", [("float32", 4, True), ("bfloat16", 8, False)])
def test_column_sums_of_rows_in_clusters_are_right(emulator, dtype, width, adds):
    case = NormCase("norm_backward", dtype, 20, 8192 + width, width, adds, clusters=True)
    assert_within_bounds(emulator, [case])
