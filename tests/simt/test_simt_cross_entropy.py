"""cross_entropy on the emulator, through the package's own launch code."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from . import families
from .cases import cross_entropy as cases
from .cases.cross_entropy import BACKWARD, FORWARD, IGNORED, OPS, CrossEntropyCase, Prepared
from .cases.rows import Arrays, decode, encode
from .emulator.library import DTYPES, Config, Emulator, EmulatorError
from .emulator.structs import RowSpacing
from .judge import assert_row_is_alike, same_bits, tensor

#: Rows of one thread, of several, of a block, and of segments; of whole vectors and of others.
COLS = (10, 136, 1001, 4099, 16_385, 33_000)
INF, NAN = np.inf, np.nan


@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize("op", OPS)
def test_neither_schedule_nor_batch_nor_grid_changes_a_bit(emulator, in_any_order, op, cols):
    case = CrossEntropyCase(op, "bfloat16", 5, cols, label_smoothing=0.1)
    given = cases.inputs(case)
    first = in_any_order(case, given, Config(max_grid=4))
    for row in (1, 4):
        assert_row_is_alike(emulator, case, row, given, first)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_a_row_has_the_same_bits_wherever_it_lies(emulator, op, dtype):
    """Aligned or not, beside the next row or apart from it, in place or not."""
    for cols in COLS:
        case = CrossEntropyCase(op, dtype, 3, cols)
        given = cases.inputs(case)
        first = families.run(emulator, case, given)
        for aligned, padded, in_place in np.ndindex(2, 2, 2):
            other = replace(case, aligned=aligned == 1, padded=padded == 1, in_place=in_place == 1)
            assert same_bits(families.run(emulator, other, given), first), other


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_and_gradients_may_be_aligned_differently(emulator, dtype):
    for cols in COLS:
        case = CrossEntropyCase(BACKWARD, dtype, 3, cols)
        given = cases.inputs(case)
        first = families.run(emulator, case, given)
        for aligned in (True, False):
            prepared = Prepared(emulator, replace(case, aligned=aligned), given)
            other = emulator.array((3, cols), dtype, DTYPES[dtype].itemsize * (1 + aligned), True)
            prepared.args.grad_input = other.rows
            emulator.launch(prepared.args)
            assert other.read().tobytes() == first["grad_input"].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [0, 1000])
def test_the_loss_of_a_class_that_is_nearly_certain_keeps_its_digits(emulator, dtype, offset):
    for cols in COLS:
        case = CrossEntropyCase(FORWARD, dtype, 2, cols)
        x = np.full((2, cols), float(offset))
        x[:, cols // 2] += 24
        target = np.full((2, 1), cols // 2)
        found = families.run(emulator, case, {"input": encode(x, dtype), "target": target})
        expected = np.log1p((cols - 1) * np.exp(-24.0))
        np.testing.assert_allclose(found["losses"], expected, rtol=2e-6)
        lse = found["lse"].astype(np.float64) + found["lse_error"]
        np.testing.assert_allclose(lse, offset + 24 + expected, rtol=1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_logits_that_are_equal_cancel_whatever_their_size(emulator, dtype, smoothing):
    most = torch.finfo(getattr(torch, dtype)).max
    for cols in COLS:
        case = CrossEntropyCase(FORWARD, dtype, 4, cols, label_smoothing=smoothing)
        x = np.full((4, cols), 1.0) * np.array([[6e4], [-6e4], [most / 2], [-most]])
        target = np.full((4, 1), cols // 2)
        given = {"input": encode(x, dtype), "target": target}
        found = families.run(emulator, case, given)
        if not smoothing:  # a sum of such logits overflows in float32 (docs/losses.md)
            np.testing.assert_allclose(found["losses"], np.log(cols), rtol=1e-6)
        largest = tensor(given["input"], dtype).double().numpy()[:, :1]
        error = np.log(cols) - (found["lse"].astype(np.float64) - largest)
        np.testing.assert_allclose(found["lse_error"], error, rtol=0, atol=1e-6)
        grads = {"grad_losses": np.ones_like(found["lse"]), "grad_lse": np.zeros_like(found["lse"])}
        gradient = families.run(emulator, replace(case, op=BACKWARD), given | found | grads)
        exact = (1 - smoothing) * (1 / cols - (np.arange(cols) == target))
        got = decode(gradient["grad_input"], dtype)
        np.testing.assert_allclose(
            got, exact, rtol=4e-3 if dtype in ("float16", "bfloat16") else 2e-6
        )


@pytest.mark.parametrize(
    "dtype, option",
    [("float32", {"scale": 0.7}), ("float32", {"softcap": 1e16}), ("float64", {"softcap": 1e40})],
)
def test_every_tile_of_a_thread_and_the_class_have_the_same_logit(emulator, dtype, option):
    """0.7 * 1e4 is rounded, once for each tile. The caps are far above the logits."""
    x = 1e4 if "scale" in option else 1.0
    for cols in COLS:
        case = CrossEntropyCase(FORWARD, dtype, 1, cols, **option)
        given = {"input": np.full((1, cols), x, dtype), "target": np.full((1, 1), cols // 2)}
        found = families.run(emulator, case, given)
        np.testing.assert_allclose(found["losses"], np.log(cols), rtol=2e-6)


def special_rows(cols: int) -> np.ndarray:
    x = np.full((7, cols), -INF)
    x[1:6] = np.linspace(-1, 1, cols)
    x[1, 0], x[2, -1], x[3, 0], x[3, -1], x[4, -1] = INF, NAN, INF, NAN, -INF
    x[6, 0] = 2.0
    return x


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("column", [0, -1])
@pytest.mark.parametrize("cols", [2, 200, 16_400])
def test_inf_and_nan_come_out_as_in_eager(emulator, dtype, cols, column):
    stored = encode(special_rows(cols), dtype)
    case = CrossEntropyCase(FORWARD, dtype, len(stored), cols)
    target = np.full((len(stored), 1), column % cols)
    given = {"input": stored, "target": target}
    found = families.run(emulator, case, given)
    x = tensor(stored, dtype).double()
    lse = torch.logsumexp(x, -1, keepdim=True).numpy()
    np.testing.assert_allclose(found["lse"].astype(np.float64), lse, rtol=1e-6)
    assert (found["lse_error"][~np.isfinite(lse)] == 0).all()
    with np.errstate(invalid="ignore"):
        losses = np.where(np.isfinite(lse), lse - x.numpy()[:, [column]], NAN)
    np.testing.assert_allclose(found["losses"].astype(np.float64), losses, rtol=1e-5, atol=1e-7)
    grads = {"grad_losses": np.ones_like(found["lse"]), "grad_lse": np.zeros_like(found["lse"])}
    gradient = families.run(emulator, replace(case, op=BACKWARD), given | found | grads)
    beside_inf = np.isfinite(x[1].numpy()) & (np.arange(cols) != target[1])
    assert (decode(gradient["grad_input"], dtype)[1][beside_inf] == 0).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("cols", [100, 16_400])
def test_rows_that_are_ignored_or_without_gradient_are_not_read(emulator, dtype, cols):
    """Their address is null."""
    for op in OPS:
        case = CrossEntropyCase(op, dtype, 3, cols)
        given = cases.inputs(case)
        given["target"][:] = IGNORED
        for name in given.keys() & {"grad_losses", "grad_lse"}:
            given[name][:] = NAN if name == "grad_losses" else 0
        prepared = Prepared(emulator, case, given)
        prepared.args.logits.input.data = None
        emulator.launch(prepared.args)
        for values in prepared.outputs().values():
            assert not values.view(np.uint8).any()


@pytest.mark.parametrize("cols", [100, 16_400])
def test_a_gradient_that_is_missing_stands_for_zeros(emulator, cols):
    for name in ("grad_losses", "grad_lse"):
        case = CrossEntropyCase(BACKWARD, "float32", 3, cols)
        given = cases.inputs(case)
        given[name][:] = 0
        expected = families.run(emulator, case, given)
        prepared = Prepared(emulator, case, given)
        setattr(prepared.args, name, None)
        emulator.launch(prepared.args)
        assert same_bits(prepared.outputs(), expected)


@pytest.mark.parametrize("wrong", [-1, 16_400, 2**40, -(2**40)])
@pytest.mark.parametrize("cols", [100, 16_400])
def test_a_class_that_is_no_column_has_a_loss_of_nan(emulator, cols, wrong):
    case = CrossEntropyCase(FORWARD, "float32", 3, cols, reads_ignored=True)
    given = cases.inputs(case)
    given["target"][:] = wrong
    found = families.run(emulator, case, given)
    assert np.isnan(found["losses"]).all()
    given["target"][:] = IGNORED
    ignored = families.run(emulator, case, given)
    assert same_bits(ignored, found | {"losses": np.zeros_like(found["losses"])})

    case = replace(case, op=BACKWARD)
    given = cases.inputs(case)
    given["target"][:], given["losses"][:] = wrong, NAN
    gradient = families.run(emulator, case, given)["grad_input"]
    p = np.exp(given["input"] - (given["lse"] + given["lse_error"]))
    expected = (given["grad_losses"] + given["grad_lse"]) * p
    np.testing.assert_allclose(gradient, expected, rtol=3e-6)


def in_runs(emulator: Emulator, case: CrossEntropyCase, given: Arrays) -> Arrays:
    """The outputs where the rows of logits and of their gradient are x[:, :-1] of a tensor with
    three rows in each x[i]: runs of two."""
    prepared = Prepared(emulator, case, given)
    longer = []
    for rows, name in (
        (prepared.args.logits.input, "input"),
        (getattr(prepared.args, "grad_input", None), "grad_input"),
    ):
        if rows is None:
            continue
        array = emulator.array((6, case.cols), case.dtype, 16)
        longer.append(array)
        if name == "input":
            array.values[[0, 1, 3, 4]] = given["input"]
        rows.data = array.address
        rows.spacing = RowSpacing(case.cols, case.cols, 2**31, 0)  # row * 2^31 >> 32: row / 2
    emulator.launch(prepared.args)
    if case.op == FORWARD:
        return prepared.outputs()
    return {"grad_input": longer[1].values[[0, 1, 3, 4]]}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("cols", [10, 1001, 16_400])
def test_rows_may_form_runs(emulator, op, cols):
    case = CrossEntropyCase(op, "bfloat16", 4, cols)
    given = cases.inputs(case)
    assert same_bits(in_runs(emulator, case, given), families.run(emulator, case, given))


@pytest.mark.parametrize("op", OPS)
def test_classes_may_be_int32(emulator, op):
    case = CrossEntropyCase(op, "float16", 5, 1000)
    given = cases.inputs(case)
    narrow = given | {"target": given["target"].astype(np.int32)}
    found = families.run(emulator, replace(case, int32=True), narrow)
    assert same_bits(found, families.run(emulator, case, given))


def test_gradients_of_another_dtype_are_refused(emulator):
    case = CrossEntropyCase(BACKWARD, "float32", 2, 8)
    prepared = Prepared(emulator, case, cases.inputs(case))
    prepared.args.grad_input.dtype = list(DTYPES).index("bfloat16")
    with pytest.raises(EmulatorError, match="status 1"):
        emulator.launch(prepared.args)


def test_a_row_of_more_than_1024_segments_is_right(emulator):
    cols = 1024 * cases.SEGMENT + 3
    case = CrossEntropyCase(FORWARD, "bfloat16", 1, cols)
    x = encode(np.random.default_rng(0).standard_normal((1, cols)), "bfloat16")
    given = {"input": x, "target": np.array([[cols - 1]])}
    found = families.run(emulator, case, given)
    exact = cases.exact(case, given)
    np.testing.assert_allclose(found["lse"], exact["lse"], rtol=1e-6)
    np.testing.assert_allclose(found["losses"], exact["losses"], rtol=1e-6)
