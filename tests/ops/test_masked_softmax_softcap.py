"""Soft caps: scores bounded by cap * tanh(score / cap) before what is added and what is hidden."""

import math
import re

import bounds
import numpy as np
import pytest
import torch
from oracle import DTYPES, same_bits
from test_masked_softmax_grad import FUNCTIONS, SEED, doubles
from test_masked_softmax_values import bools
from torch.autograd import gradcheck, gradgradcheck

import fusedops
import fusedops.nn
from fusedops import reference

ops = torch.ops.fusedops
INF, NAN = float("inf"), float("nan")

#: For scores of [2, 3, queries, keys], the keywords of masked_softmax.
OPTIONS = {
    "none": lambda q, k: {},
    "causal": lambda q, k: {"causal": True},
    "window": lambda q, k: {"causal": True, "window": 40},
    "bool mask": lambda q, k: {"mask": bools(2, 1, 1, k), "mask_value": -1e4},
    "float mask": lambda q, k: {"mask": torch.randn(2, 1, q, k)},
    "mask and bias": lambda q, k: {"mask": bools(2, 1, 1, k), "bias": torch.randn(3, 1, k)},
    "two addends": lambda q, k: {"mask": torch.randn(1, k), "bias": torch.randn(3, q, k) * 5},
    "bounds": lambda q, k: {
        "start": torch.arange(q),
        "end": torch.tensor([k, k - 1])[:, None, None],
    },
    "sinks": lambda q, k: {"sinks": torch.randn(3, 1) * 5, "causal": True},
}
SCALE = 0.7


def scores_of(x, cap, dtype, mask=None, bias=None, causal=False, mask_value=-INF, **interval):
    """The scores in float64 or wider, and their absolute errors."""
    exact, error = bounds.soft_capped(bounds.exactly(x) * SCALE, cap, dtype)
    added = [t for t in (bias, mask) if t is not None and t.dtype != torch.bool]
    for t in added:
        exact = exact + bounds.exactly(t)
        error = error + bounds.rounded(1, np.abs(exact) + np.abs(bounds.exactly(t)), dtype)
    visible = torch.ones(x.shape, dtype=torch.bool)
    visible = visible.tril() if causal else visible
    if "window" in interval:
        visible = visible.triu(1 - interval["window"])
    column = torch.arange(x.shape[-1])
    if "start" in interval:
        visible = visible & (column >= interval["start"][..., None])
        visible = visible & (column < interval["end"][..., None])
    if mask is not None and mask.dtype == torch.bool:
        visible = visible & mask
    visible = visible.numpy()
    return np.where(visible, exact, mask_value), np.where(visible, error, 0)


def expected(x, cap, dtype, sinks=None, **options):
    exact, error = scores_of(x, cap, dtype, **options)
    if sinks is None:
        return bounds.softmax(bounds.Softmax.of(exact, dtype, error), dtype)
    column = bounds.exactly(sinks)[..., None] * np.ones((*x.shape[:-1], 1))
    exact = np.concatenate([exact, column], -1)
    error = np.concatenate([error, np.zeros((2, *column.shape))], -1)
    whole = bounds.softmax(bounds.Softmax.of(exact, dtype, error), dtype)
    return bounds.Bounded(whole.exact[..., :-1], whole.error[..., :-1])


def eager(x, cap, scale=1.0):
    return torch.softmax(torch.tanh(x * scale / cap) * cap, -1)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cap", [0.5, 5.0, 50.0])
@pytest.mark.parametrize("queries, keys", [(5, 7), (6, 700), (2, 9001)])
def test_values_are_within_their_bounds_with_every_option(options, dtype, cap, queries, keys):
    torch.manual_seed(keys)
    x = (torch.randn(2, 3, queries, keys) * 30).to(dtype)
    given = OPTIONS[options](queries, keys)
    actual = fusedops.masked_softmax(x, scale=SCALE, softcap=cap, **given)
    bounds.assert_within(actual, expected(x, cap, dtype, **given))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cap", [1.0, 30.0, 1e3, 1e5])
def test_small_scores_keep_their_digits_beside_a_large_cap(dtype, cap):
    """A tanh with the absolute error of a float would be wrong by 1e5 times that here."""
    x = (torch.randn(64, 400) * torch.logspace(-2, 1.5, 64)[:, None]).to(dtype)
    bounds.assert_typical(
        fusedops.masked_softmax(x, scale=SCALE, softcap=cap), expected(x, cap, dtype)
    )


