"""Masked softmax on the emulator, through the package's own launch code."""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from . import philox
from .cases.masked import OPERANDS, OPS, PLAIN, STATISTICS, MaskedCase, with_operands
from .cases.prepared import InDeviceMemory
from .cases.rows import Arrays, encode
from .emulator.library import Config
from .families import inputs, prepare, prepared_args, run
from .judge import SPECIAL_ROWS, same_bits, tensor

FORWARD, BACKWARD = OPS
INF, NAN = np.inf, np.nan


#: A row in part of a warp, in several warps, and in the looped kernels; every kind of option.
FEW = [
    MaskedCase(
        *(op, "bfloat16", "bfloat16", (2, 1, 3), cols, width),
        mask="bool 1011",
        bias="float32 0111" if op == FORWARD else "",
        diagonal=diagonal,
        mask_value=-1e4,
        zero_masked_rows=True,
        p=0.3,
    )
    for op in OPS
    for cols, width, diagonal in [(40, 8, 20), (1040, 1, None), (1600, 8, 900), (17_000, 8, 9000)]
]
#: The kernels for one part: rows in part of a warp, in a warp, and in several warps.
FEW += [
    replace(with_operands(case, 0), mask_value=-1e4, zero_masked_rows=True, p=0.3)
    for op, terms in product(OPS, ["none", "causal", "bool", "numbers"])
    if op == FORWARD or terms != "numbers"
    for cols in (40, 2048, 4104)
    for case in [MaskedCase(op, "bfloat16", "bfloat16", (2, 1, 3), cols, 8, terms)]
]
#: Short rows of single elements, with every kind of operand, two rows a thread or one.
FEW += [
    replace(with_operands(case, i), mask_value=-1e4, zero_masked_rows=True)
    for op in OPS
    for i, cols in enumerate([49, 64, 65, 197, 577, 641, 1023])
    for case in [MaskedCase(op, "bfloat16", "bfloat16", (2, 1, 3), cols, 1, PLAIN)]
]
#: Soft caps, with the operands of kernels for all terms.
FEW += [
    replace(case, mask_value=-1e4, zero_masked_rows=True, p=0.3)
    for cols, width in [(40, 8), (1040, 1), (1600, 8), (17_000, 8)]
    for case in [
        with_operands(
            MaskedCase(FORWARD, "bfloat16", "bfloat16", (2, 1, 3), cols, width, "capped"), 1
        )
    ]
]
#: Intervals that begin behind column 0, and sinks.
FEW += [
    MaskedCase(
        *(op, "bfloat16", "bfloat16", (2, 1, 3), cols, width),
        **{"mask": "bool 1011" if lower is None else "", "lower": lower, "sinks": "float 1010"},
        **{"start": "int64 1010" if lower is None else "", "end": "int32 1000"},
        **{"mask_value": -1e4, "zero_masked_rows": True, "p": 0.3},
    )
    for op in OPS
    for cols, width, lower in [(40, 8, 11), (1040, 1, None), (1600, 8, 900), (17_000, 8, None)]
]
FEW_IDS = [f"{case.op}-{case.terms}-{case.cols}" for case in FEW]


@pytest.mark.parametrize("case", FEW, ids=FEW_IDS)
def test_neither_order_nor_split_nor_a_result_in_place_changes_a_bit(emulator, in_any_order, case):
    """The order of threads and blocks, also where memory is unwritten, and launches of parts."""
    split = Config(max_grid=2)
    whole = in_any_order(case, None, split)
    emulator.configure(split)
    prepared = prepare(emulator, case, inputs(case))
    source, to = ("input", "output") if case.op == FORWARD else ("grad_output", "grad_input")
    assert prepared.launch_over(source, to).tobytes() == whole[to].tobytes()


def moved_to_row(case: MaskedCase, prepared: InDeviceMemory, row: int) -> None:
    """Changes the arguments to those of that row alone."""
    args = prepared.args
    args.rows, args.scores.dims.count = 1, 0
    for name, array in prepared.arrays.items():
        offset = row * array.stride * array.values.itemsize
        if name in STATISTICS:
            setattr(args, name, getattr(args, name) + offset)
        elif name not in OPERANDS:
            getattr(args, name).data += offset
    at = np.unravel_index(row, case.dims)
    for name in OPERANDS:
        operand = getattr(args.scores, name)
        if operand.data:
            offset = sum(i * stride for i, stride in zip(at, operand.strides, strict=False))
            operand.data += int(offset) * prepared.arrays[name].values.itemsize
    if case.diagonal is not None:
        args.scores.causal.queries = 1
        args.scores.causal.diagonal += row % case.dims[-1]
    if case.lower is not None:
        args.scores.causal.queries = 1
        args.scores.causal.lower_diagonal += row % case.dims[-1]


