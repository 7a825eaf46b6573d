"""masked_softmax has eager's values and gradients: dtypes, hidden rows, NaN, strides of a bias."""

import math

import bounds
import pytest
import torch
import torch.nn.functional as F
from agreement import assert_becomes, rewritten_alike
from masked_softmax_forms import FORMS, HEADS, INF, LENGTH, draw

# --- dtypes ---------------------------------------------------------------------------------------


def _attention(x, keep, bias):
    return (x * 0.3 + bias[:, :1]).masked_fill(~keep, -1e4).softmax(-1)


def _attention_in_float32(x, keep, bias):
    x = x.float() * 0.3 + bias[:, :1].float()
    return x.masked_fill(~keep, -1e4).softmax(-1).to(bias.dtype)


def _attention_with_float32_softmax(x, keep, bias):
    x = (x * 0.3 + bias[:, :1]).masked_fill(~keep, -1e4)
    return F.softmax(x, dim=-1, dtype=torch.float32).to(bias.dtype)


def _float32_mask(x, keep, bias):
    return (x * 0.3 + bias[:, :1].float()).softmax(-1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "form",
    [_attention, _attention_in_float32, _attention_with_float32_softmax, _float32_mask],
    ids=lambda form: form.__name__,
)
def test_in_16_bits_it_has_eagers_dtype_and_is_rounded_once(rewrite_dynamo, form, dtype):
    x, keep, bias = draw(8, dtype)
    rewritten = rewrite_dynamo(form, x, keep, bias)
    assert rewritten.replaced == {"masked_softmax": 1}
    assert not any(name in rewritten.code for name in ("mul", " add", "masked_fill", " to = "))
    ours, eager = rewritten.call(x, keep, bias), form(x, keep, bias)
    assert ours.dtype == eager.dtype
    mask = None if form is _float32_mask else keep
    parts = bounds.masked_scores(x, mask, 0.3, None, -1e4, bias[:, :1], ours.dtype)
    bounds.assert_within(ours, bounds.softmax(parts, ours.dtype))


def test_what_is_computed_in_float64_is_not_computed_in_less(rewrite):
    def model(x, keep, bias):
        return (x.double() * 0.3 + bias.double()).softmax(-1).float()

    rewritten = rewritten_alike(rewrite, model, draw(dtype=torch.float32), rtol=0, atol=0)
    assert len(rewritten.report.replaced) == 1


