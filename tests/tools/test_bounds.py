"""bounds.py: its exact results are exact, sums in any order keep its bounds, and a planted error
exceeds them."""

import bounds
import pytest
import torch
from norm_kinds import KINDS, kind_of
from oracle import DTYPES, annotated_norm, relative_error

import fusedops

EPS = 1e-5
ROWS, COLS = 300, 100


def normal(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=torch.float64).to(dtype)


def norm_of(kind):
    """The norm as torch or a model computes it, for autograd in float64."""
    if kind == "std_norm":
        return lambda x, w, b: annotated_norm(x, w, b, EPS)
    if kind == "rms_norm":
        return lambda x, w, b: torch.nn.functional.rms_norm(x, w.shape, w, EPS) + b
    if kind == "l2_norm":
        return lambda x, w, b: torch.nn.functional.normalize(x, dim=-1, eps=EPS) * w + b
    return lambda x, w, b: torch.nn.functional.layer_norm(x, w.shape, w, b, EPS)


NORMS = [f"{kind}_norm" for kind in KINDS]


def close(exact, expected):
    found = torch.from_numpy(exact.astype("float64"))
    torch.testing.assert_close(found, expected.detach(), rtol=1e-12, atol=1e-12)


def test_the_exact_softmax_is_torchs_in_float64():
    x, grad = normal(2, 7, 33, dtype=torch.float64)
    for name in ("softmax", "log_softmax"):
        leaf = x.clone().requires_grad_()
        y = getattr(torch, name)(leaf, -1)
        close(getattr(bounds, name)(x).exact, y)
        (expected,) = torch.autograd.grad(y, leaf, grad)
        close(getattr(bounds, f"{name}_gradient")(y, grad, x.dtype).exact, expected)


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("size", [1.0, 1e-6, 1e-9, 1e-15])
def test_the_exact_norm_is_autograds_in_float64(kind, size):
    x, grad = normal(2, 7, 33, dtype=torch.float64)
    leaves = [t.requires_grad_() for t in (x * size, *normal(2, 33, dtype=torch.float64))]
    y = norm_of(kind)(*leaves)
    close(bounds.norm(kind, *leaves, EPS).exact, y)
    wanted = bounds.norm_gradients(kind, *leaves[:2], grad, EPS)
    for bound, expected in zip(wanted, torch.autograd.grad(y, leaves, grad), strict=True):
        assert relative_error(expected, torch.from_numpy(bound.exact.astype("float64"))) <= 1e-14


# --- planted errors -------------------------------------------------------------------------------


def results(dtype):
    """The kernels' results for random data and their bounds, by name."""
    x, grad = normal(2, ROWS, COLS, dtype=dtype)
    w, b = normal(2, COLS, dtype=dtype)
    found = {}
    for name in ("softmax", "log_softmax"):
        y = getattr(fusedops, name)(x, -1)
        to_input = getattr(torch.ops.fusedops, f"{name}_backward")(grad, y, -1, dtype)
        gradient = getattr(bounds, f"{name}_gradient")(y, grad, dtype)
        found[name] = y, getattr(bounds, name)(x)
        found[f"{name}_gradient"] = to_input, gradient.rounded_to(dtype)
    found["masked_softmax"] = (
        fusedops.masked_softmax(x, bias=grad, scale=0.3),
        bounds.softmax(bounds.masked_scores(x, scale=0.3, bias=grad), dtype),
    )
    total = fusedops.softmax_stats(x, -1)[1]
    found["softmax_stats"] = total, bounds.softmax_sum(x, total.dtype)
    for kind in NORMS:
        leaves = [t.requires_grad_() for t in (x, w, b)[: 2 + kind_of(kind).has_mean]]
        y = getattr(fusedops, kind)(leaves[0], [COLS], *leaves[1:], eps=EPS)
        found[kind] = y, bounds.norm(kind, *leaves, eps=EPS)
        names = ("input", "weight", "bias")
        gradients = torch.autograd.grad(y, leaves, grad)
        wanted = bounds.norm_gradients(kind, x, w, grad, EPS)
        for name, gradient, bound in zip(names, gradients, wanted, strict=False):
            found[f"{kind}_{name}_gradient"] = gradient, bound.rounded_to(dtype)
    return found


