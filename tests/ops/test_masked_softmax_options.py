"""What masked_softmax may hide, add, cap and let sink, each alone and with others: values against
float64, derivatives, and the forms in which it can be called."""

import itertools

import bounds
import pytest
import torch
from oracle import DTYPES, same_bits
from test_masked_softmax_grad import FUNCTIONS, doubles
from test_masked_softmax_values import bools
from torch.autograd import gradcheck, gradgradcheck

import fusedops
from fusedops import reference

ops = torch.ops.fusedops
SCALE = 0.7


def lengths(shape, high):
    """Ends of rows: some see nothing, some all."""
    return torch.randint(-2, high + 3, shape)


def documents(queries, keys):
    start = torch.randint(0, keys, (2, 1, queries))
    return {"start": start, "end": start + torch.randint(0, keys, (2, 1, queries)).int()}


#: For scores of [2, 3, queries, keys], the keywords of masked_softmax that leave rows an interval.
INTERVALS = {
    "window": lambda q, k: {"window": 7, "causal": True},
    "window to the right": lambda q, k: {"window": 40, "causal": "bottom_right"},
    "window around": lambda q, k: {"window": (5, 70)},
    "causal window around": lambda q, k: {"window": (5, 70), "causal": True},
    "lengths": lambda q, k: {"end": lengths((2, 1, 1), k)},
    "left padding": lambda q, k: {"start": lengths((2, 1, 1), k).int(), "causal": "bottom_right"},
    "chunks": lambda q, k: {"start": torch.arange(q) * k // q // 64 * 64, "causal": "bottom_right"},
    "documents": documents,
    "every row": lambda q, k: {"start": lengths((2, 3, q), k), "end": lengths((2, 3, q), k).int()},
    "all": lambda q, k: {
        "start": lengths((3, q), k) // 2,
        "end": lengths((1,), k),
        "window": (90, k),
    },
}
HIDING = INTERVALS | {
    "nothing": lambda q, k: {},
    "causal": lambda q, k: {"causal": True},
    "bool mask": lambda q, k: {"mask": bools(2, 1, 1, k), "mask_value": -1e4},
    "float mask": lambda q, k: {"mask": torch.randn(2, 1, q, k)},
    "mask and bias": lambda q, k: {"mask": bools(2, 1, 1, k), "bias": torch.randn(3, 1, k)},
    "two addends": lambda q, k: {"mask": torch.randn(1, k), "bias": torch.randn(3, q, k) * 5},
    "a finite mask value": lambda q, k: {"mask": bools(2, 1, 1, k), "mask_value": -2.0},
}
#: What acts on the scores beside that; sinks are from far below the scores to far above.
BESIDE = {
    "nothing": lambda q: {},
    "a low cap": lambda q: {"softcap": 0.5},
    "a cap": lambda q: {"softcap": 5.0},
    "a high cap": lambda q: {"softcap": 50.0},
    "sinks of each head": lambda q: {"sinks": torch.randn(3, 1)},
    "sinks of each row": lambda q: {"sinks": torch.randn(2, 3, q) * 40},
    "a sink": lambda q: {"sinks": torch.tensor(0.0)},
    "sinks of -inf": lambda q: {"sinks": torch.full((q,), -torch.inf)},
    "sinks above": lambda q: {"sinks": torch.full((3, 1), 60.0)},
    "sinks below": lambda q: {"sinks": torch.full((3, 1), -60.0)},
    "sinks and a cap": lambda q: {"sinks": torch.randn(3, 1) * 5, "softcap": 5.0},
}
every_option = pytest.mark.parametrize("hiding", HIDING)
beside_every_other = pytest.mark.parametrize("beside", BESIDE)
#: Each of the first beside one of the second.
some_options = pytest.mark.parametrize(
    "hiding, beside", list(zip(HIDING, itertools.cycle(BESIDE), strict=False))
)


def options_of(hiding, beside, queries, keys):
    return HIDING[hiding](queries, keys) | BESIDE[beside](queries)


def in_diagonals(shape, causal=False, window=None, **others):
    """The same in keywords of the reference, and of the op but for ``causal``."""
    corner = shape[-1] - shape[-2] if causal == "bottom_right" else 0
    if window is None:
        return others | ({"diagonal": corner} if causal else {})
    left, right = window if isinstance(window, tuple) else (window - 1, 0)
    return others | {"diagonal": corner if causal else right, "lower_diagonal": corner - left}


def shown(shape, **options):
    """The columns of [..., queries, keys] that the keywords leave visible."""
    given, column = in_diagonals(shape, **options), torch.arange(shape[-1])
    visible = torch.ones(shape, dtype=torch.bool).tril(given.get("diagonal", shape[-1]))
    visible = visible.triu(given.get("lower_diagonal", -shape[-2]))
    visible = visible & (column >= given["start"][..., None]) if "start" in given else visible
    visible = visible & (column < given["end"][..., None]) if "end" in given else visible
    mask = given.get("mask")
    return visible if mask is None or mask.dtype != torch.bool else visible & mask


@every_option
@beside_every_other
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("queries, keys", [(5, 7), (40, 40), (6, 700), (2, 9001)])
def test_errors_are_within_their_bound(hiding, beside, dtype, queries, keys):
    torch.manual_seed(keys)
    options = options_of(hiding, beside, queries, keys)
    x = (torch.randn(2, 3, queries, keys) * (30 if "softcap" in options else 1)).to(dtype)
    actual = fusedops.masked_softmax(x, scale=SCALE, masked_rows="zero", **options)
    visible = shown(x.shape, **options)
    sees = visible.any(-1)
    assert sees.any() and not actual[~sees].any()
    assert "mask_value" in options or not actual[~visible].any()
    names = ("mask", "bias", "mask_value", "softcap", "sinks")
    of_scores = {name: options[name] for name in names if name in options}
    if visible.logical_not().any():  # the interval as a mask
        of_scores["mask"] = visible
    wanted = bounds.softmax(bounds.masked_scores(x, scale=SCALE, **of_scores), dtype)
    bounds.assert_within(actual[sees], bounds.Bounded(wanted.exact[sees], wanted.error[:, sees]))


@every_option
@beside_every_other
def test_the_reference_defines_it(hiding, beside):
    x, options = torch.randn(2, 3, 6, 9), options_of(hiding, beside, 6, 9)
    expected = reference.masked_softmax(x, scale=SCALE, **in_diagonals(x.shape, **options))
    actual = fusedops.masked_softmax(x, scale=SCALE, **options)
    torch.testing.assert_close(actual, expected.float(), equal_nan=True)


@some_options
@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradcheck_and_gradgradcheck(hiding, beside, function):
    options = options_of(hiding, beside, 4, 5)
    learned = {"bias": doubles(3, 4, 5)}
    if "sinks" in options:
        learned["sinks"] = doubles(options["sinks"].shape)

    def run(x, *tensors):
        given = options | dict(zip(learned, tensors, strict=True))
        return FUNCTIONS[function](x, scale=SCALE, masked_rows="zero", **given)

    inputs = (doubles(2, 3, 4, 5), *learned.values())
    assert gradcheck(run, inputs)
    assert gradgradcheck(run, inputs)
    for alone in range(len(inputs)):  # the others require no grad
        given = [t if n == alone else t.detach() for n, t in enumerate(inputs)]
        assert gradgradcheck(run, given, fast_mode=True)


@some_options
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_calls_have_the_bits_of_eager_ones(hiding, beside, backend):
    """The derivative of a soft cap has another formula when it is compiled."""
    x, options = torch.randn(2, 3, 6, 40, requires_grad=True), options_of(hiding, beside, 6, 40)
    compiled = torch.compile(fusedops.masked_softmax, backend=backend, fullgraph=True)
    grad, results = torch.randn(x.shape), []
    for function in (fusedops.masked_softmax, compiled):
        y = function(x, masked_rows="zero", **options)
        results.append((y, *torch.autograd.grad(y, x, grad)))
    (y, to_x), (compiled_y, compiled_to_x) = results
    assert same_bits(y, compiled_y)
    torch.testing.assert_close(to_x, compiled_to_x)
    assert same_bits(to_x, compiled_to_x) or "softcap" in options


@some_options
def test_out_and_in_place_have_the_bits_of_the_function(hiding, beside):
    x, options = torch.randn(2, 3, 6, 70), options_of(hiding, beside, 6, 70)
    expected = fusedops.masked_softmax(x, scale=SCALE, **options)
    for out in (torch.empty_like(x), own := x.clone()):
        given = own if out is own else x
        assert fusedops.masked_softmax(given, scale=SCALE, out=out, **options) is out
        assert same_bits(out.nan_to_num(7), expected.nan_to_num(7))
    given = in_diagonals(x.shape, **options)
    mask, mask_value = given.pop("mask", None), given.pop("mask_value", None)
    ops.masked_softmax_(x, mask, SCALE, "diagonal" in given, mask_value, **given)
    assert same_bits(x.nan_to_num(7), expected.nan_to_num(7))
    interval = ("diagonal", "lower_diagonal", "start", "end")
    hidden = {name: given[name] for name in interval if name in given}
    mask = None if mask is None or mask.dtype != torch.bool else mask
    hides, grad = (expected, mask, SCALE, "diagonal" in given), torch.randn(x.shape)
    backward = ops.masked_softmax_backward(grad, *hides, x.dtype, **hidden)
    ops.masked_softmax_backward_(grad, *hides, **hidden)
    assert same_bits(grad.nan_to_num(7), backward.nan_to_num(7))