LEAST = torch.finfo(torch.float32).min
CONVERTED = {
    "filled": lambda x, keep: x.masked_fill(~keep, -1e9).softmax(-1, torch.float16),
    "filled, bfloat16": lambda x, keep: x.masked_fill(~keep, LEAST).softmax(-1, torch.bfloat16),
    "scaled": lambda x, keep: (x * 1e6).softmax(-1, torch.float16),
    "and back": lambda x, keep: (x * 1e6).softmax(-1, torch.float16).float(),
    "logarithm and back": lambda x, keep: (x * 1e6).log_softmax(-1, torch.float16).float(),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_scores_that_a_softmax_converts_to_a_narrower_dtype_overflow_as_in_eager_mode(
    rewrite_dynamo, name
):
    model = CONVERTED[name]
    x, keep, _ = draw(dtype=torch.float32)
    keep[0] = False
    rewritten = rewritten_alike(rewrite_dynamo, model, [x, keep])
    assert len(rewritten.report.replaced) == 1  # without the steps before it, or the cast back
    assert model(x, keep).isnan().any()


SCALED = {
    "overflow": (lambda x: (x * 1e25 * 1e25).softmax(-1), 1e-38),
    "overflow of a quotient": (lambda x: (x / 1e-40).softmax(-1), 1e-38),
    "underflow": (lambda x: (x * 1e-25 * 1e-25).softmax(-1), 1e30),
}


@pytest.mark.parametrize("name", SCALED)
def test_a_product_of_scales_that_float32_does_not_hold_is_not_one_scale(rewrite_dynamo, name):
    model, size = SCALED[name]
    x = torch.arange(20.0).view(4, 5) * size
    x[0, 0] = -INF
    rewritten_alike(rewrite_dynamo, model, [x])


def test_in_float64_it_is_one_scale(rewrite_dynamo):
    x = torch.randn(4, 5, dtype=torch.float64) * 1e-50
    rewritten = assert_becomes(rewrite_dynamo, SCALED["overflow"][0], (x,), {"masked_softmax": 1})
    assert "mul" not in rewritten.code


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_mask_value_that_overflows_its_dtype_is_infinite(rewrite_dynamo, dtype):
    def model(x, keep, bias):
        fill = torch.full([], torch.finfo(torch.float32).min)
        return torch.where(keep, x, fill).softmax(-1)

    x, keep, bias = draw(dtype=dtype)
    keep[0] = False
    assert_becomes(rewrite_dynamo, model, [x, keep, bias], {"masked_softmax": 1})
    assert model(x, keep, bias)[0].isnan().all()


# --- rows without a visible key, NaN and infinities -----------------------------------------------

SPECIAL = [-INF, torch.finfo(torch.float32).min, -1e9, -1e4]


@pytest.mark.parametrize("fill", SPECIAL)
@pytest.mark.parametrize("spelling", ["fill", "where", "add"])
def test_a_row_that_is_hidden_whole_is_nan_or_uniform_as_eager_has_it(
    rewrite_dynamo, spelling, fill
):
    def model(x, keep, bias):
        x = x * 0.5
        if spelling == "fill":
            return x.masked_fill(~keep, fill).softmax(-1)
        if spelling == "where":
            return torch.where(keep, x, fill).softmax(-1)
        return (x + torch.zeros_like(x).masked_fill(~keep, fill)).softmax(-1)

    x, keep, bias = draw(dtype=torch.float32)
    keep[0] = False
    inputs, ops = [x, keep, bias], {"masked_softmax": 1}
    assert_becomes(rewrite_dynamo, model, inputs, ops, rtol=2e-6, atol=0)
    assert model(*inputs)[0].isnan().all() == (fill == -INF)


@pytest.mark.parametrize("value", [math.nan, INF, -INF])
@pytest.mark.parametrize(
    "name", ["filled where not", "with a mask added", "biased and then filled"]
)
def test_nan_and_infinite_scores_give_what_eager_gives(rewrite_dynamo, name, value):
    x, keep, bias = draw()
    keep[:, ..., 1] = False
    x[0, :, 0, 0] = x[0, :, 1, 1] = x[1, :, :3, 0] = value  # visible, hidden, visible
    assert_becomes(rewrite_dynamo, FORMS[name][0], [x, keep, bias], {"masked_softmax": 1})


def scores_with_a_bias_of_positions(x, table):
    """As T5: the heads of the bias are adjacent, and two layers share it."""
    bias = (2 * table).permute(2, 0, 1).unsqueeze(0)
    first = (x + bias).softmax(-1)
    return (first * 3 + bias).softmax(-1)


def test_a_bias_whose_rows_lie_apart_is_not_copied_by_the_ops(ops_run):
    x, table = torch.randn(2, HEADS, LENGTH, LENGTH), torch.randn(LENGTH, LENGTH, HEADS)
    compiled = torch.compile(scores_with_a_bias_of_positions, backend="fusedops")
    torch.testing.assert_close(compiled(x, table), scores_with_a_bias_of_positions(x, table))
    assert ops_run(compiled, x, table) == {"masked_softmax": 2}
    with torch.profiler.profile() as profile:
        compiled(x, table)
    assert "aten::copy_" not in {event.name for event in profile.events()}


def test_a_bias_whose_rows_lie_apart_has_eagers_values_and_gradients(rewrite_dynamo):
    shapes = (2, HEADS, LENGTH, LENGTH), (LENGTH, LENGTH, HEADS)
    inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
    rewritten = rewritten_alike(rewrite_dynamo, scores_with_a_bias_of_positions, inputs)
    assert len(rewritten.report.replaced) == 2


@pytest.mark.parametrize("score", [math.nan, INF])
def test_a_score_that_an_added_mask_hides_does_not_spread(rewrite_dynamo, score):
    def added(x):
        return (x + torch.full((4, 4), -INF, dtype=x.dtype).triu(1)).softmax(-1)

    def filled(x):
        return x.masked_fill(torch.ones(4, 4, dtype=torch.bool).triu(1), -INF).softmax(-1)

    x = torch.randn(4, 4, dtype=torch.float64)
    x[0, 3] = score
    rewritten = rewrite_dynamo(added, x)
    assert rewritten.replaced == {"masked_softmax": 1} and added(x)[0].isnan().all()
    torch.testing.assert_close(rewritten.call(x), filled(x), rtol=1e-12, atol=0)