@pytest.mark.parametrize("case", FEW, ids=FEW_IDS)
def test_a_row_alone_and_in_a_batch_has_equal_bits(emulator, case):
    case = replace(case, p=0.0)  # its pattern depends on the row's index
    batch = run(emulator, case)
    for row in (0, case.rows - 1):
        prepared = prepare(emulator, case, inputs(case))
        moved_to_row(case, prepared, row)
        emulator.launch(prepared.args)
        for name, values in prepared.outputs().items():
            assert values[row].tobytes() == batch[name][row].tobytes()


@pytest.mark.parametrize("op", OPS)
def test_operands_whose_rows_are_misaligned_have_another_kernel(emulator, op):
    bias = "bfloat16 011" if op == FORWARD else ""
    case = MaskedCase(op, "bfloat16", "float32", (2, 3), 264, 8, mask="bool 111", bias=bias)
    for name in case.operands:
        args = prepared_args(emulator, case)
        before = emulator.kernels_of(args)
        getattr(args.scores, name).strides[1] += 1  # every second row
        assert emulator.kernels_of(args).isdisjoint(before)


#: The terms of scores.h by their bits, and the operands whose scores have them in bfloat16.
PICKED = [
    (0, {}),
    (1, {"diagonal": 3}),
    (2, {"mask": "bool 011"}),
    (2, {"mask": "bool 111"}),
    (4, {"mask": "bfloat16 011"}),
    (4, {"bias": "bfloat16 111"}),
    (7, {"mask": "bool 010"}),
    (7, {"mask": "float32 011"}),
    (7, {"bias": "bfloat16 010"}),
    (7, {"mask": "bool 011", "diagonal": 3}),
    (7, {"mask": "bool 011", "bias": "bfloat16 011"}),
    (7, {"mask": "bfloat16 011", "bias": "bfloat16 011"}),
    (7, {"bias": "bfloat16 011", "diagonal": 3}),
    (7, {"lower": 3}),
    (7, {"start": "int32 010"}),
    (7, {"end": "int64 110", "diagonal": 3}),
    (7, {"sinks": "float 000"}),
    (15, {"softcap": 30.0}),
    (15, {"softcap": 30.0, "mask": "bool 011", "diagonal": 3}),
]


def kernel_of(emulator, op: str, cols: int, width: int, options: dict) -> str:
    case = MaskedCase(op, "bfloat16", "bfloat16", (2, 3), cols, width, **options)
    (kernel,) = emulator.kernels_of(prepared_args(emulator, case))
    return kernel


@pytest.mark.parametrize("terms, operands", PICKED)
def test_scores_of_one_part_have_a_kernel_of_their_own(emulator, terms, operands):
    kernel = kernel_of(emulator, FORWARD, 2048, 8, operands)
    vectors = 2 if terms & 7 == 7 else 4
    assert kernel == f"masked_softmax_forward_registers<__nv_bfloat16, 8, {vectors}, {terms}, 0>"


@pytest.mark.parametrize(
    "terms, operands",
    [
        (0, {"mask": "bfloat16 011"}),
        (1, {"mask": "bfloat16 011", "diagonal": 3}),
        (2, {"mask": "bool 111"}),
        (7, {"mask": "bool 010"}),
        (7, {"mask": "bool 011", "diagonal": 3}),
    ],
)
def test_what_was_added_to_the_scores_does_not_change_the_backward_kernel(
    emulator, terms, operands
):
    kernel = kernel_of(emulator, BACKWARD, 2048, 8, operands)
    assert kernel == f"masked_softmax_backward_registers<__nv_bfloat16, 8, 2, {terms}>"


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    "cols, vectors, threads",
    [(2, 8, 8), (49, 8, 8), (65, 16, 16), (197, 16, 16), (577, 20, 32), (1023, 32, 32)],
)
@pytest.mark.parametrize(
    "operands",
    [
        {},
        {"diagonal": 3},
        {"mask": "bool 011", "diagonal": 3},
        {"mask": "bool 111", "bias": "bfloat16 011"},
        {"mask": "bfloat16 011", "bias": "bfloat16 111"},
    ],
)
def test_short_rows_of_single_elements_have_one_kernel_for_plain_scores(
    emulator, op, cols, vectors, threads, operands
):
    kernel = kernel_of(emulator, op, cols, 1, operands)
    assert kernel == f"{op}_unaligned<__nv_bfloat16, 1, {vectors}, {threads}>"


