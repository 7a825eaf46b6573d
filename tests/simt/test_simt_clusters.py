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
from .emulator.library import Config, Emulator
from .families import RowsCase
from .judge import Judge, same_bits, tensor

ROWS_ONLY = (True, False, False)
#: The longest rows that clusters of 2, 4 and 8 blocks hold, by the elements of a row in a thread.
OF_16 = (16_384, 32_768, 131_072)
OF_32 = OF_64 = (32_768, 65_536, 262_144)
BLOCKS = (2, 4, 8)
LIMITS = {
    Case("softmax_forward", "float32", "float32", 1, 4, 4): OF_32,
    Case("softmax_forward", "bfloat16", "float32", 1, 8, 8, log=True): OF_64,
    Case("softmax_backward", "float32", "float32", 1, 4, 4): OF_16,
    Case("softmax_backward", "float16", "float16", 1, 8, 8, log=True): OF_16,
    Case("softmax_forward", "float32", "float32", 1, 1, 1): OF_16,
    Case("softmax_backward", "bfloat16", "bfloat16", 1, 1, 1, log=True): OF_16,
    NormCase("norm_forward", "bfloat16", 1, 1, 1): OF_16,
    NormCase("norm_forward", "float16", 1, 8, 8): OF_64,
    NormCase("norm_forward", "float32", 1, 4, 4): OF_16,
    NormCase("norm_forward", "bfloat16", 1, 8, 8, adds=True, p=0.3): OF_16,
    NormCase("norm_backward", "float32", 1, 4, 4, wanted=ROWS_ONLY): (16_384, 32_768, 65_536),
    NormCase("norm_backward", "float16", 1, 1, 1, wanted=ROWS_ONLY): (16_384, 32_768, 65_536),
    NormCase("norm_backward", "bfloat16", 1, 8, 8, True, p=0.3, wanted=ROWS_ONLY): (
        *(16_384, 32_768, 65_536),
    ),
}
of_every_kind = pytest.mark.parametrize("base", LIMITS, ids=lambda base: f"{base.op}-{base.dtype}")
of_every_size = pytest.mark.parametrize("size", range(3), ids=lambda size: f"{BLOCKS[size]}-blocks")
REFUSED = Config(refuse_clusters=True)


def held(base: RowsCase, rows: int, cols: int) -> RowsCase:
    return replace(base, rows=rows, cols=cols, clusters=True)


def shortest(base: RowsCase, size: int) -> int:
    """The shortest row that clusters of BLOCKS[size] hold."""
    limits = LIMITS[base]
    return (limits[size - 1] if size else limits[0] // 2) + base.width


def kernels_of(emulator: Emulator, case: RowsCase) -> set[str]:
    kernels = emulator.kernels_of(families.prepared_args(emulator, case))
    return {kernel.split("<")[0].rpartition("_")[2] for kernel in kernels}


def executed_by(emulator: Emulator, case: RowsCase, config: Config) -> set[str]:
    """The kernels that ran under that configuration; the results must be within their bounds."""
    before = emulator.launch_count()
    emulator.configure(config)
    given = families.inputs(case)
    judge = Judge()
    judge.add(case, given, families.run(emulator, case, given))
    judge.conclude()
    return {name.split("<")[0].rpartition("_")[2] for name in emulator.records(before)}


def has_narrow(case: RowsCase) -> bool:
    """Whether rows of single elements have clusters too."""
    return isinstance(case, Case) or not case.adds


@of_every_size
@of_every_kind
def test_errors_are_within_their_bounds(emulator, base, size):
    judge = Judge()
    for cols in (shortest(base, size), LIMITS[base][size]):
        case = held(base, 2, cols)
        given = families.inputs(case)
        judge.add(case, given, families.run(emulator, case, given))
    judge.conclude()


@of_every_size
@of_every_kind
def test_the_smallest_cluster_whose_blocks_share_a_multiprocessor_holds_a_row(emulator, base, size):
    for cols in (shortest(base, size), LIMITS[base][size]):
        case = held(base, 1, cols)
        assert kernels_of(emulator, case) == {"cluster"}
        assert emulator.cluster_of(families.prepared_args(emulator, case)) == BLOCKS[size]


@of_every_kind
def test_longer_narrower_or_older_rows_go_by_segments(emulator, base):
    longest = held(base, 1, LIMITS[base][-1])
    longer = replace(longest, cols=longest.cols + base.width)
    by_segments = [replace(longest, clusters=False), longer]
    if not has_narrow(base) or longest.cols > OF_16[-1]:
        by_segments.append(replace(longest, width=1))
    for case in by_segments:
        assert kernels_of(emulator, case) in ({"partials", "apply"}, {"partials", "segments"}), case


@of_every_size
@of_every_kind
def test_rows_whose_clusters_are_refused_are_right_without_them(emulator, base, size):
    """As on a part of a GPU, and by code for older devices."""
    case = held(base, 2, LIMITS[base][size])
    one_block = emulator.kernels_of(families.prepared_args(emulator, replace(case, clusters=False)))
    without = {kernel.split("<")[0].rpartition("_")[2] for kernel in one_block}
    assert executed_by(emulator, case, REFUSED) == without
    assert executed_by(emulator, case, Config()) == {"cluster"}


@of_every_size
@of_every_kind
def test_no_schedule_no_grid_limit_and_no_other_row_changes_a_bit(
    emulator, in_any_order, base, size
):
    case = held(base, 5, shortest(base, size))
    case = replace(case, p=0.0) if isinstance(case, NormCase) else case
    given = families.inputs(case)
    first = in_any_order(case, given, Config(max_grid=2 * BLOCKS[size]))
    last = {name: values[-1:] for name, values in given.items()}
    alone = families.run(emulator, replace(case, rows=1), last)
    assert same_bits(alone, {name: values[-1:] for name, values in first.items()})


INF, NAN = np.inf, np.nan


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_blocks_of_nothing_but_minus_inf_do_not_touch_the_rest(emulator, dtype, log):
    cols = 65_536
    rows = np.full((7, cols), -INF)
    rows[1, 0], rows[2, -1], rows[3, cols // 4 - 1 : cols // 4 + 1] = 2.0, -3.0, 1.0
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
