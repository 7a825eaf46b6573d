"""Values on a GPU are within their bounds at every launch plan."""

import bounds
import pytest
import torch
from lengths import AT_EVERY_PLAN, rows_for
from oracle import DTYPES
from test_norm import INPUTS as NORM_INPUTS
from test_norm import SYSTEMATIC as NORM_SYSTEMATIC
from test_softmax_values import INPUTS, OPS, SPECIAL_ROWS, SYSTEMATIC

import fusedops

SOURCES_OF_UPCASTS = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@pytest.mark.parametrize("cols", AT_EVERY_PLAN)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_softmax_is_within_its_bound_and_typical(op, dtype, cols):
    ours, _, bound = OPS[op]
    x = (torch.randn(rows_for(cols), cols) * 3).to(dtype)
    bounds.assert_typical(ours(x.cuda(), -1), bound(x))


@pytest.mark.parametrize("cols", AT_EVERY_PLAN)
@pytest.mark.parametrize("source", SOURCES_OF_UPCASTS.values(), ids=SOURCES_OF_UPCASTS)
def test_softmax_of_16_bits_in_float32_is_within_its_bound_and_typical(source, cols):
    x = (torch.randn(rows_for(cols), cols) * 3).to(source)
    ours = fusedops.softmax(x.cuda(), -1, torch.float32)
    bounds.assert_typical(ours, bounds.softmax(x, torch.float32))


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("cols", [48, 1000, 5000, 40000])
def test_softmax_is_within_its_bound_on_hard_inputs(op, dtype, kind, cols):
    if kind == "huge" and dtype == torch.float16:
        kind = "wide"  # 1e30 is not a float16
    ours, _, bound = OPS[op]
    x = INPUTS[kind](rows_for(cols), cols).to(dtype)
    hold = bounds.assert_within if kind in SYSTEMATIC else bounds.assert_typical
    hold(ours(x.cuda(), -1), bound(x))


@pytest.mark.parametrize("name", SPECIAL_ROWS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("padding", [0, 3, 40, 1019, 9000, 40000])
def test_inf_and_nan_come_out_as_in_eager(op, dtype, name, padding):
    ours, eager, _ = OPS[op]
    row = torch.tensor(SPECIAL_ROWS[name] + [-torch.inf] * padding).to(dtype)
    x = torch.stack([row, torch.zeros_like(row), row.flip(0)]).cuda()
    actual, expected = ours(x, -1), eager(x, -1)
    assert torch.equal(actual.isnan(), expected.isnan())
    assert torch.equal(actual.isinf(), expected.isinf())
    tolerance = 2 * torch.finfo(dtype).eps
    # ex2 flushes float32 denormals; 16-bit outputs have no smaller values.
    smallest = torch.finfo(torch.float32).smallest_normal
    torch.testing.assert_close(actual, expected, equal_nan=True, rtol=tolerance, atol=smallest)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cols", [8, 1000, 40000])
def test_rows_filled_with_the_lowest_value_are_uniform(dtype, cols):
    x = torch.full((2, cols), torch.finfo(dtype).min, dtype=dtype, device="cuda")
    torch.testing.assert_close(fusedops.softmax(x, -1), torch.softmax(x, -1), rtol=0, atol=0)


@pytest.mark.parametrize("cols", AT_EVERY_PLAN)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_layer_norm_is_within_its_bound_and_typical(dtype, cols):
    x = torch.randn(rows_for(cols), cols).to(dtype)
    w, b = torch.randn(2, cols).to(dtype)
    ours = fusedops.layer_norm(x.cuda(), [cols], w.cuda(), b.cuda())
    bounds.assert_typical(ours, bounds.norm("layer_norm", x, w, b))


@pytest.mark.parametrize("kind", NORM_INPUTS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cols", [48, 1000, 20000, 40000])
def test_layer_norm_is_within_its_bound_on_hard_inputs(dtype, kind, cols):
    if kind == "large" and dtype == torch.float16:
        kind = "trend"  # 1e15 is not a float16
    x = NORM_INPUTS[kind](torch.randn(rows_for(cols), cols)).to(dtype)
    hold = bounds.assert_within if kind in NORM_SYSTEMATIC else bounds.assert_typical
    hold(fusedops.layer_norm(x.cuda(), [cols]), bounds.norm("layer_norm", x))


@pytest.mark.parametrize("cols", [40, 1000, 1023, 9000, 40000])
@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_float32_parameters_and_missing_ones(dtype, weight, bias, cols):
    x = torch.randn(rows_for(cols, 100_000), cols).to(dtype)
    w = torch.randn(cols) if weight else torch.ones(cols)
    b = torch.randn(cols) if bias else torch.zeros(cols)
    wanted = bounds.norm("layer_norm", x, w, b)
    w, b = (w.cuda() if weight else None), (b.cuda() if bias else None)
    bounds.assert_typical(fusedops.layer_norm(x.cuda(), [cols], w, b), wanted)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cols", [5, 100, 1024, 40000])
def test_a_row_that_is_not_finite_is_nan_and_alone_so(dtype, value, cols):
    x = torch.randn(3, cols, dtype=dtype, device="cuda")
    x[1, 2] = value
    y = fusedops.layer_norm(x, [cols])
    assert y[1].isnan().all() and not y[::2].isnan().any()