def test_the_reference_defines_it():
    x, bias = torch.randn(2, 3, 6, 9) * 20, torch.randn(3, 1, 9)
    options = {"scale": 0.5, "bias": bias, "softcap": 3.0}
    expected = reference.masked_softmax(x, diagonal=0, **options).float()
    torch.testing.assert_close(fusedops.masked_softmax(x, causal=True, **options), expected)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize(
    "row", [[NAN, 1.0], [INF, 1.0, 0.0], [-INF, -1.0], [-INF, -INF], [0.0, -0.0], [6e4, -6e4, 5.0]]
)
def test_special_values_come_out_as_in_eager_mode(dtype, row):
    for cols in (len(row), 100):
        x = torch.tensor(row + [1.0] * (cols - len(row))).to(dtype)
        actual = fusedops.masked_softmax(x, softcap=4.0)
        exact = eager(x.double(), 4.0)
        assert torch.equal(actual.isnan(), exact.isnan())
        torch.testing.assert_close(actual, exact.to(dtype), equal_nan=True)


def test_an_infinite_score_is_the_cap_and_so_stays_visible():
    x = torch.tensor([[INF, -INF, 0.0]])
    y = fusedops.masked_softmax(x, softcap=2.0, masked_rows="zero")
    torch.testing.assert_close(y, torch.softmax(torch.tensor([[2.0, -2.0, 0.0]]), -1))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cols", [3, 100, 1000, 9001])
def test_a_row_has_the_same_bits_in_any_batch(dtype, cols):
    x = (torch.randn(37, cols) * 20).to(dtype)
    whole = fusedops.masked_softmax(x, softcap=7.0)
    for row in (0, 17, 36):
        assert same_bits(
            whole[row : row + 1], fusedops.masked_softmax(x[row : row + 1], softcap=7.0)
        )


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("keys", [100, 1000, 9001])
def test_an_interval_has_the_bits_of_the_bool_mask_that_hides_the_same(dtype, keys):
    x = (torch.randn(2, 5, keys) * 20).to(dtype)
    mask = torch.ones(5, keys, dtype=torch.bool).tril(keys - 5).triu(keys - 5 - 69)
    interval = fusedops.masked_softmax(x, causal="bottom_right", window=70, softcap=9.0)
    assert same_bits(interval, fusedops.masked_softmax(x, mask, softcap=9.0))


def test_out_and_the_input_itself_receive_the_result():
    x = torch.randn(3, 40, 50) * 9
    wanted = fusedops.masked_softmax(x, causal=True, softcap=2.0)
    out = torch.empty_like(x)
    fusedops.masked_softmax(x, causal=True, softcap=2.0, out=out)
    own = x.clone()
    ops.masked_softmax_(own, None, 1.0, True, None, softcap=2.0)
    assert same_bits(out, wanted) and same_bits(own, wanted)


def test_dropout_is_of_the_same_probabilities():
    x, seed = torch.randn(3, 40, 50) * 9, torch.tensor(SEED)
    y = fusedops.masked_softmax(x, softcap=2.0)
    dropped = fusedops.masked_softmax_dropout(x, p=0.25, seed=seed, softcap=2.0)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], y[kept] / 0.75)
    assert 0.7 < kept.float().mean() < 0.8


# --- derivatives --------------------------------------------------------------------------------


@pytest.mark.parametrize("options", ["none", "causal", "bool mask", "mask and bias", "sinks"])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("scale", [1.0, 0.7])
def test_gradcheck_and_gradgradcheck(function, options, scale):
    x, bias, sinks = doubles(2, 3, 4, 5), doubles(3, 4, 5), doubles(3, 1)
    given = OPTIONS[options](4, 5)

    def run(x, bias, sinks):
        operands = {"bias": bias} | ({"sinks": sinks} if "sinks" in given else {})
        return FUNCTIONS[function](x, scale=scale, softcap=1.5, **given | operands)

    assert gradcheck(run, (x, bias, sinks))
    assert gradgradcheck(run, (x, bias, sinks))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cap", [2.0, 30.0])
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_are_within_their_bounds(dtype, cap, compiled):
    """Compiled, 1 - tanh^2 has another formula."""

    def run(x, bias):
        return fusedops.masked_softmax(x, bias=bias, scale=SCALE, causal=True, softcap=cap)

    x, bias = (torch.randn(2, 3, 30, 200) * 4).to(dtype), torch.randn(30, 200).to(dtype)
    grad = torch.randn(x.shape).to(dtype)
    leaves = [t.requires_grad_() for t in (x, bias)]
    y = (torch.compile(run, backend="aot_eager") if compiled else run)(x, bias)
    to_input, to_bias = torch.autograd.grad(y, leaves, grad)
    to_scores = bounds.softmax_gradient(y, grad, dtype)
    to_capped = to_scores.scaled(SCALE, dtype).rounded_to(dtype)
    slope = 1 - np.tanh(bounds.exactly(x) * SCALE / cap) ** 2
    # 1 - tanh^2 has the absolute error of a few roundings of 1.
    error = to_capped.error * slope + bounds.rounded(12, np.abs(to_capped.exact), dtype)
    bounds.assert_within(to_input, bounds.Bounded(to_capped.exact * slope, error).rounded_to(dtype))
    bounds.assert_within(
        to_bias, bounds.Bounded(*_over_batch(to_scores.rounded_to(dtype), dtype)).rounded_to(dtype)
    )


