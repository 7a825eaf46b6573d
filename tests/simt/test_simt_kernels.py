"""Every CUDA kernel, run through the package's own launch code on the emulator."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, product

import numpy as np
import pytest

from . import families, inventory
from .cases import cross_entropy, spatial
from .cases import masked as masked_cases
from .cases import norm as norm_cases
from .cases import rows as row_cases
from .cases.cross_entropy import CrossEntropyCase
from .cases.dropout import DropoutCase
from .cases.masked import MaskedCase
from .cases.norm import NormCase
from .cases.rows import Case
from .cases.spatial import SpatialCase
from .cases.statistics import StatisticsCase
from .emulator import build
from .emulator.library import DTYPES, Config, Emulator
from .families import AnyCase, RowsCase
from .judge import (
    assert_rows_are_independent,
    assert_special_rows_are_as_in_eager,
    assert_within_bounds,
    same_bits,
    without_what_rows_share,
)

GROUPS = families.groups()
OTHER_GROUPS = families.groups(SpatialCase, MaskedCase, StatisticsCase, CrossEntropyCase)


@pytest.mark.parametrize("group", GROUPS)
def test_errors_are_within_their_bounds_at_every_length_that_changes_a_launch(
    emulator, group, request
):
    elements = 20_000 if request.config.getoption("exhaustive") else 1000
    at_lengths = (families.boundary_cases(emulator, b, elements=elements) for b in GROUPS[group])
    assert_within_bounds(emulator, chain.from_iterable(at_lengths))


@pytest.mark.parametrize("group", OTHER_GROUPS)
def test_errors_of_other_families_are_within_their_bounds(emulator, group):
    """At each length that changes a launch, with every operand and option."""
    at_lengths = (families.boundary_cases(emulator, base) for base in OTHER_GROUPS[group])
    assert_within_bounds(emulator, chain.from_iterable(at_lengths))


@pytest.mark.exhaustive
@pytest.mark.parametrize("group", GROUPS)
def test_the_order_of_threads_and_blocks_changes_no_bit_at_any_of_these_lengths(
    emulator, in_any_order, group
):
    for base in GROUPS[group]:
        for case in families.boundary_cases(emulator, base):
            in_any_order(case, families.inputs(case))


@pytest.fixture
def batches(emulator, group, request) -> list[RowsCase]:
    """A group's cases at each of these lengths; without ``--exhaustive`` one for each kernel."""
    at_lengths = (families.boundary_cases(emulator, base) for base in GROUPS[group])
    cases = list(map(without_what_rows_share, chain.from_iterable(at_lengths)))
    every = request.config.getoption("exhaustive")
    return cases if every else list(families.each_kernel_once(emulator, cases))


@pytest.mark.parametrize("group", GROUPS)
def test_a_row_alone_and_in_a_batch_has_equal_bits(emulator, group, batches):
    for case in batches:
        assert_rows_are_independent(emulator, case)


@pytest.mark.slow("all kernels on an emulator, in two orders")
def test_every_kernel_is_executed_and_no_order_of_threads_and_blocks_changes_a_bit(
    emulator, in_any_order, record_property
):
    for case in families.racing_cases(emulator):
        in_any_order(case)
    instantiated = inventory.instantiated_kernels(build.emulator_library("plain"))
    table = inventory.coverage_table(emulator.executed(), instantiated)
    record_property("CUDA kernels executed on the emulator", table)
    assert emulator.executed() == instantiated, table
    assert {name.split("<")[0] for name in instantiated} == set(inventory.declared_kernels())


def launch_every_length(emulator: Emulator) -> None:
    """Dry launches at every width that alignment allows: of lengths that it divides, and of
    others."""
    for base, last in families.bases():
        args = families.prepared_args(emulator, base)
        is_spatial = isinstance(base, SpatialCase)
        many, count = ("inner", 100_000) if is_spatial else ("rows", 1000)
        for value in (1, count):
            setattr(getattr(args, "each", args), many, value)
            emulator.launch_every_length(args, last)


@pytest.mark.slow("launches rows of every length, dry, with each kernel's arguments")
def test_no_row_is_launched_with_more_threads_than_its_kernel_is_compiled_for(emulator):
    launch_every_length(emulator)
    declared = inventory.declared_kernels()
    lines = [f'#include "{header}"' for header in inventory.HEADERS]
    lines.append("namespace fusedops::cuda {")
    for name, kernel in declared.items():
        lines.append(f"template <{kernel.parameters}>")
        lines.append(f"constexpr int64_t bound_of_{name} = {kernel.bound};")
    for kernel, record in emulator.records().items():
        lines.append(f'static_assert(bound_of_{kernel} >= {record.threads}, "{kernel}");')
    lines.append("}")
    assert len(emulator.records()) > 100
    assert build.compile_errors("\n".join(lines)) == ""