@pytest.mark.parametrize(
    "options",
    [
        {"p": 0.3},
        {"mask": "bool 010"},
        {"mask": "float32 011"},
        {"lower": 3},
        {"end": "int64 110"},
        {"sinks": "float 000"},
        {"scale": 0.0},
        {"scale": -1.0},
        {"mask_value": INF},
    ],
)
def test_other_short_rows_of_single_elements_go_by_the_kernel_for_all_parts(emulator, options):
    kernel = kernel_of(emulator, FORWARD, 49, 1, options)
    assert kernel == "masked_softmax_forward_registers<__nv_bfloat16, 1, 16, 7, 0>"


@pytest.mark.parametrize("p", [0.1, 0.5, 1.0])
@pytest.mark.parametrize(
    "dtype, width", [("float32", 4), ("bfloat16", 8), ("float64", 2), ("float16", 1)]
)
@pytest.mark.parametrize("cols", [104, 17_000])
def test_dropout_keeps_what_philox_says(emulator, dtype, width, cols, p):
    case = MaskedCase(FORWARD, dtype, dtype, (3,), cols, width, p=p)
    given = {"input": np.zeros((3, cols), inputs(case)["input"].dtype)}
    output = tensor(run(emulator, case, given)["output"], dtype)
    kept = philox.kept(3, cols, philox.SEED, philox.threshold(p)) & (p < 1)
    assert np.array_equal((output != 0).numpy(), kept)
    expected = torch.tensor(philox.scale(p) / cols).double()
    assert torch.allclose(output[torch.from_numpy(kept)].double(), expected, 1e-2, 1e-9)
    given["input"][:, 5] = encode(np.array([NAN]), dtype)[0]
    assert tensor(run(emulator, case, given)["output"], dtype).isnan().all()
    backward = replace(case, op=BACKWARD)
    ones = {"grad_output": encode(np.ones((3, cols)), dtype)}
    ones["probabilities"] = encode(np.eye(3, cols), dtype)
    gradient = tensor(run(emulator, backward, ones)["grad_input"], dtype)
    assert gradient.abs().max() == 0  # p * (g - p * g) of a one-hot row


SPECIAL = {"finite": [1.0, -2.0, 3.0, 0.5, 0.0, 1.0, 2.0, 3.0], **SPECIAL_ROWS}


def special_case(cols: int, mask_value: float, by: str, zeros: bool) -> tuple[MaskedCase, Arrays]:
    """Every special row with the first columns visible: none, two, or all."""
    lengths = [0, 2, 5, cols] if by else [cols]
    rows = [[*row, *[-INF] * (cols - 8)] for row in SPECIAL.values() for _ in lengths]
    case = MaskedCase(
        *(FORWARD, "float32", "float32", (len(SPECIAL), len(lengths)), cols, 1 if cols % 4 else 4),
        mask="bool 111" if by == "mask" else "",
        diagonal=-1 if by == "causal" else None,
        mask_value=mask_value,
        zero_masked_rows=zeros,
    )
    given = {"input": np.array(rows, np.float32)}
    if by == "causal":  # query q sees q columns
        lengths = list(range(len(lengths)))
    shown = np.array([[column < length for column in range(cols)] for length in lengths])
    if by == "mask":
        given["mask"] = np.broadcast_to(shown, (len(SPECIAL), *shown.shape)).astype(np.uint8)
    return case, given


@pytest.mark.parametrize("cols", [8, 9, 197, 577, 1032, 17_000])
@pytest.mark.parametrize("by", ["", "mask", "causal"])
@pytest.mark.parametrize("mask_value", [-INF, torch.finfo(torch.float32).min, -1e4, -1e9])
def test_special_rows_come_out_as_of_masked_fill_and_softmax(emulator, mask_value, by, cols):
    for zeros in (False, True):
        case, given = special_case(cols, mask_value, by, zeros)
        actual = torch.from_numpy(run(emulator, case, given)["output"])
        x, shown = torch.from_numpy(given["input"]), torch.from_numpy(case.shown(given))
        eager = torch.softmax(x.masked_fill(~shown, mask_value), -1)
        if zeros:
            eager[~(shown & (x != -INF)).any(-1)] = 0.0
        assert torch.allclose(actual, eager, rtol=1e-5, atol=0, equal_nan=True)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("cols, width", [(40, 4), (41, 1), (197, 1), (1032, 4), (17_000, 4)])
