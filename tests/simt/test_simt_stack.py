"""Stacks of tensors: one launch where rows stay in registers, with the bits of separate calls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from . import families
from .cases import stack as stack_cases
from .cases.norm import NormCase
from .cases.rows import Case
from .cases.stack import Prepared, StackCase
from .emulator.library import Config, Emulator, EmulatorError
from .judge import same_bits

BASES = stack_cases.bases()


def launches(emulator: Emulator, case: StackCase) -> int:
    """How many kernels are launched for all tensors together."""
    before = emulator.launch_count()
    families.run(emulator, case)
    return emulator.launch_count() - before


@pytest.mark.parametrize("op", sorted({base.op for base in BASES}))
def test_every_tensor_gets_the_bits_that_it_gets_alone(emulator, request, op):
    """At every length that changes a launch; without ``--exhaustive`` each kernel once."""
    bases = (base for base in BASES if base.op == op)
    cases = [case for base in bases for case in stack_cases.boundary_cases(emulator, base)]
    if not request.config.getoption("exhaustive"):
        cases = list(families.each_kernel_once(emulator, cases))
    for case in cases:
        given = stack_cases.inputs(case)
        outputs = families.run(emulator, case, given)
        for i in range(case.count):
            alone = families.run(emulator, case.of, case.slot(i, given))
            assert same_bits(alone, case.slot(i, outputs)), (case, i)


SHORT = [
    (Case("softmax_forward", "bfloat16", "bfloat16", rows=70, cols=64, width=8), 1),
    (Case("softmax_forward", "float32", "float32", rows=2, cols=5000, width=4, log=True), 1),
    (NormCase("norm_forward", "float16", rows=70, cols=64, width=8), 1),
    (Case("softmax_forward", "bfloat16", "float32", rows=3, cols=64, width=8), 1),
    # One more kernel adds the partials of the column sums.
    (NormCase("norm_backward", "bfloat16", rows=70, cols=64, width=8), 2),
    (NormCase("norm_backward", "float32", 3, 4096, 4, wanted=(True, False, False)), 1),
]


@pytest.mark.parametrize("of, kernels", SHORT, ids=lambda of: getattr(of, "op", of))
def test_a_stack_is_one_launch_in_any_schedule(emulator, in_any_order, of, kernels):
    case = StackCase(of, count=5)
    assert launches(emulator, case) == kernels
    in_any_order(case)


@pytest.mark.parametrize("of, kernels", SHORT, ids=lambda of: getattr(of, "op", of))
def test_a_misaligned_tensor_leaves_the_others_their_bits(emulator, of, kernels):
    case = StackCase(of, count=4)
    given = stack_cases.inputs(case)
    for misaligned in (0, 3):
        prepared = Prepared(emulator, case, given, misaligned)
        emulator.launch(prepared.args)
        outputs = prepared.outputs()
        for i in range(case.count):
            alone = replace(of, width=1) if i == misaligned else of
            expected = families.run(emulator, alone, case.slot(i, given))
            assert same_bits(expected, case.slot(i, outputs)), i


def test_a_stack_that_does_not_fit_into_a_grid_is_launched_tensor_by_tensor(emulator):
    case = StackCase(SHORT[0][0], count=5)
    whole = families.run(emulator, case)
    emulator.configure(Config(max_grid=3))
    assert same_bits(families.run(emulator, case), whole)


#: Unaligned rows, 4-byte vectors, and doubles.
ONE_BY_ONE = [
    (NormCase("norm_backward", "bfloat16", rows=3, cols=1023, width=1), 2),
    (
        NormCase("norm_backward", "float16", rows=3, cols=66, width=2, wanted=(True, False, False)),
        1,
    ),
    (Case("softmax_forward", "float16", "float16", rows=3, cols=66, width=2), 1),
    (NormCase("norm_forward", "float32", rows=2, cols=2001, width=1), 1),
    (NormCase("norm_forward", "float64", rows=2, cols=201, width=1), 1),
]


@pytest.mark.parametrize("of, kernels", ONE_BY_ONE, ids=lambda of: getattr(of, "op", of))
def test_rows_without_a_kernel_for_stacks_are_launched_tensor_by_tensor(emulator, of, kernels):
    assert launches(emulator, StackCase(of, count=3)) == 3 * kernels


def test_tensors_with_too_small_a_workspace_are_refused(emulator):
    case = StackCase(SHORT[4][0], 3)
    prepared = Prepared(emulator, case, stack_cases.inputs(case))
    prepared.args.workspace_bytes -= 1
    with pytest.raises(EmulatorError, match="status 1"):
        emulator.launch(prepared.args)
