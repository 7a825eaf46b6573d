"""Sinks: one more score of each row, whose probability is left out."""

import math

import pytest
import torch
from oracle import DTYPES, relative_error, same_bits
from test_masked_softmax_grad import FUNCTIONS, SEED, doubles
from test_masked_softmax_values import bools
from torch.autograd import gradcheck, gradgradcheck

import fusedops
from fusedops import reference

ops = torch.ops.fusedops
INF, NAN = float("inf"), float("nan")

#: For scores of [2, 3, queries, keys]: the sinks, from far below the scores to far above.
SINKS = {
    "of each head": lambda q: torch.randn(3, 1),
    "of each row": lambda q: torch.randn(2, 3, q) * 40,
    "a number": lambda q: torch.tensor(0.0),
    "-inf": lambda q: torch.full((q,), -INF),
    "above": lambda q: torch.full((3, 1), 60.0),
    "below": lambda q: torch.full((3, 1), -60.0),
}
OPTIONS = {
    "none": lambda q, k: {},
    "causal": lambda q, k: {"causal": True},
    "window": lambda q, k: {"causal": "bottom_right", "window": 40},
    "mask and bias": lambda q, k: {"mask": bools(2, 1, 1, k), "bias": torch.randn(3, q, k)},
    "a finite mask value": lambda q, k: {"mask": bools(2, 1, 1, k), "mask_value": -2.0},
}


def composed(x, sinks, mask=None, bias=None, causal=False, window=None, mask_value=-INF):
    """Rows with the sink as a last column, in float64, as models compose it."""
    queries, keys = x.shape[-2:]
    diagonal = keys - queries if causal == "bottom_right" else 0
    visible = torch.ones(x.shape, dtype=torch.bool) if mask is None else mask.expand(x.shape)
    visible = visible.tril(diagonal) if causal else visible
    visible = visible if window is None else visible.triu(diagonal - window + 1)
    scores = 0.5 * x.double() + (0 if bias is None else bias.double())
    scores = scores.masked_fill(~visible, mask_value)
    column = sinks.double()[..., None].expand(*x.shape[:-1], 1)
    return torch.softmax(torch.cat([scores, column], -1), -1)


def tolerance(dtype):
    """The bounds for results that may be as small as the smallest number of their dtype."""
    if dtype == torch.float64:
        return {"rtol": 1e-11, "atol": 1e-300}
    if dtype == torch.float32:
        return {"rtol": 1e-4, "atol": 1e-37}
    return {"rtol": 4 * torch.finfo(dtype).eps, "atol": 1e-7 if dtype == torch.float16 else 1e-37}


def probabilities_of_sinks(
    x, sinks, mask=None, bias=None, causal=False, window=None, mask_value=-INF
):
    """From the op that computes them, with the options of :func:`composed`."""
    queries, keys = x.shape[-2:]
    diagonal = keys - queries if causal == "bottom_right" else 0
    lower = None if window is None else diagonal - window + 1
    given = (x, mask, 0.5, bool(causal), mask_value, 0.0, None, bias, None, diagonal, False)
    return ops.masked_softmax_sinks(*given, lower, None, None, sinks)[2]