#: The ulps by which every element of a wide result is moved; 16-bit results are held to one ulp.
#: Scores are themselves rounded, and gradients are sums that cancel.
PLANTED = {
    "masked_softmax": 24,
    "softmax": 12,
    "softmax_gradient": 6,
    "input_gradient": 24,
    "weight_gradient": 24,
    "bias_gradient": 16,
}
OF_OTHERS = 8


def planted(name):
    return next((ulps for end, ulps in PLANTED.items() if name.endswith(end)), OF_OTHERS)


def assert_noticed(wrong, bound):
    with pytest.raises(AssertionError, match="are wrong|typical"):
        bounds.assert_typical(wrong, bound)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_an_error_of_a_few_ulps_is_noticed_in_every_result(dtype):
    for name, (actual, bound) in results(dtype).items():
        bounds.assert_typical(actual, bound)
        count = planted(name) if actual.dtype.itemsize > 2 else 1
        off = torch.from_numpy(bounds.ulps(bound.exact, actual.dtype).astype("float64")) * count
        assert_noticed((actual.double() + off).to(actual.dtype), bound)


def test_an_exponential_meant_for_16_bits_is_noticed_in_float32():
    x = normal(ROWS, COLS) * 3
    d = (x - x.amax(-1, keepdim=True)).double()
    e = (d.exp() * (1 + 7e-6 * torch.cos(20 * d))).float()
    assert_noticed(e / e.sum(-1, keepdim=True), bounds.softmax(x))


def test_a_sum_in_one_chain_is_noticed():
    """Kernels add in lanes, and chunks in a wider type. A chain of 40,000 additions is off by some
    hundred roundings, as they are random."""
    x = normal(64, 40_000)
    e = (x - x.amax(-1, keepdim=True)).exp()
    in_one_chain = torch.from_numpy(e.numpy().cumsum(-1, dtype="float32")[:, -1:])
    assert_noticed(in_one_chain, bounds.softmax_sum(x, torch.float32))
    bounds.assert_typical(e.sum(-1, keepdim=True), bounds.softmax_sum(x, torch.float32))


def test_a_mean_without_the_remainder_that_it_rounds_away_is_noticed():
    x = normal(ROWS, COLS) + 1e4
    centered = x.double() - x.double().mean(-1, keepdim=True).float()
    rstd = (x.double().var(-1, correction=0, keepdim=True) + EPS).rsqrt()
    assert_noticed((centered * rstd).float(), bounds.norm("layer_norm", x))


def test_a_variance_in_a_single_pass_is_noticed():
    x = normal(ROWS, COLS) + 10
    mean = x.mean(-1, keepdim=True)
    variance = x.square().mean(-1, keepdim=True) - mean.square()
    centered = x.double() - x.double().mean(-1, keepdim=True)
    wrong = (centered * (variance.double() + EPS).rsqrt()).float()
    assert_noticed(wrong, bounds.norm("layer_norm", x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_results_that_are_rounded_twice_are_noticed(dtype):
    """They are normalised, rounded, and then multiplied by the weight."""
    x, w = normal(ROWS, COLS, dtype=dtype), normal(COLS, dtype=dtype)
    twice = fusedops.rms_norm(x, [COLS], w, EPS, variant="llama")
    assert_noticed(twice, bounds.norm("rms_norm", x, w, eps=EPS))
    bounds.assert_typical(twice, bounds.norm("rms_norm", x, w, eps=EPS, rounds_normalized=True))


def test_a_bound_holds_nan_and_infinity_to_their_places():
    x = torch.tensor([[1.0, torch.nan], [0.0, 1.0], [-torch.inf, 2.0]])
    y = torch.log_softmax(x, -1)
    bounds.assert_within(y, bounds.log_softmax(x))
    for row, column, value in ((0, 0, 0.0), (1, 0, torch.nan), (2, 0, -9.0), (2, 0, torch.inf)):
        wrong = y.clone()
        wrong[row, column] = value
        with pytest.raises(AssertionError, match="1 of 6 are wrong"):
            bounds.assert_within(wrong, bounds.log_softmax(x))
