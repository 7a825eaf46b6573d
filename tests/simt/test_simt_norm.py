"""LayerNorm, RMSNorm and StdNorm on the emulator, through the package's own launch code."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from fusedops import reference

from . import philox
from .cases.norm import KINDS, OPS, NormCase, Prepared, inputs, statistics
from .cases.rows import decode, encode
from .emulator.library import DTYPES, VECTOR_BYTES, Config, EmulatorError
from .families import run
from .judge import Judge, assert_within_bounds, same_bits, special_rows, tensor

FORWARD, BACKWARD = OPS
ROWS_ONLY = (True, False, False)


@pytest.mark.parametrize("op, cols", [*product([FORWARD], (1, 96, 2000, 9001)), (BACKWARD, 9001)])
@pytest.mark.parametrize("kind, adds", [("layer", False), ("rms", True)])
def test_a_launch_split_at_the_grids_limit_gives_the_same_bits(emulator, op, cols, kind, adds):
    case = NormCase(op, "bfloat16", 1050 // cols + 9, cols, 1, adds, kind=kind, wanted=ROWS_ONLY)
    case = replace(case, p=0.3)
    whole = run(emulator, case)
    # Blocks that walk over rows have one launch: of 3 partitions, of up to 5 segments a row.
    emulator.configure(Config(max_grid=4 if op == FORWARD else 15))
    assert same_bits(run(emulator, case), whole)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("rows, cols", [(9000, 8), (2300, 100), (1100, 513), (40, 9000)])
def test_blocks_that_walk_over_many_rows_sum_all_of_them(emulator, dtype, rows, cols):
    adds = cols in (8, 513)
    case = NormCase(BACKWARD, dtype, rows, cols, 1, adds, kind=KINDS[adds], weight=False, p=0.3)
    assert_within_bounds(emulator, [case])


#: Backward, a row is held by a block, by a cluster of 2 to 16, or goes by segments: the longest
#: and the shortest rows of each, with a device that has clusters.
SCOPES = [
    *[("registers", "bfloat16", 8, cols, False) for cols in (1056, 8192)],
    *[("registers", "float32", 4, 4096, True), ("registers", "float16", 2, 4096, False)],
    *[("cluster", "float16", 8, cols, False) for cols in (8200, 16_384, 16_392)],
    *[("cluster", "bfloat16", 8, cols, True) for cols in (32_776, 65_536)],
    *[("cluster", "float32", 4, 4100, True), ("cluster", "float32", 4, 8196, False)],
    *[("cluster", "float32", 4, 65_536, True), ("cluster", "float32", 4, 65_540, False)],
    *[("segments", "float32", 4, 65_540, True), ("segments", "bfloat16", 8, 131_080, False)],
    *[("cluster", "bfloat16", 1, cols, False) for cols in (4097, 16_385, 65_535)],
    *[("cluster", "float16", 2, 4098, False), ("cluster", "float32", 1, 32_767, False)],
    *[("segments", "bfloat16", 1, 65_537, False), ("segments", "float16", 2, 2050, True)],
    *[("segments", "float32", 1, 2049, True), ("segments", "float64", 2, 2050, False)],
]


def kernels_of(emulator, args):
    return {kernel.split("<")[0] for kernel in emulator.kernels_of(args)}


@pytest.mark.parametrize("scope, dtype, width, cols, adds", SCOPES)
def test_every_scope_of_a_row_gives_gradients_within_their_bounds(
    emulator, request, scope, dtype, width, cols, adds
):
    judge = Judge()
    # Column sums of long rows cost more than all else.
    columns = cols <= 9000 or request.config.getoption("exhaustive")
    for rows in (1, 7) if cols > 9000 else (5, 70):
        case = NormCase(BACKWARD, dtype, rows, cols, width, adds, kind=KINDS[rows % 3], p=0.3)
        case = replace(case, wanted=(True, columns, columns))
        given = inputs(case)
        prepared = Prepared(emulator, replace(case, clusters=True), given)
        assert f"norm_backward_{scope}" in kernels_of(emulator, prepared.args)
        emulator.launch(prepared.args)
        judge.add(case, given, prepared.outputs())
    judge.conclude()


@pytest.mark.parametrize("clusters", [False, True])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(
    "dtype, width, cols",
    [("bfloat16", 8, 8200), ("float32", 4, 8196), ("float16", 2, 4098), ("float64", 1, 2049)],
)
def test_no_schedule_changes_a_bit_of_sums_over_rows_and_no_other_row_one_of_a_gradient(
    emulator, in_any_order, dtype, width, cols, adds, clusters
):
    case = NormCase(BACKWARD, dtype, 9, cols, width, adds, clusters=clusters)
    given = inputs(case)
    first = in_any_order(case, given)
    of_rows = {name for name, values in given.items() if len(values) == case.rows}
    last = {name: given[name][-1:] if name in of_rows else given[name] for name in given}
    alone = run(emulator, replace(case, rows=1), last)
    assert np.array_equal(alone["grad_input"], first["grad_input"][-1:])


def partials_bytes(emulator, rows, cols, dtype, width, adds):
    """What partials of sums over rows have, the workspace of a launch that wants nothing else."""
    case = NormCase(BACKWARD, dtype, 1, width, width, adds, wanted=(False, True, True))
    args = Prepared(emulator, replace(case, clusters=True), inputs(case)).args
    args.rows, args.cols = rows, cols
    return emulator.workspace_bytes(args)


@pytest.mark.parametrize("multiprocessors", [14, 108, 114, 148, 170])
def test_the_backward_pass_has_whole_waves_on_any_gpu(emulator, multiprocessors):
    """On a part of a GPU, an A100, an H100 with PCIe, a B200 and an RTX 5090, as on an H100."""
    emulator.configure(Config(multiprocessors=multiprocessors))
    partials = partials_bytes(emulator, 100_000, 1024, "bfloat16", 8, adds=False)
    blocks = partials // (2 * 1024 * 4)
    assert blocks >= 64 and blocks % multiprocessors == 0


@pytest.mark.parametrize("dtype, width, cols", [("bfloat16", 8, 72), ("float32", 4, 8196)])
def test_the_number_of_multiprocessors_changes_only_the_order_of_sums_over_rows(
    emulator, dtype, width, cols
):
    case = NormCase(BACKWARD, dtype, 600, cols, width, clusters=True)
    given = inputs(case)
    expected = run(emulator, case, given)
    emulator.configure(Config(multiprocessors=20))
    found = run(emulator, case, given)
    assert np.array_equal(found["grad_input"], expected["grad_input"])
    judge = Judge()
    judge.add(case, given, found)
    judge.conclude()


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("rows", [8192, 8200, 20_000, 1_000_000])
def test_backward_moves_each_tensor_once_and_a_fifth_of_one_in_partials(emulator, adds, rows):
    """Rows of 16 bits. One kernel reads input and gradient, and partials are written and read."""
    case = NormCase(BACKWARD, "bfloat16", 1, 8, 8, adds, clusters=True)
    prepared = Prepared(emulator, case, inputs(case))
    for cols in (1024, 1032, 4096, 5128, 8192, 8200, 12_288, 16_384, 24_576, 32_768, 65_536):
        prepared.args.rows, prepared.args.cols = rows, cols
        holds = "registers" if cols <= 8192 else "cluster"
        kernels = {f"norm_backward_{holds}", "norm_backward_finish"}
        assert kernels_of(emulator, prepared.args) == kernels
        partials = 2 * partials_bytes(emulator, rows, cols, "bfloat16", 8, adds)
        assert partials <= 0.2 * rows * cols * 2, cols


@pytest.mark.parametrize("dtype, width", [("bfloat16", 8), ("float16", 1), ("float32", 4)])
def test_partials_of_few_rows_have_no_more_bytes_than_the_tensors(emulator, dtype, width):
    for rows, cols in product((4, 16, 100, 256, 1024), (96, 1024, 4096, 8192, 16_384, 100_000)):
        partials = 2 * partials_bytes(emulator, rows, cols, dtype, width, adds=False)
        assert partials <= 3 * rows * cols * DTYPES[dtype].itemsize, (rows, cols)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("cols, width", [(96, 8), (98, 2), (1040, 8), (9001, 1), (33_000, 8)])
@pytest.mark.parametrize("kind, adds", list(product(KINDS, (False, True))))
def test_usual_options_give_the_bits_of_the_form_that_has_all(
    emulator, dtype, cols, width, kind, adds
):
    for bias in (False, True):
        usual = NormCase(FORWARD, dtype, 3, cols, width, adds, kind=kind, bias=bias)
        given = inputs(usual)
        floats = {
            name: encode(decode(given[name], dtype), "float32")
            for name in ("weight", "bias")
            if name in given
        }
        any_form = replace(usual, parameters="float32")
        assert same_bits(run(emulator, any_form, given | floats), run(emulator, usual, given))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("cols, width", [(96, 8), (2048, 8), (9001, 1), (32_768, 8)])
def test_a_row_of_equal_elements_becomes_its_bias(emulator, dtype, cols, width):
    case = NormCase(FORWARD, dtype, 12, cols, width)
    given = inputs(case)
    given["input"][:] = given["input"][:, :1]
    expected = np.broadcast_to(given["bias"], given["input"].shape)
    assert np.array_equal(run(emulator, case, given)["output"], expected)


#: Makes rows from standard normal ones.
HARD_ROWS = {
    "far from zero": lambda normal: 1e4 + normal,
    "variance 1e-12": lambda normal: 1 + 1e-6 * normal,
    "constant": lambda normal: np.broadcast_to(normal[:, :1], normal.shape) * 100,
    # As far from the mean of every second element as that can be from the mean.
    "in turns": lambda normal: 100 + normal + np.arange(normal.shape[1]) % 2 * 1000,
}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", HARD_ROWS)
def test_rows_that_lose_digits_are_within_their_bounds(emulator, op, dtype, rows):
    judge = Judge()
    random = np.random.default_rng(1)
    widest = VECTOR_BYTES // DTYPES[dtype].itemsize
    lengths = [(96, 1), (1032, 2), (4097, 1), (4104, widest), (16_388, 2)]
    for (cols, width), kind in product(lengths, KINDS):
        case = NormCase(op, dtype, 12, cols, width, wanted=(True, cols < 100, cols < 100))
        case = replace(case, kind=kind, adds=cols in (96, 16_388) and op == FORWARD)
        hard = encode(HARD_ROWS[rows](random.standard_normal((12, cols))), dtype)
        given = inputs(case) | {"input": hard}
        if case.adds:
            given["residual"][:] = 0
        if not case.is_forward:
            given |= statistics(case, decode(hard, dtype).astype(np.longdouble))
        judge.run(emulator, case, given)
    judge.conclude()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eps", [0.0, 1e-40])
def test_an_eps_that_the_devices_reciprocal_flushes_changes_no_digit(
    emulator, op, dtype, kind, eps
):
    assert_within_bounds(emulator, [NormCase(op, dtype, 40, 104, 1, kind=kind, eps=eps)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cols", [96, 16_388])
def test_where_squares_overflow_the_bias_is_left_and_no_gradient(emulator, kind, cols):
    forward = NormCase(FORWARD, "float32", 3, cols, width=4, kind=kind)
    given = inputs(forward)
    given["input"][:] *= 1e30
    outputs = run(emulator, forward, given)
    assert (outputs["rstd"] == 0).all()
    assert (outputs["output"] == given["bias"]).all()
    backward = replace(forward, op=BACKWARD)
    given = inputs(backward) | {"input": given["input"]}
    given |= {name: outputs[name] for name in ("mean", "rstd") if name in given}
    gradients = run(emulator, backward, given)
    assert (gradients["grad_input"] == 0).all() and (gradients["grad_weight"] == 0).all()
    assert np.isfinite(gradients["grad_bias"]).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_element_has_no_standard_deviation(emulator, dtype):
    case = NormCase(FORWARD, dtype, 3, cols=1, width=1, kind="std")
    outputs = run(emulator, case)
    assert not np.isnan(decode(outputs["mean"], case.statistics)).any()
    assert np.isnan(outputs["rstd"]).all() and np.isnan(decode(outputs["output"], dtype)).all()
    case = replace(case, op=BACKWARD)
    given = inputs(replace(case, kind="layer")) | {"rstd": outputs["rstd"]}
    gradients = run(emulator, case, given)
    assert np.isnan(decode(gradients["grad_input"], dtype)).all()
    assert np.isnan(decode(gradients["grad_weight"], dtype)).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols, width", [(8, 1), (520, 2), (1032, 1), (33_000, 8)])
def test_inf_and_nan_come_out_as_by_the_definition(emulator, kind, dtype, cols, width):
    stored = special_rows(cols, dtype, 0.5)
    width = min(width, 16 // DTYPES[dtype].itemsize)
    case = NormCase(FORWARD, dtype, len(stored), cols, width, kind=kind)
    case = replace(case, weight=False, bias=False)
    actual = tensor(run(emulator, case, {"input": stored})["output"], dtype)
    exact = getattr(reference, f"{kind}_norm")(tensor(stored, dtype), [cols])
    assert torch.equal(actual.isnan(), exact.isnan())
    assert torch.equal(actual.isinf(), exact.isinf())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("parameters", ["", "float32"])
@pytest.mark.parametrize("kind, cols, width", [("rms", 264, 8), ("layer", 101, 1)])
def test_what_is_normalised_is_rounded_where_it_is_to_be(
    emulator, kind, dtype, parameters, cols, width
):
    case = NormCase(FORWARD, dtype, 9, cols, width, kind=kind, parameters=parameters)
    given = inputs(case)
    plain = replace(case, weight=False, bias=False)
    normal = decode(run(emulator, plain, {"input": given["input"]})["output"], dtype)
    weight, bias = (decode(given[name], case.parameter_dtype) for name in ("weight", "bias"))
    rounding = replace(case, rounds_normalized=True)
    expected = encode(np.float32(normal * weight + bias), dtype)
    assert np.array_equal(run(emulator, rounding, given)["output"], expected)
    assert not np.array_equal(run(emulator, case, given)["output"], expected)


@pytest.mark.parametrize("p", [0.5, 1.0])
@pytest.mark.parametrize("dtype, width", [("float32", 4), ("bfloat16", 8), ("float16", 1)])
@pytest.mark.parametrize("cols", [104, 17_000])
def test_dropout_keeps_what_philox_says_forward_and_backward(emulator, dtype, width, cols, p):
    case = NormCase(FORWARD, dtype, 3, cols, width, adds=True, p=p)
    kept = philox.kept(3, cols, philox.SEED, philox.threshold(p)) & (p < 1)
    ones = encode(np.ones((3, cols)), dtype)
    given = inputs(case) | {"input": ones, "residual": np.zeros_like(ones)}
    outputs = run(emulator, case, given)
    assert np.array_equal(decode(outputs["sum"], dtype), np.where(kept, 2.0, 0.0))
    backward = replace(case, op=BACKWARD, wanted=ROWS_ONLY)
    gradients = run(emulator, backward)
    size = decode(gradients["grad_input"], dtype)
    branch = decode(gradients["grad_branch"], dtype)
    assert np.array_equal(branch, np.where(kept, 2 * size, 0.0))
    alone = run(emulator, replace(backward, wanted=(False, False, False)))
    assert list(alone) == ["grad_branch"]
    assert np.array_equal(alone["grad_branch"], gradients["grad_branch"])


#: Rows of floats beside a branch of 16 bits: in one block, in a cluster and by segments.
MIXED_ROWS = [(4, 96), (4, 4096), (4, 4100), (4, 70_000), (1, 7), (1, 97), (1, 1000), (1, 5001)]


@pytest.mark.parametrize("branch", ["bfloat16", "float16"])
@pytest.mark.parametrize("width, cols", MIXED_ROWS)
@pytest.mark.parametrize("clusters", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_a_branch_of_16_bits_gives_the_bits_of_one_of_floats(
    emulator, branch, width, cols, clusters, p
):
    case = NormCase(FORWARD, "float32", 3, cols, width, adds=True, p=p, clusters=clusters)
    given = inputs(replace(case, branch=branch))
    wide = encode(decode(given["input"], branch), "float32")
    expected = run(emulator, case, given | {"input": wide})
    assert same_bits(run(emulator, replace(case, branch=branch), given), expected)

    case = replace(case, op=BACKWARD, wanted=(True, cols < 100, cols < 100))
    found = run(emulator, replace(case, branch=branch))
    expected = run(emulator, case)
    of_branch = decode(expected.get("grad_branch", expected["grad_input"]), "float32")
    expected["grad_branch"] = encode(of_branch, branch)
    assert same_bits(found, expected)


@pytest.mark.parametrize("branch", ["bfloat16", "float16"])
@pytest.mark.parametrize("width, cols", [(4, 264), (1, 264)])
@pytest.mark.parametrize("op", OPS)
def test_a_misaligned_branch_of_16_bits_is_enough_for_narrow_accesses(
    emulator, op, branch, width, cols
):
    case = NormCase(op, "float32", 5, cols, width, adds=True, branch=branch, p=0.3)
    given, name = inputs(case), "input" if op == FORWARD else "grad_branch"
    prepared = Prepared(emulator, case, given, misaligned=name)
    emulator.launch(prepared.args)
    assert same_bits(prepared.outputs(), run(emulator, replace(case, width=1), given))


@pytest.mark.parametrize("dtype, width", [("float32", 4), ("bfloat16", 8)])
@pytest.mark.parametrize("cols", [104, 17_000])
@pytest.mark.parametrize("kind", KINDS)
def test_a_sum_that_is_not_wanted_changes_nothing_and_all_may_happen_in_place(
    emulator, kind, dtype, width, cols
):
    case = NormCase(FORWARD, dtype, 3, cols, width, adds=True, kind=kind, p=0.3)
    expected = run(emulator, case)
    without = run(emulator, replace(case, with_sum=False))
    assert same_bits(without, expected)
    for to, memory in product(("output", "sum"), ("input", "residual")):
        prepared = Prepared(emulator, case, inputs(case))
        assert prepared.launch_over(memory, to).tobytes() == expected[to].tobytes()


@pytest.mark.parametrize("cols", [96, 20_000])
@pytest.mark.parametrize("adds", [False, True])
def test_one_row_of_gradients_may_stand_for_all(emulator, adds, cols):
    case = NormCase(BACKWARD, "float32", rows=9, cols=cols, width=4, adds=adds)
    case = replace(case, wanted=(True, cols < 100, cols < 100))
    given = inputs(case)
    shared = ["grad_output", "grad_sum"] if adds else ["grad_output"]
    for name in shared:
        given[name][:] = given[name][0]
    expected = run(emulator, case, given)
    for name in shared:
        given[name][1:] = np.nan
    prepared = Prepared(emulator, case, given)
    for name in shared:
        getattr(prepared.args, name).spacing.stride = 0
    emulator.launch(prepared.args)
    assert same_bits(prepared.outputs(), expected)


@pytest.mark.parametrize("cols, width", [(96, 4), (97, 1), (9001, 1), (20_000, 4)])
@pytest.mark.parametrize("kind, adds", list(product(KINDS, (False, True))))
def test_any_of_the_gradients_may_be_left_out(emulator, kind, adds, cols, width):
    case = NormCase(BACKWARD, "float32", 3, cols, width, adds, kind=kind, weight=not adds)
    whole = run(emulator, case)
    for wanted in product((False, True), repeat=3):
        part = run(emulator, replace(case, wanted=wanted))
        assert same_bits(part, {name: whole[name] for name in part})
        assert len(part) == sum(wanted)


@pytest.mark.parametrize("op", OPS)
def test_parameters_of_a_third_dtype_are_refused(emulator, op):
    case = NormCase(op, "float16", rows=1, cols=96, width=8, parameters="bfloat16")
    with pytest.raises(EmulatorError, match="status 1"):
        run(emulator, case)