#: Vectors of eight elements, in every kind of array.
OF_VECTORS: list[AnyCase] = [
    *(Case(op, "bfloat16", "float32", 5, 264, 8) for op in row_cases.OPS),
    *(
        NormCase(op, "bfloat16", 5, 264, 8, adds, parameters="float32", p=0.3)
        for op, adds in product(norm_cases.OPS, (False, True))
    ),
    *(
        MaskedCase(
            *(op, "bfloat16", "float32", (2, 3), 264, 8),
            **{"mask": "bool 111", "bias": bias, "zero_masked_rows": True},
        )
        for op, bias in zip(masked_cases.OPS, ("bfloat16 011", ""), strict=True)
    ),
    *(
        SpatialCase(op, "bfloat16", other, 2, 20, 24, 8, wanted=(True, False, False))
        for ops, other in ((spatial.SOFTMAXES, "float32"), (spatial.NORMS, "bfloat16"))
        for op in ops
    ),
    DropoutCase("bfloat16", 5, 264, 8),
]
#: Arrays whose vectors are single elements anyway.
SINGLE = {*norm_cases.STATISTICS, "grad_weight", "grad_bias"}


@pytest.mark.parametrize("case", OF_VECTORS, ids=lambda case: case.op)
def test_a_single_misaligned_array_is_enough_for_narrow_accesses(emulator, case):
    given = families.inputs(case)
    expected = families.run(emulator, replace(case, width=1), given)
    of_columns = norm_cases.PARAMETERS if isinstance(case, SpatialCase) else ()
    arrays = families.prepare(emulator, case, given).arrays
    for name in arrays.keys() - SINGLE - {*of_columns}:
        prepared = families.prepare(emulator, case, given, misaligned=name)
        emulator.launch(prepared.args)
        assert same_bits(prepared.outputs(), expected), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("op", row_cases.OPS)
@pytest.mark.parametrize("cols", [1, 96, 2000, 9001])
def test_a_launch_split_at_the_grids_limit_gives_the_same_bits(emulator, op, dtype, cols):
    case = Case(op, dtype, dtype, rows=1050 // cols + 9, cols=cols, width=1)
    whole = families.run(emulator, case)
    emulator.configure(Config(max_grid=4))
    assert same_bits(families.run(emulator, case), whole)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols, width", [(8, 1), (520, 2), (1032, 1), (33_000, 8)])
def test_inf_and_nan_come_out_as_in_eager(emulator, dtype, cols, width):
    assert_special_rows_are_as_in_eager(emulator, dtype, cols, width)


@pytest.mark.parametrize("cols", [96, 20_000])
def test_one_row_of_gradients_may_stand_for_all(emulator, cols):
    case = Case("softmax_backward", "float32", "float32", rows=9, cols=cols, width=4)
    given = row_cases.inputs(case)
    given["grad_output"][:] = given["grad_output"][0]
    expected = families.run(emulator, case, given)
    given["grad_output"][1:] = np.nan
    prepared = row_cases.Prepared(emulator, case, given)
    prepared.args.grad_output.spacing.stride = 0
    emulator.launch(prepared.args)
    assert same_bits(prepared.outputs(), expected)


#: Rows of every kind but backward norms, whose gradients of parameters are then zeros.
OF_ROWS: list[AnyCase] = [
    *(Case(op, "float32", "float32", 1, 96, 4) for op in row_cases.OPS),
    NormCase("norm_forward", "float32", 1, 96, 4),
    *(MaskedCase(op, "float32", "float32", (1,), 96, 4) for op in masked_cases.OPS),
    *(CrossEntropyCase(op, "float32", 1, 20_000) for op in cross_entropy.OPS),
    *(
        SpatialCase(op, "float32", "float32", 1, 9, 8, 4, wanted=(True, False, False))
        for op in spatial.OPS
    ),
    DropoutCase("float32", 1, 96, 4),
]


@pytest.mark.parametrize("case", OF_ROWS, ids=lambda case: case.op)
def test_no_rows_launch_nothing(emulator, case):
    args = families.prepared_args(emulator, case)
    setattr(args, "outer" if isinstance(case, SpatialCase) else "rows", 0)
    assert emulator.kernels_of(args) == set()
