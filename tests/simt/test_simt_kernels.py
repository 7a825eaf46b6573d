"""Every CUDA kernel, run through the package's own launch code on the emulator."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from . import build, cases, families, inventory
from .cases import OPS, PAIRS, Arrays, Case
from .emulator import DTYPES, SCHEDULES, Config, Emulator
from .judge import Judge, tensor
from .planes_cases import PlanesCase

FAMILIES = list(product(OPS, PAIRS))
IDS = [f"{op}-{dtype}-{other}" for op, (dtype, other) in FAMILIES]


def bases_of(op: str, pair: tuple[str, str]) -> list[Case]:
    return [base for base in cases.bases() if (base.op, base.dtype, base.other) == (op, *pair)]


def same_bits(first: Arrays, second: Arrays) -> bool:
    return all(first[name].tobytes() == second[name].tobytes() for name in first)


@pytest.mark.parametrize("op, pair", FAMILIES, ids=IDS)
def test_error_is_no_larger_than_eagers_at_every_length_that_changes_a_launch(emulator, op, pair):
    judge = Judge()
    for base in bases_of(op, pair):
        for case in cases.boundary_cases(emulator, base, elements=20_000):
            given = cases.inputs(case)
            judge.add(case, given, cases.run(emulator, case, given))
    judge.conclude()


@pytest.mark.parametrize("op, pair", FAMILIES, ids=IDS)
def test_the_order_of_threads_and_blocks_and_unwritten_memory_change_no_bit(emulator, op, pair):
    for base in bases_of(op, pair):
        for case in cases.boundary_cases(emulator, base):
            given = cases.inputs(case)
            results = []
            for schedule in SCHEDULES.values():
                emulator.configure(schedule)
                results.append(cases.run(emulator, case, given))
            assert all(same_bits(results[0], result) for result in results), case


@pytest.mark.parametrize("op, pair", FAMILIES, ids=IDS)
def test_a_row_alone_and_in_a_batch_has_equal_bits(emulator, op, pair):
    columns = ("weight", "bias")
    for base in bases_of(op, pair):
        for case in cases.boundary_cases(emulator, base):
            case = replace(case, wanted=(True, False, False))
            given = cases.inputs(case)
            batch = cases.run(emulator, case, given)
            for row in (0, case.rows - 2):
                one = slice(row, row + 1)
                own = {
                    name: values if name in columns else values[one]
                    for name, values in given.items()
                }
                alone = cases.run(emulator, replace(case, rows=1), own)
                expected = {name: values[one] for name, values in batch.items()}
                assert same_bits(alone, expected), (case, row)


def test_every_kernel_variant_is_executed(emulator, record_property):
    for case in families.racing_cases(emulator):
        families.run(emulator, case)
    instantiated = inventory.instantiated_kernels(build.emulator_library("plain"))
    table = inventory.coverage_table(emulator.executed(), instantiated)
    record_property("CUDA kernels executed on the emulator", table)
    assert emulator.executed() == instantiated, table
    assert {name.split("<")[0] for name in instantiated} == set(inventory.declared_kernels())


def launch_every_length(emulator: Emulator) -> None:
    """Dry, at every width that alignment may leave: lengths that it divides and others."""
    for base, last in families.bases():
        args = families.prepared_args(emulator, base)
        for many in (1, 100_000):
            setattr(args, "lanes" if isinstance(base, PlanesCase) else "rows", many)
            emulator.launch_every_length(args, last)


def test_no_row_is_launched_with_more_threads_than_its_kernel_is_compiled_for(emulator):
    launch_every_length(emulator)
    declared = inventory.declared_kernels()
    lines = [f'#include "fusedops/cuda/{header.name}"' for header in inventory.HEADERS]
    lines.append("namespace fusedops::cuda {")
    for name, kernel in declared.items():
        lines.append(f"template <{kernel.parameters}>")
        lines.append(f"constexpr int64_t bound_of_{name} = {kernel.bound};")
    for kernel, record in emulator.records().items():
        lines.append(f'static_assert(bound_of_{kernel} >= {record.threads}, "{kernel}");')
    lines.append("}")
    assert len(emulator.records()) > 100
    assert build.compile_errors("\n".join(lines)) == ""


@pytest.mark.parametrize("op", OPS)
def test_a_single_misaligned_array_is_enough_for_narrow_accesses(emulator, op):
    case = Case(op, "bfloat16", "float32", rows=5, cols=264, width=8)
    given = cases.inputs(case)
    expected = cases.run(emulator, replace(case, width=1), given)
    for name in cases.Prepared(emulator, case, given).arrays:
        if name in ("mean", "rstd", "grad_weight", "grad_bias"):
            continue  # one element at a time anyway
        prepared = cases.Prepared(emulator, case, given, misaligned=name)
        emulator.launch(prepared.args)
        assert same_bits(prepared.outputs(), expected), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "op, cols",
    [*product(OPS[:3], (1, 96, 2000, 9001)), ("layer_norm_backward", 9001)],  # a block a row
)
def test_a_launch_split_at_the_grids_limit_gives_the_same_bits(emulator, op, dtype, cols):
    case = Case(op, dtype, dtype, rows=1050 // cols + 9, cols=cols, width=1)
    case = replace(case, wanted=(True, False, False))
    given = cases.inputs(case)
    whole = cases.run(emulator, case, given)
    emulator.configure(Config(max_grid=2))
    assert same_bits(cases.run(emulator, case, given), whole)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("rows, cols", [(9000, 8), (2300, 100), (1100, 513), (40, 9000)])
def test_blocks_that_walk_over_many_rows_sum_all_of_them(emulator, dtype, rows, cols):
    case = Case("layer_norm_backward", dtype, dtype, rows, cols, width=1, weight=False)
    given = cases.inputs(case)
    judge = Judge()
    judge.add(case, given, cases.run(emulator, case, given))
    judge.conclude()


#: Rows from standard normal ones.
HARD_ROWS = {
    "far from zero": lambda normal: 1e4 + normal,
    "variance 1e-12": lambda normal: 1 + 1e-6 * normal,
    "constant": lambda normal: np.broadcast_to(normal[:, :1], normal.shape) * 100,
}


@pytest.mark.parametrize("op", OPS[2:])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("rows", HARD_ROWS)
def test_layer_norm_of_rows_that_lose_digits_is_as_exact_as_eager(emulator, op, dtype, rows):
    judge = Judge()
    random = np.random.default_rng(1)
    for cols, width in [(96, 1), (1032, 2), (4097, 1), (16_388, 2)]:
        case = Case(op, dtype, dtype, 12, cols, width, wanted=(True, cols < 100, cols < 100))
        hard = cases.encode(HARD_ROWS[rows](random.standard_normal((12, cols))), dtype)
        given = cases.inputs(case) | {"input": hard}
        if op == "layer_norm_backward":
            x = cases.decode(hard, dtype).astype(np.longdouble)
            rstd = 1 / np.sqrt(x.var(-1, keepdims=True) + cases.EPS)
            given["mean"][:], given["rstd"][:] = x.mean(-1, keepdims=True), rstd
        judge.add(case, given, cases.run(emulator, case, given))
    judge.conclude()


@pytest.mark.parametrize("cols", [96, 16_388])
def test_layer_norm_where_squares_overflow_is_the_bias_and_has_no_gradient(emulator, cols):
    forward = Case("layer_norm_forward", "float32", "float32", 3, cols, width=4)
    given = cases.inputs(forward)
    given["input"][:] *= 1e30
    outputs = cases.run(emulator, forward, given)
    assert (outputs["rstd"] == 0).all()
    assert (outputs["output"] == given["bias"]).all()
    backward = replace(forward, op="layer_norm_backward")
    given = cases.inputs(backward) | {"input": given["input"]}
    given |= {name: outputs[name] for name in ("mean", "rstd")}
    gradients = cases.run(emulator, backward, given)
    assert (gradients["grad_input"] == 0).all() and (gradients["grad_weight"] == 0).all()
    assert np.isfinite(gradients["grad_bias"]).all()


INF, NAN = np.inf, np.nan
SPECIAL_ROWS = {
    "all -inf": [-INF] * 8,
    "one finite": [-INF, -INF, 2.0, -INF, -INF, -INF, -INF, -INF],
    "+inf": [1.0, INF, 2.0, -INF, 0.0, 1.0, 2.0, 3.0],
    "NaN first": [NAN, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
    "NaN beside -inf": [-INF, -INF, -INF, NAN, -INF, -INF, -INF, -INF],
    "lowest and largest": [6e4, -6e4, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
}


@pytest.mark.parametrize("op", ["softmax_forward", "layer_norm_forward"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols, width", [(8, 1), (520, 2), (1032, 1), (33_000, 8)])
def test_inf_and_nan_come_out_as_in_eager(emulator, op, dtype, cols, width):
    padding = [-INF if op == "softmax_forward" else 0.5] * (cols - 8)
    rows = np.array([row + padding for row in SPECIAL_ROWS.values()])
    rows = np.concatenate([rows, rows[:, ::-1]])
    x = tensor(cases.encode(rows, dtype), dtype)
    width = min(width, 16 // DTYPES[dtype].itemsize)
    for log in (False, True):
        case = Case(op, dtype, dtype, len(rows), cols, width, log=log, weight=False, bias=False)
        outputs = cases.run(emulator, case, {"input": cases.encode(rows, dtype)})
        actual = tensor(outputs["output"], dtype)
        softmax = torch.log_softmax if log else torch.softmax
        norm = torch.nn.functional.layer_norm
        eager = softmax(x, -1) if op == "softmax_forward" else norm(x, [cols])
        assert torch.equal(actual.isnan(), eager.isnan())
        assert torch.equal(actual.isinf(), eager.isinf())


@pytest.mark.parametrize("op", ["softmax_backward", "layer_norm_backward"])
@pytest.mark.parametrize("cols", [96, 20_000])
def test_one_row_of_gradients_may_stand_for_all(emulator, op, cols):
    case = Case(op, "float32", "float32", rows=9, cols=cols, width=4)
    given = cases.inputs(case)
    given["grad_output"][:] = given["grad_output"][0]
    expected = cases.run(emulator, case, given)
    given["grad_output"][1:] = np.nan
    prepared = cases.Prepared(emulator, case, given)
    prepared.args.grad_output.stride = 0
    emulator.launch(prepared.args)
    assert same_bits(prepared.outputs(), expected)


@pytest.mark.parametrize("op", OPS[:3])
def test_no_rows_launch_nothing(emulator, op):
    case = Case(op, "float32", "float32", rows=1, cols=96, width=4)
    prepared = cases.Prepared(emulator, case, cases.inputs(case))
    prepared.args.rows = 0
    assert emulator.kernels_of(prepared.args) == set()
