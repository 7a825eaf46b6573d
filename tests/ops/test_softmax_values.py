"""softmax and log_softmax against float64, and eager's rules for inf and NaN."""

import bounds
import pytest
import torch
import torch.nn.functional as F
from oracle import DTYPES

import fusedops
from fusedops import reference

OPS = {
    "softmax": (fusedops.softmax, torch.softmax, bounds.softmax),
    "log_softmax": (fusedops.log_softmax, torch.log_softmax, bounds.log_softmax),
}
INF, NAN = float("inf"), float("nan")

# One element; around one tile of every width (8, 16, 32); around two chunks (4096) and past many.
COLS = [1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 1000, 1023, 1024, 1025]
LONG_COLS = [4095, 4096, 4097, 8191, 8193, 65537, 100_003, 1 << 18]


def rows(cols):
    """The number of rows that is enough for typical errors."""
    return max(4, 400_000 // cols)


INPUTS = {
    "normal": lambda rows, cols: torch.randn(rows, cols) * 3,
    "large mean": lambda rows, cols: torch.randn(rows, cols) + 1e4,
    "wide": lambda rows, cols: torch.randn(rows, cols) * 50,
    "huge": lambda rows, cols: torch.randn(rows, cols) * 1e30,
    "equal": lambda rows, cols: torch.full((rows, cols), 0.3),
    "rising": lambda rows, cols: torch.linspace(-20, 20, cols).expand(rows, cols),
}
#: Kinds of rows whose rounding errors are not random.
SYSTEMATIC = {"equal", "rising"}


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("cols", COLS + LONG_COLS)
def test_errors_are_within_their_bound_and_typical(op, dtype, cols):
    ours, _, bound = OPS[op]
    torch.manual_seed(cols)
    x = (torch.randn(rows(cols), cols) * 3).to(dtype)
    bounds.assert_typical(ours(x, -1), bound(x))


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("cols", [50, 1000, 5000])
def test_errors_are_within_their_bound_on_hard_inputs(op, dtype, kind, cols):
    if kind == "huge" and dtype == torch.float16:
        kind = "wide"  # 1e30 is not a float16
    ours, _, bound = OPS[op]
    x = INPUTS[kind](rows(cols), cols).to(dtype)
    hold = bounds.assert_within if kind in SYSTEMATIC else bounds.assert_typical
    hold(ours(x, -1), bound(x))


@pytest.mark.parametrize("middle", [-2.0, 0.0, 2.0])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("op", [*OPS, "masked_softmax"])
def test_one_logit_far_below_or_above_the_others_is_seen_in_any_column(op, dtype, middle):
    """Rows without one take fewer instructions, which are wrong for a probability that is denormal
    or 0."""
    ours, bound = fusedops.masked_softmax, lambda x: bounds.softmax(x * 0.5)
    if op in OPS:
        ours, _, bound = OPS[op]
    scale = {"scale": 0.5} if op == "masked_softmax" else {"dim": -1}
    x = (torch.rand(297, 297) + middle - 0.5).to(dtype)
    for far in (middle - 84.0 / scale.get("scale", 1), -700.0, 700.0):
        x.fill_diagonal_(far)
        bounds.assert_within(ours(x, **scale), bound(x))
    alone = torch.cat([ours(row[None], **scale) for row in x[:20]])
    torch.testing.assert_close(alone, ours(x, **scale)[:20], rtol=0, atol=0)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("source", [torch.bfloat16, torch.float16, torch.float32, torch.int32])
@pytest.mark.parametrize("target", [torch.float32, torch.float64, torch.bfloat16])
def test_dtype_argument_converts_before_anything_is_computed(op, source, target):
    ours, _, bound = OPS[op]
    x = (torch.randn(200, 333) * 4).to(source)
    bounds.assert_typical(ours(x, -1, target), bound(x.to(target)))


SPECIAL_ROWS = {
    "all -inf": [-INF] * 5,
    "one finite": [-INF, -INF, 2.0, -INF, -INF],
    "+inf": [1.0, INF, 2.0, -INF, 0.0],
    "NaN": [1.0, NAN, 2.0, -INF, 0.0],
    "NaN first": [NAN, 1.0, 2.0, 3.0, 4.0],
    "all NaN": [NAN] * 5,
    "3e38 and -3e38": [3e38, -3e38, 0.0, 0.0, 0.0],
    "thousands": [1000.0, 1001.0, 1002.0, 1000.0, 1001.0],
    "spread": [0.0, -104.0, -88.0, -87.0, -746.0],
    "far apart": [-INF, 0.0, -200.0, -1e30, -1.0],
}


@pytest.mark.parametrize("name", SPECIAL_ROWS)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("padding", [0, 40, 9000, 70_000])
def test_inf_and_nan_come_out_as_in_eager(op, dtype, name, padding):
    ours, eager, bound = OPS[op]
    row = torch.tensor(SPECIAL_ROWS[name] + [-INF] * padding).to(dtype)
    x = torch.stack([row, torch.zeros_like(row), row.flip(0)])
    # In float64, because eager's sum of so many float16 is infinite.
    expected, actual = eager(x.double(), -1).to(dtype), ours(x, -1)
    assert torch.equal(actual.isnan(), expected.isnan())
    assert torch.equal(actual.isinf(), expected.isinf())
    bounds.assert_within(actual, bound(x))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cols", [8, 70_000])
def test_rows_filled_with_the_lowest_value_are_uniform_as_in_eager(op, dtype, cols):
    ours, eager, _ = OPS[op]
    x = torch.full((2, cols), torch.finfo(dtype).min, dtype=dtype)
    torch.testing.assert_close(ours(x, -1), eager(x, -1), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_probabilities_down_to_the_denormals_are_kept(dtype):
    lowest = -103.0 if dtype == torch.float32 else -744.0
    x = torch.tensor([lowest, lowest + 5, lowest + 20, 0.0], dtype=dtype)
    exact = reference.softmax(x, 0)
    spacing = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    error = (fusedops.softmax(x, 0).double() - exact).abs()
    assert (error <= 4 * torch.finfo(dtype).eps * exact + spacing).all()
    assert fusedops.softmax(x, 0)[0] > 0


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dim", [0, 1, 2, 3, -1, -2, -3, -4])
def test_a_softmax_may_be_over_any_dimension(op, dim):
    ours, _, _ = OPS[op]
    x = torch.randn(3, 4, 5, 6)
    exact = getattr(reference, op)(x, dim).float()
    torch.testing.assert_close(ours(x, dim), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (2, 0, 3), ()])
@pytest.mark.parametrize("dim", [0, -1])
def test_inputs_may_be_empty_or_without_dimensions(op, shape, dim):
    ours, eager, _ = OPS[op]
    x = torch.randn(shape)
    torch.testing.assert_close(ours(x, dim), eager(x, dim), rtol=0, atol=0)


def test_calls_as_in_nn_functional_mean_the_same():
    x = torch.randn(4, 9)
    torch.testing.assert_close(fusedops.softmax(x, dim=1), F.softmax(x, dim=1))