@pytest.mark.parametrize("kind", SINKS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("queries, keys", [(5, 7), (6, 700), (2, 9001)])
def test_values_are_those_of_one_more_column(kind, options, dtype, queries, keys):
    torch.manual_seed(keys)
    x, sinks = torch.randn(2, 3, queries, keys).to(dtype), SINKS[kind](queries)
    given = OPTIONS[options](queries, keys)
    expected = composed(x, sinks, **given)
    actual = fusedops.masked_softmax(x, scale=0.5, sinks=sinks, **given)
    torch.testing.assert_close(
        actual.double(), expected[..., :-1], equal_nan=True, **tolerance(dtype)
    )
    of_sinks = probabilities_of_sinks(x, sinks, **given)
    assert of_sinks.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(
        of_sinks.double(), expected[..., -1], rtol=1e-4, atol=1e-37, equal_nan=True
    )


def test_the_reference_defines_it():
    x, sinks = torch.randn(2, 3, 6, 9), torch.randn(3, 1)
    expected = reference.masked_softmax(x, diagonal=0, sinks=sinks).float()
    torch.testing.assert_close(fusedops.masked_softmax(x, causal=True, sinks=sinks), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sink", [-80.0, -30.0, 0.0, 30.0])
def test_a_small_probability_of_a_sink_has_all_its_digits_and_so_has_its_gradient(dtype, sink):
    """A difference from 1 would have none."""
    x, grad = torch.randn(64, 100).to(dtype), torch.randn(64, 100).to(dtype)
    sinks = torch.full((64,), sink, dtype=dtype, requires_grad=True)
    exact = sinks.detach().double().requires_grad_()
    y = torch.softmax(torch.cat([x.double(), exact[:, None]], -1), -1)
    (expected,) = torch.autograd.grad(y[:, :-1], exact, grad.double())
    (actual,) = torch.autograd.grad(fusedops.masked_softmax(x, sinks=sinks), sinks, grad)
    error = (actual.double() - expected).abs()
    sizes = y[:, -1] * (grad.double() * y[:, :-1]).abs().sum(-1)
    assert (error <= 64 * torch.finfo(dtype).eps * sizes.detach()).all()


@pytest.mark.parametrize("mask_value", [-INF, -1e4])
def test_a_row_that_sees_nothing_is_zero(mask_value):
    x, nothing = torch.randn(3, 40), torch.zeros(3, dtype=torch.int64)
    for masked_rows in ("nan", "zero"):
        y = fusedops.masked_softmax(
            x, end=nothing, sinks=1.0, mask_value=mask_value, masked_rows=masked_rows
        )
        assert (y == 0).all()
    assert (fusedops.masked_softmax(torch.full((2, 9), -INF), sinks=0.0) == 0).all()


@pytest.mark.parametrize("row", [[NAN, 1.0], [INF, 1.0], [-INF, -INF], [3e38, -3e38]])
@pytest.mark.parametrize("sink", [0.0, NAN, INF, -INF, 3e38])
def test_special_values_come_out_as_of_one_more_column(row, sink):
    x, sinks = torch.tensor([row]), torch.tensor([sink])
    expected = torch.softmax(torch.cat([x, sinks[:, None]], -1), -1)[:, :-1]
    actual = fusedops.masked_softmax(x, sinks=sinks)
    torch.testing.assert_close(actual, expected, equal_nan=True)


def test_a_sink_of_minus_infinity_changes_no_bit():
    x = torch.randn(4, 5, 700)
    actual = fusedops.masked_softmax(x, causal=True, sinks=-INF)
    assert same_bits(actual, fusedops.masked_softmax(x, causal=True))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("shape", [(3, 1), (2, 3, 4), ()])
def test_gradcheck_and_gradgradcheck(function, options, shape):
    x, bias, sinks = doubles(2, 3, 4, 5), doubles(3, 4, 5), doubles(shape)
    given = OPTIONS[options](4, 5)

    def run(x, bias, sinks):
        return FUNCTIONS[function](x, sinks=sinks, scale=0.7, **given | {"bias": bias})

    assert gradcheck(run, (x, bias, sinks))
    assert gradgradcheck(run, (x, bias, sinks))
    assert gradgradcheck(lambda x: run(x, bias.detach(), sinks.detach()), x)
    assert gradgradcheck(lambda sinks: run(x.detach(), bias.detach(), sinks), sinks)


def test_the_third_derivative_is_right():
    x, sinks = doubles(2, 4), doubles(2)
    weight = torch.randn(2, 4, dtype=torch.float64)

    def of(softmax):
        y = (softmax() * weight).sum()
        for _ in range(3):
            grads = torch.autograd.grad(y, (x, sinks), create_graph=True)
            y = sum(grad.square().sum() for grad in grads)
        return grads

    ours = of(lambda: fusedops.masked_softmax(x, sinks=sinks))
    theirs = of(lambda: torch.softmax(torch.cat([x, sinks[:, None]], -1), -1)[:, :-1])
    for actual, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(actual, expected)


def test_the_probabilities_of_dropout_have_a_gradient_too():
    x, sinks, seed = doubles(4, 9), doubles(4), torch.tensor(SEED)

    def both(x, sinks):
        op = ops.masked_softmax_dropout
        return op(x, None, 0.5, False, 0.0, 0.3, seed, sinks=sinks)

    assert gradcheck(both, (x, sinks))
    assert gradcheck(lambda x, sinks: both(x, sinks)[1], (x, sinks))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_16_bits_are_those_of_float64_within_their_rounding(dtype):
    x, grad = torch.randn(8, 4, 30, 200).to(dtype), torch.randn(8, 4, 30, 200).to(dtype)
    sinks = torch.randn(4, 1, requires_grad=True)
    x.requires_grad_()
    exact = [t.detach().double().requires_grad_() for t in (x, sinks)]
    expected = torch.autograd.grad(
        composed(2 * exact[0], exact[1], causal=True)[..., :-1], exact, grad.double()
    )
    y = fusedops.masked_softmax(x, causal=True, sinks=sinks)
    actual = torch.autograd.grad(y, (x, sinks), grad)
    assert actual[0].dtype == dtype and actual[1].dtype == torch.float32
    for ours, theirs in zip(actual, expected, strict=True):
        assert relative_error(ours, theirs) < 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_compiled_calls_give_the_same(backend, learned, p):
    x = torch.randn(2, 3, 6, 40, requires_grad=True)
    sinks, seed = torch.randn(3, 1, requires_grad=learned), torch.tensor(SEED)

    def function(x, sinks):
        if p == 0:
            return fusedops.masked_softmax(x, causal=True, sinks=sinks)
        return fusedops.masked_softmax_dropout(x, p=p, seed=seed, causal=True, sinks=sinks)

    grad, results = torch.randn(x.shape), []
    for run in (function, torch.compile(function, backend=backend, fullgraph=True)):
        y = run(x, sinks)
        results.append((y, *torch.autograd.grad(y, (x, sinks) if learned else (x,), grad)))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-7)


def test_the_op_itself_gives_learned_sinks_their_gradient():
    x, sinks = torch.randn(2, 5, 9), torch.randn(5, requires_grad=True)
    y = ops.masked_softmax(x, None, 1.0, False, None, sinks=sinks)
    y.square().sum().backward()
    expected, sinks.grad = sinks.grad, None
    fusedops.masked_softmax(x, sinks=sinks).square().sum().backward()
    assert expected.count_nonzero() == 5 and same_bits(sinks.grad, expected)


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_the_op_itself_gives_it_in_a_compiled_graph_too(p):
    x, sinks, seed = torch.randn(2, 5, 9), torch.randn(5, requires_grad=True), torch.tensor(SEED)

    def call(x, sinks):
        if p == 0:
            return ops.masked_softmax(x, None, 1.0, True, None, sinks=sinks)
        return ops.masked_softmax_dropout(x, None, 1.0, True, None, p, seed, sinks=sinks)[0]

    results = []
    for run in (call, torch.compile(call, backend="aot_eager", fullgraph=True)):
        (gradient,) = torch.autograd.grad(run(x, sinks).square().sum(), sinks)
        results.append(gradient)
    assert results[0].count_nonzero() == 5 and same_bits(*results)


def test_out_and_in_place_have_the_bits_of_the_function():
    x, sinks = torch.randn(3, 5, 70), torch.randn(3, 1)
    expected = fusedops.masked_softmax(x, causal=True, sinks=sinks)
    out = fusedops.masked_softmax(x, causal=True, sinks=sinks, out=torch.empty_like(x))
    assert same_bits(out, expected)
    ops.masked_softmax_(x, None, 1.0, True, None, sinks=sinks)
    assert same_bits(x, expected)


def test_gradients_under_vmap_are_those_of_each_slice():
    x, sinks = torch.randn(4, 5, 9), torch.randn(4, 5)

    def loss(t, s):
        return fusedops.masked_softmax(t, sinks=s, causal=True).pow(2).sum()

    actual = torch.vmap(torch.func.grad(loss, (0, 1)))(x, sinks)
    slices = [torch.func.grad(loss, (0, 1))(*each) for each in zip(x, sinks, strict=True)]
    for ours, theirs in zip(actual, map(torch.stack, zip(*slices, strict=True)), strict=True):
        torch.testing.assert_close(ours, theirs)
    hessian = torch.func.jacrev(torch.func.grad(loss, 1), 1)(x[0], sinks[0])
    plain = torch.autograd.functional.hessian(lambda s: loss(x[0], s), sinks[0])
    torch.testing.assert_close(hessian, plain)


def test_a_row_alone_and_in_a_batch_has_equal_bits():
    x, sinks = torch.randn(37, 1000), torch.randn(37)
    batch = fusedops.masked_softmax(x, sinks=sinks)
    for row in (0, 5, 36):
        one = slice(row, row + 1)
        assert same_bits(batch[one], fusedops.masked_softmax(x[one], sinks=sinks[one]))


def test_the_module_takes_sinks():
    x, learned = torch.randn(2, 3, 6, 9), torch.randn(3, 1)
    module = fusedops.nn.MaskedSoftmax(sinks=0.0)
    assert "sinks=0.0" in repr(module)
    assert same_bits(module(x), fusedops.masked_softmax(x, sinks=0.0))
    assert same_bits(module(x, sinks=learned), fusedops.masked_softmax(x, sinks=learned))
    assert math.isclose(module(torch.zeros(1, 3)).sum().item(), 0.75, rel_tol=1e-6)
