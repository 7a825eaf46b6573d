"""layer_norm against float64, on hard inputs too."""

import bounds
import pytest
import torch
import torch.nn.functional as F
from oracle import DTYPES, ulp_error

import fusedops
from fusedops import reference

COLS = [1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 64, 65, 768, 1023, 1024, 1025, 8191, 8192, 8193, 65537]

INPUTS = {
    "normal": lambda x: x,
    "large mean": lambda x: x + 1e4,
    "tiny variance": lambda x: x * 1e-6,
    "tiny variance about one": lambda x: x * 1e-3 + 1,
    "constant": lambda x: torch.full_like(x, 0.7),
    "outlier first": lambda x: torch.cat([torch.full_like(x[:, :1], 300.0), x[:, 1:]], 1),
    "trend": lambda x: x + torch.linspace(-300, 300, x.shape[1]),
    "large": lambda x: x * 1e15,
}
#: Kinds of rows whose rounding errors are not random.
SYSTEMATIC = {"constant", "trend", "outlier first"}


def parameters(shape, dtype):
    return torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cols", COLS)
def test_errors_are_within_their_bound_and_typical(dtype, cols):
    torch.manual_seed(cols)
    x = torch.randn(max(4, 100_000 // cols), cols).to(dtype)
    w, b = parameters(cols, dtype)
    bounds.assert_typical(fusedops.layer_norm(x, [cols], w, b), bounds.norm("layer_norm", x, w, b))


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cols", [40, 1000, 20000])
def test_errors_are_within_their_bound_on_hard_inputs(dtype, kind, cols):
    if kind == "large" and dtype == torch.float16:
        kind = "trend"  # 1e15 is not a float16
    torch.manual_seed(0)
    x = INPUTS[kind](torch.randn(100_000 // cols, cols)).to(dtype)
    hold = bounds.assert_within if kind in SYSTEMATIC else bounds.assert_typical
    hold(fusedops.layer_norm(x, [cols]), bounds.norm("layer_norm", x))


@pytest.mark.parametrize("offset", [1e3, 1e4, 1e5])
def test_a_large_mean_costs_no_digits(offset):
    x = torch.randn(8, 4096) + offset
    error = ulp_error(fusedops.layer_norm(x, [4096]), reference.layer_norm(x, [4096]), floor=1.0)
    assert error <= 5.0  # eager: 5e2, 9e3 and 5e4


@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_every_combination_of_weight_and_bias(dtype, weight, bias):
    x = torch.randn(1000, 3, 40).to(dtype)
    w, b = parameters((3, 40), dtype)
    wanted = bounds.norm(
        "layer_norm",
        x.flatten(1),
        w.flatten() if weight else 1.0,
        b.flatten() if bias else 0.0,
    )
    ours = fusedops.layer_norm(x, [3, 40], w if weight else None, b if bias else None)
    bounds.assert_typical(ours.flatten(1), wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cols", [31, 64, 100])
def test_float32_parameters_with_16_bit_input_keep_their_digits(dtype, cols):
    x = torch.randn(6, cols).to(dtype)
    w, b = parameters(cols, torch.float32)
    ours = fusedops.layer_norm(x, [cols], w, b)
    assert ours.dtype == dtype
    bounds.assert_typical(ours, bounds.norm("layer_norm", x, w, b))


def test_every_mix_of_dtypes_is_taken():
    for x_dtype in DTYPES.values():
        for w_dtype in DTYPES.values():
            for b_dtype in DTYPES.values():
                x = torch.randn(3, 33).to(x_dtype)
                w, b = torch.randn(33).to(w_dtype), torch.randn(33).to(b_dtype)
                exact = reference.layer_norm(x, [33], w, b)
                tolerance = 8 * torch.finfo(x_dtype).eps
                if x_dtype == torch.float64:
                    tolerance = 1e-14
                ours = fusedops.layer_norm(x, [33], w, b).double()
                torch.testing.assert_close(ours, exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_statistics_are_float32_or_better_and_right(dtype):
    x = torch.randn(2, 3, 500).to(dtype)
    _, mean, rstd = torch.ops.fusedops.layer_norm(x, [500], None, None, 1e-5)
    exact = x.double()
    statistics = torch.float64 if dtype == torch.float64 else torch.float32
    assert mean.dtype == rstd.dtype == statistics
    assert mean.shape == rstd.shape == (2, 3, 1)
    mean_exact = exact.mean(-1, keepdim=True)
    rstd_exact = (exact.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()
    torch.testing.assert_close(mean.double(), mean_exact, rtol=0, atol=1e-6)  # of a deviation of 1
    torch.testing.assert_close(rstd.double(), rstd_exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cols", [5, 100])
def test_a_row_that_is_not_finite_becomes_nan_and_no_other_does(dtype, value, cols):
    x = torch.randn(3, cols).to(dtype)
    x[1, 2] = value
    y = fusedops.layer_norm(x, [cols])
    assert y[1].isnan().all()
    assert torch.equal(y.isnan(), F.layer_norm(x, [cols]).isnan())


@pytest.mark.parametrize("payload", [0x7FFFFFFF, 0x7FFF8000, 0x7F800001])
def test_a_nan_in_float32_weights_stays_nan_in_16_bits(payload):
    w = torch.tensor([payload] + [0x3F800000] * 31, dtype=torch.int32).view(torch.float32)
    for dtype in (torch.bfloat16, torch.float16):
        y = fusedops.layer_norm(torch.randn(4, 32).to(dtype), [32], w)
        assert y[:, 0].isnan().all() and not y[:, 1:].isnan().any()


@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8)])
def test_no_rows_give_an_empty_output(shape):
    assert fusedops.layer_norm(torch.randn(shape), [8], torch.ones(8)).shape == shape


@pytest.mark.parametrize("cols", [5, 100])
def test_a_constant_row_near_the_largest_float_is_zero_as_in_float64(cols):
    x = torch.full((2, cols), 3e38)
    assert fusedops.layer_norm(x, [cols]).abs().max() == 0
    assert reference.layer_norm(x, [cols]).abs().max() == 0


def single_pass(x, eps=1e-8):
    """Variance as E[x^2] - E[x]^2, in float32: the textbook kernel."""
    mean = x.mean(-1, keepdim=True)
    variance = x.square().mean(-1, keepdim=True) - mean.square()
    return (x - mean) * (variance + eps).rsqrt()


@pytest.mark.parametrize("offset, fails", [(0.0, False), (1e3, True), (1e4, True), (1e5, True)])
def test_a_variance_in_a_single_pass_cancels_where_ours_does_not(offset, fails):
    x = torch.randn(64, 1024) + offset
    exact = reference.layer_norm(x, [1024], eps=1e-8)
    assert ulp_error(fusedops.layer_norm(x, [1024], eps=1e-8), exact, floor=1.0) <= 5.0
    error = (single_pass(x).double() - exact).abs().max()
    assert not error <= 1e-3 if fails else error <= 1e-4  # fails: 0.02 at 1e3, NaN at 1e5


@pytest.mark.parametrize("deviation", [1e-6, 1e-4])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_a_variance_of_1e_12_and_the_seeds_eps_are_told_apart(deviation, offset):
    x = (torch.randn(32, 2000, dtype=torch.float64) * deviation + offset).float()
    ours = fusedops.layer_norm(x, [2000], eps=1e-8)
    bounds.assert_typical(ours, bounds.norm("layer_norm", x, eps=1e-8))


@pytest.mark.parametrize("scale", [1e30, 1e38])
@pytest.mark.parametrize("cols", [40, 5000])
def test_rows_whose_squares_overflow_are_right_where_eagers_are_nan(scale, cols):
    x = torch.rand(8, cols) * scale
    exact = reference.layer_norm(x, [cols])
    assert F.layer_norm(x, [cols]).isnan().any()
    assert ulp_error(fusedops.layer_norm(x, [cols]), exact, floor=1.0) <= 3.0


def test_eps_zero_and_one():
    x = torch.randn(3, 50)
    for eps in (0.0, 1e-12, 1.0):
        exact = reference.layer_norm(x, [50], eps=eps)
        assert ulp_error(fusedops.layer_norm(x, [50], eps=eps), exact, floor=1.0) <= 2.0
