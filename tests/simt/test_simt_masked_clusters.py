"""Rows of masked softmax that a cluster holds: read once, with every operand and option."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from .cases.masked import OPS, MaskedCase, Prepared, cluster_bases, inputs, varied
from .emulator.library import Config, Emulator
from .families import run
from .judge import assert_within_bounds, same_bits

BASES = cluster_bases()
of_every_kernel = pytest.mark.parametrize(
    "base", BASES, ids=lambda base: f"{base.op}-{base.terms}-{base.dtype}-{base.other}"
)
#: The longest rows that clusters of 4 and 8 blocks hold, by the bytes of an element.
LIMITS = {2: {4: 32_768, 8: 131_072}, 4: {4: 16_384, 8: 65_536}}


def limits(case: MaskedCase) -> dict[int, int]:
    return LIMITS[16 // case.width]


def launched(emulator: Emulator, case: MaskedCase) -> tuple[str, int]:
    """The kind of the one kernel of a case, and the blocks of its cluster."""
    args = Prepared(emulator, case, inputs(case)).args
    (kernel,) = emulator.kernels_of(args)
    return kernel.split("<")[0].rpartition("_")[2], emulator.cluster_of(args)


@of_every_kernel
def test_errors_are_within_their_bounds_with_every_operand_and_option(emulator, base):
    lengths = base.cols, limits(base)[4], limits(base)[4] + base.width
    cases = (replace(base, cols=cols, dims=(1, 1, 3)) for cols in lengths)
    assert_within_bounds(emulator, [varied(case, i) for i, case in enumerate(cases)])


@of_every_kernel
def test_the_smallest_cluster_holds_a_row_that_no_block_holds(emulator, base):
    four, eight = limits(base)[4], limits(base)[8]
    case = replace(base, dims=(1, 1, 1), mask="bool 0001", bias="", diagonal=3)
    for cols, blocks in ((base.cols, 4), (four, 4), (four + base.width, 8), (eight, 8)):
        assert launched(emulator, replace(case, cols=cols)) == ("cluster", blocks)
    for cols in (base.cols - base.width, eight + base.width):
        assert launched(emulator, replace(case, cols=cols))[0] in ("registers", "looped")
    narrow = replace(case, width=1)
    assert launched(emulator, narrow) == ("looped", 1)
    assert launched(emulator, replace(case, clusters=False)) == ("looped", 1)


@pytest.mark.parametrize("mask_value", [-1e4, -np.inf])
@pytest.mark.parametrize("zeros", [False, True], ids=["softmax", "zeros"])
@pytest.mark.parametrize("op", OPS)
def test_blocks_whose_columns_causality_hides_hold_nothing(emulator, op, zeros, mask_value):
    """The rows see none, one, and the columns up to the second block."""
    options = {"mask_value": mask_value, "zero_masked_rows": zeros, "clusters": True}
    case = MaskedCase(
        *(op, "bfloat16", "bfloat16", (1, 1, 3), 17_000, 8), mask="bool 0001", **options
    )
    cases = [replace(case, diagonal=diagonal) for diagonal in (-1, 4095, 8200)]
    assert {launched(emulator, case) for case in cases} == {("cluster", 4)}
    assert_within_bounds(emulator, cases)


@of_every_kernel
def test_no_schedule_no_grid_limit_and_no_other_row_changes_a_bit(in_any_order, base):
    case = replace(varied(replace(base, dims=(1, 1, 3)), 1), p=0.0)
    in_any_order(case, None, Config(max_grid=8))


@of_every_kernel
def test_rows_whose_clusters_are_refused_are_right_without_them(emulator, base):
    case = varied(replace(base, dims=(1, 1, 2)), 1)
    emulator.configure(Config(cluster_limit=1))
    assert_within_bounds(emulator, [case])
    assert same_bits(run(emulator, case), run(emulator, replace(case, clusters=False)))