def _over_batch(of, dtype):
    """The sum over the first two dimensions."""
    exact, error = (t.reshape(*t.shape[:-4], 6, *t.shape[-2:]) for t in of)
    return bounds.Bounded(exact, error).summed(dtype)


def test_without_a_cap_the_input_is_not_saved():
    def saved(**options):
        tensors = []
        x = torch.randn(3, 50, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(tensors.append, lambda t: t):
            fusedops.masked_softmax(x * 2, **options)
        return sum(isinstance(t, torch.Tensor) and t.shape == x.shape for t in tensors)

    assert saved() == 1  # the probabilities
    assert saved(softcap=3.0) == 2


def test_writing_to_the_input_before_the_backward_pass_is_noticed():
    x = torch.randn(3, 50, requires_grad=True) * 1.0
    y = fusedops.masked_softmax(x, softcap=3.0)
    x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# --- transforms ---------------------------------------------------------------------------------


def test_vmap_and_grad_transforms_give_the_batched_result():
    x, bias = torch.randn(4, 3, 5, 6) * 4, torch.randn(4, 5, 6)

    def of_one(x, bias):
        return fusedops.masked_softmax(x, bias=bias, softcap=2.0, scale=0.5)

    batched = torch.func.vmap(of_one)(x, bias)
    assert same_bits(batched, of_one(x, bias[:, None]))

    def loss(x, bias):
        return of_one(x, bias).square().sum()

    to_x = torch.func.vmap(torch.func.grad(loss))(x, bias)
    torch.testing.assert_close(to_x, torch.func.grad(lambda x: loss(x, bias[:, None]))(x))


def test_a_compiled_call_has_the_same_values_and_gradients():
    def run(x):
        return fusedops.masked_softmax(x, causal=True, softcap=2.0, scale=0.5)

    x = torch.randn(3, 8, 8, requires_grad=True)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")(x)
    grad = torch.randn_like(x)
    assert same_bits(compiled, run(x))
    for y in (compiled, run(x)):
        (actual,) = torch.autograd.grad(y, x, grad)
        (wanted,) = torch.autograd.grad(eager_causal(x), x, grad)
        torch.testing.assert_close(actual, wanted)


def eager_causal(x):
    hidden = torch.ones(x.shape, dtype=torch.bool).triu(1)
    return torch.softmax((torch.tanh(x * 0.5 / 2) * 2).masked_fill(hidden, -INF), -1)


# --- arguments ----------------------------------------------------------------------------------

FORMS = {
    "masked_softmax": fusedops.masked_softmax,
    "masked_softmax_dropout": fusedops.masked_softmax_dropout,
    "out": lambda x, **options: fusedops.masked_softmax(x, out=torch.empty_like(x), **options),
    "module": lambda x, softcap: fusedops.nn.MaskedSoftmax(softcap=softcap)(x),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cap", [0.0, -1.0, INF, NAN, 1e-40, 1e38])
def test_a_cap_that_is_no_positive_number_of_the_dtype_is_refused(form, cap):
    with pytest.raises(
        RuntimeError, match=re.escape(f"softcap is {cap:g}") + ", wanted a finite number above 0"
    ):
        FORMS[form](torch.randn(2, 3), softcap=cap)


def test_the_range_of_float64_is_its_own():
    x = torch.randn(4, 9, dtype=torch.float64) * 1e200
    torch.testing.assert_close(
        fusedops.masked_softmax(x, softcap=1e100, scale=1e-100), eager(x, 1e100, 1e-100)
    )


def test_the_cap_is_a_number():
    x = torch.randn(2, 3)
    wanted = fusedops.masked_softmax(x, softcap=2.0)
    for cap in (2, np.float32(2), torch.tensor(2.0)):
        assert same_bits(fusedops.masked_softmax(x, softcap=cap), wanted)
    for call in (
        fusedops.masked_softmax,
        fusedops.masked_softmax_dropout,
        fusedops.nn.MaskedSoftmax,
    ):
        with pytest.raises(TypeError, match="softcap is '2', wanted a number"):
            call(*([] if call is fusedops.nn.MaskedSoftmax else [x]), softcap="2")


def test_a_module_has_a_cap():
    x, module = torch.randn(2, 3, 4), fusedops.nn.MaskedSoftmax(causal=True, softcap=1.5)
    assert "softcap=1.5" in repr(module)
    assert math.isclose(module.softcap, 1.5)
    assert same_bits(module(x), fusedops.masked_softmax(x, causal=True, softcap=1.5))