@pytest.mark.parametrize("diagonal", [-(2**63), -2, 7, 2**63 - 1])
def test_columns_that_causality_hides_are_not_read(emulator, op, cols, width, diagonal):
    case = MaskedCase(op, "float32", "float32", (2, 3), cols, width, zero_masked_rows=True)
    case = replace(case, diagonal=max(min(diagonal, cols), -cols))
    given = inputs(case)
    expected = run(emulator, case, given)
    hidden = ~case.shown(given)
    for name in given.keys() & {"input", "grad_output"}:
        given[name][hidden] = NAN
    prepared = prepare(emulator, case, given)
    prepared.args.scores.causal.diagonal = diagonal
    emulator.launch(prepared.args)
    assert same_bits(prepared.outputs(), expected)
    assert not any(values[hidden].any() for values in expected.values())


def resident_pages(space: mmap.mmap) -> bytes:
    """For each page of new anonymous memory, whether anything has read or written it."""
    pages = ctypes.create_string_buffer(len(space) // mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(space))
    assert (
        ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(space)), pages) == 0
    )
    return pages.raw


@pytest.mark.parametrize("op, name", [(FORWARD, "input"), (BACKWARD, "grad_output")])
@pytest.mark.parametrize("cols, clusters", [(8192, False), (20_480, False), (32_768, True)])
def test_memory_that_causality_hides_is_not_touched(emulator, op, name, cols, clusters):
    """A row takes as many bytes as it has visible columns, to the next page."""
    case = MaskedCase(op, "float32", "float32", (1, 2), cols, 4, diagonal=cols // 4)
    prepared = prepare(emulator, replace(case, clusters=clusters), inputs(case))
    rows, row_bytes = getattr(prepared.args, name), 4 * cols
    space = mmap.mmap(-1, case.rows * row_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    space.madvise(mmap.MADV_NOHUGEPAGE)
    for row in range(case.rows):
        visible = ctypes.string_at(rows.data + 4 * row * rows.spacing.stride, row_bytes // 4 + 4)
        space[row * row_bytes : row * row_bytes + len(visible)] = visible
    before = resident_pages(space)
    assert 0 < sum(before) < len(before) / 2
    rows.data = ctypes.addressof(ctypes.c_char.from_buffer(space))
    rows.spacing.stride = cols
    emulator.launch(prepared.args)
    assert resident_pages(space) == before


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype, width", [("bfloat16", 8), ("float32", 1), ("float64", 2)])
@pytest.mark.parametrize("cols", [40, 1040, 17_000])
@pytest.mark.parametrize(
    "interval",
    [
        {"lower": 5},
        {"diagonal": 30, "lower": -2},
        {"start": "int32 110"},
        {"start": "int64 010", "end": "int32 110", "mask": "bool 101"},
    ],
)
def test_columns_outside_an_interval_are_not_read(emulator, op, dtype, width, cols, interval):
    case = MaskedCase(op, dtype, dtype, (2, 3), cols, width, **interval, zero_masked_rows=True)
    given = inputs(case)
    expected = run(emulator, case, given)
    hidden = ~case.interval(given)
    assert hidden.any() and not hidden.all()
    for name in given.keys() & {"input", "grad_output"}:
        given[name][hidden] = encode(np.array([NAN]), dtype)[0]
    assert same_bits(run(emulator, case, given), expected)
    assert not any(values[hidden].any() for values in expected.values())


@pytest.mark.parametrize("lower", [-(2**63), 2**63 - 1])
def test_a_lower_diagonal_may_be_any_number(emulator, lower):
    case = MaskedCase(FORWARD, "float32", "float32", (2, 3), 40, 4, lower=0, zero_masked_rows=True)
    prepared = prepare(emulator, case, inputs(case))
    prepared.args.scores.causal.lower_diagonal = lower
    emulator.launch(prepared.args)
    sums = prepared.outputs()["output"].sum(-1)
    assert np.allclose(sums, 1 if lower < 0 else 0)


@pytest.mark.parametrize(
    "op, cols, mask_value, p",
    [
        *[(FORWARD, 40, -INF, 0.0), (FORWARD, 40, 0.5, 0.3), (FORWARD, 17_000, -1e4, 0.3)],
        *[(FORWARD, 17_000, 0.5, 0.0), (BACKWARD, 40, -INF, 0.3), (BACKWARD, 40, 0.5, 0.0)],
        *[(BACKWARD, 17_000, -1e4, 0.0), (BACKWARD, 17_000, 0.5, 0.3)],
    ],
)
def test_an_interval_gives_what_the_bool_mask_gives(emulator, op, cols, mask_value, p):
    case = MaskedCase(op, "float32", "float32", (2, 3), cols, 4, mask_value=mask_value, p=p)
    bounded = replace(case, start="int64 110", end="int32 010", lower=-1)
    given = inputs(bounded)
    if op == BACKWARD and mask_value == 0.5:
        given["probabilities"][:] = 1 / cols  # of hidden columns too
    others = {name: values for name, values in given.items() if name not in ("start", "end")}
    masked = others | {"mask": bounded.interval(given).astype(np.uint8)}
    by_mask = run(emulator, replace(case, mask="bool 111"), masked)
    actual = run(emulator, bounded, given)
    for name, expected in by_mask.items():
        assert np.allclose(actual[name], expected, rtol=1e-5, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("cols", [40, 17_000])
def test_special_sinks_come_out_as_one_more_column(emulator, cols):
    rows = [[NAN, 1.0], [INF, 1.0], [-INF, -INF], [3e38, -3e38], [0.5, 1.0]]
    sinks = np.array([0.0, NAN, INF, -INF, 3e38, -50.0], np.float32)
    case = MaskedCase(
        *(FORWARD, "float32", "float32", (len(rows), len(sinks)), cols, 4), sinks="float 010"
    )
    x = np.full((len(rows), len(sinks), cols), -INF, np.float32)
    x[:, :, :2] = np.array(rows, np.float32)[:, None]
    given = {"input": x.reshape(case.rows, cols), "sinks": sinks[None, :, None]}
    actual = torch.from_numpy(run(emulator, case, given)["output"])
    column = torch.from_numpy(sinks).repeat(len(rows))[:, None]
    both = torch.cat([torch.from_numpy(given["input"]), column], -1)
    expected = torch.softmax(both, -1)[:, :-1]
    assert torch.allclose(actual, expected, rtol=1e-5, atol=0, equal_nan=True)


@pytest.mark.parametrize("cols, width", [(40, 4), (41, 1), (197, 1), (17_000, 4)])
def test_hidden_columns_with_probabilities_count_in_the_sum_and_have_gradient_zero(
    emulator, cols, width
):
    case = MaskedCase(BACKWARD, "float32", "float32", (1, 3), cols, width, diagonal=-1, scale=0.5)
    given = inputs(case)
    given["probabilities"][0] = 1 / cols  # as where nothing is visible: all the same
    given["probabilities"][1] = NAN
    p, g = (torch.from_numpy(given[name]).double() for name in ("probabilities", "grad_output"))
    expected = 0.5 * p * (g - (g * p).sum(-1, keepdim=True))
    expected[torch.from_numpy(~case.shown(given))] = 0.0
    actual = torch.from_numpy(run(emulator, case, given)["grad_input"]).double()
    assert torch.allclose(actual, expected, 1e-4, 1e-6, equal_nan=True)
    # Query 2 sees two columns; hidden ones with a probability other than 0 count in the sum too.
    given["probabilities"][2] = 1 / cols
    p = torch.from_numpy(given["probabilities"][2]).double()
    expected = 0.5 * p * (g[2] - (g[2] * p).sum())
    actual = torch.from_numpy(run(emulator, case, given)["grad_input"][2]).double()
    assert torch.allclose(actual[:2], expected[:2], 1e-4, 1e-6) and not actual[2:].any()


@pytest.mark.parametrize("cols", [41, 197])
def test_a_row_whose_hidden_columns_count_leaves_the_other_row_of_a_thread_alone(emulator, cols):
    case = MaskedCase(BACKWARD, "float32", "float32", (1, 8), cols, 1, diagonal=-1)
    given = inputs(case)
    given["grad_output"][~case.shown(given)] = NAN
    expected = run(emulator, case, given)["grad_input"]
    assert not np.isnan(expected).any()
    for row in (1, 5):
        changed = {name: values.copy() for name, values in given.items()}
        changed["probabilities"][row] = 1 / cols
        actual = run(emulator, case, changed)["grad_input"]
        assert np.isnan(actual[row, :row]).all()
        others = np.arange(8) != row
        assert actual[others].tobytes() == expected[others].tobytes()
