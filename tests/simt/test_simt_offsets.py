"""No offset of a kernel is cut to 32 bits: rows, slices and operands that lie 2^32 elements apart
give the same bits as neighbours."""

from __future__ import annotations

import pytest

from .cases import cross_entropy as cross_entropy_cases
from .cases import masked as masked_cases
from .cases.cross_entropy import CrossEntropyCase
from .cases.dropout import DropoutCase
from .cases.masked import MaskedCase
from .cases.norm import KINDS, NormCase
from .cases.rows import Case
from .cases.spatial import SpatialCase
from .cases.statistics import APPLY, STATISTICS, StatisticsCase
from .families import AnyCase, inputs, prepare
from .far import FAR, spread
from .judge import same_bits

#: Rows that stay in registers, and rows in segments or clusters.
SHORT, LONG = 104, 40_000
CASES: list[AnyCase] = [
    *(
        Case(op, "bfloat16", "float32", 3, cols, 4, clusters=clusters)
        for op in ("softmax_forward", "softmax_backward")
        for cols, clusters in ((SHORT, False), (SHORT + 1, False), (LONG, False), (LONG, True))
    ),
    *(  # Sums of long columns cost more than all else, and are over partials that lie together.
        NormCase(
            *(op, "bfloat16", 3, cols, 8, adds),
            **{"kind": kind, "p": 0.3, "clusters": clusters},
            wanted=(True, cols == SHORT, cols == SHORT),
        )
        for op in ("norm_forward", "norm_backward")
        for cols, clusters in ((SHORT, False), (LONG, False), (LONG, True))
        for kind, adds in zip(KINDS, (True, False, False, False), strict=True)
    ),
    *(
        MaskedCase(op, "bfloat16", "float32", (2, 2), cols, 4, mask=mask, bias="float32 101", p=0.3)
        for op in ("masked_softmax_forward", "masked_softmax_backward")
        for cols in (SHORT, 17_000)
        for mask in ("bool 111", "bool 110")
    ),
    *(
        SpatialCase(op, "bfloat16", "float32", 2, dim_size, inner, 4)
        for op in ("spatial_softmax_forward", "spatial_softmax_backward")
        for dim_size, inner in ((3, 40), (70, 33))
    ),
    *(
        StatisticsCase(op, Case("softmax_forward", "bfloat16", "bfloat16", 3, 9000, 8))
        for op in (STATISTICS, APPLY)
    ),
    *(
        CrossEntropyCase(op, "bfloat16", 3, cols)
        for op in cross_entropy_cases.OPS
        for cols in (SHORT, SHORT + 1, LONG)
    ),
    *(DropoutCase("bfloat16", 3, cols, 4 - cols % 2 * 3) for cols in (SHORT, SHORT + 1, LONG)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: repr(case)[:120])
def test_rows_far_apart_have_the_bits_of_neighbours(emulator, case):
    near, far = prepare(emulator, case, inputs(case)), prepare(emulator, case, inputs(case))
    emulator.launch(near.args)
    with spread(far.args):
        emulator.launch(far.args)
    assert same_bits(near.outputs(), far.outputs())


#: Unaligned rows, and those of vectors, whose operands or whose queries are found by division.
MANY = [
    MaskedCase(op, "bfloat16", "float32", *dims_and_cols, 4, **options)
    for op in masked_cases.OPS
    for dims_and_cols, options in (
        (((2, 3), SHORT), {"mask": "bool 011", "bias": "bfloat16 101"}),
        (((2, 3), SHORT + 1), {"mask": "bool 011"}),
        (((1, 5), SHORT), {"diagonal": 60, "lower": 1, "bias": "float32 001"}),
        (((1, 5), SHORT), {"diagonal": 60}),
    )
]


@pytest.mark.parametrize("case", MANY, ids=lambda case: repr(case)[:120])
def test_rows_are_divided_in_64_bits_where_32_are_too_few(emulator, case):
    """Without causality the number of queries is not used, and of one matrix any number gives the
    same queries: a large one stands for as many rows."""
    few, many = prepare(emulator, case, inputs(case)), prepare(emulator, case, inputs(case))
    many.args.scores.causal.queries = 2**32
    emulator.launch(few.args)
    emulator.launch(many.args)
    assert same_bits(few.outputs(), many.outputs())


def test_a_stride_that_is_cut_to_32_bits_is_found(emulator):
    case = Case("softmax_forward", "float32", "float32", 3, SHORT, 4)
    near, far = prepare(emulator, case, inputs(case)), prepare(emulator, case, inputs(case))
    emulator.launch(near.args)
    with spread(far.args):
        far.args.input.spacing.stride = FAR % 2**32 - 2**32
        emulator.launch(far.args)
    assert not same_bits(near.outputs(), far.outputs())
