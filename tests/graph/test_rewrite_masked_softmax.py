"""masked_softmax: what stands in front of a softmax over the last dimension, however spelled."""

import math

import bounds
import pytest
import torch
import torch.nn.functional as F
from expecttest import assert_expected_inline

from fusedops.graph import rewrite_graph

INF = math.inf
HEADS, LENGTH = 3, 6


def scaled(x, keep, bias):
    return (x * 0.5).softmax(-1)


def divided(x, keep, bias):
    return F.softmax(x / math.sqrt(8), dim=-1)


def scaled_twice_from_the_left(x, keep, bias):
    return torch.softmax(torch.mul(0.25, 2.0 * x), dim=-1)


def with_a_mask_added(x, keep, bias):
    return (x * 0.5 + bias[:, :1]).softmax(-1)


def with_a_mask_subtracted(x, keep, bias):
    return (x * 0.5 - 1e30 * (~keep).to(x.dtype)).softmax(-1)


def with_bias_and_mask(x, keep, bias):
    return (x + bias + bias[:1, :1]).softmax(-1)


def with_three_addends(x, keep, bias):
    return (x + bias[:, :1] + bias[:1] + bias[:1, :1]).softmax(-1)


def with_a_bias_under_the_scale(x, keep, bias):
    return ((x + bias[:, :1, :1]) * 0.5 + bias[:, :1]).softmax(-1)


def with_a_bias_from_the_left(x, keep, bias):
    return torch.add(bias[:, :1], x / 8).softmax(-1)


def filled_where_zero(x, keep, bias):
    return (x / 8).masked_fill(keep == 0, -1e9).softmax(-1)


def filled_where_not(x, keep, bias):
    return torch.masked_fill(x, ~keep, -INF).softmax(-1)


def filled_where_true(x, keep, bias):
    return x.masked_fill(keep.logical_not(), -1e4).softmax(-1)


def filled_with_the_least_number(x, keep, bias):
    return (x * 0.5).masked_fill(~keep, torch.finfo(torch.float64).min).softmax(-1)


def chosen(x, keep, bias):
    return torch.where(keep, x * 0.5, -INF).softmax(-1)


def chosen_the_other_way_round(x, keep, bias):
    return torch.where(~keep, -1e9, x * 0.5).softmax(-1)


def chosen_by_method(x, keep, bias):
    return (x * 0.5).where(keep, -1e9).softmax(-1)


def filled_and_then_scaled(x, keep, bias):
    return (x.masked_fill(~keep, -1e4) * 0.5).softmax(-1)


def filled_twice(x, keep, bias):
    x = x.masked_fill(~keep, -INF).masked_fill(bias[:1, :1] > 1, -INF)
    return (x / 4).softmax(-1)


def biased_and_then_filled(x, keep, bias):
    return (x * 0.5 + bias).masked_fill(~keep, -INF).softmax(-1)


def filled_causally(x, keep, bias):
    hidden = torch.triu(torch.ones(LENGTH, LENGTH), diagonal=1).bool()
    return (x * 0.5).masked_fill(hidden, -INF).softmax(-1)


def filled_causally_and_by_a_mask(x, keep, bias):
    visible = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    return x.masked_fill(~keep, -INF).masked_fill(~visible, -INF).softmax(-1)


def capped(x, keep, bias):
    return (torch.tanh(x / 50) * 50 + bias[:, :1]).softmax(-1)


def product_with_a_mask(x, keep, bias):
    a, b = x.flatten(0, 1), bias.flatten(0, 1)
    return torch.baddbmm(bias[0, 0], a, b, beta=0.5, alpha=0.3).softmax(-1)


def scaled_and_masked_in_place(x, keep, bias):
    scores = torch.matmul(x, x)
    scores /= 8
    scores += bias
    return scores.masked_fill_(~keep, -INF).softmax(-1)


def exponentials_written_out(x, keep, bias):
    scores = (x * 0.5).masked_fill(~keep, -1e9)
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def dropped_out_in_inference(x, keep, bias):
    return F.dropout((x * 0.5 + bias).softmax(-1), 0.5, training=False)


FORMS = [
    scaled,
    divided,
    scaled_twice_from_the_left,
    with_a_mask_added,
    with_a_mask_subtracted,
    with_bias_and_mask,
    with_three_addends,
    with_a_bias_under_the_scale,
    with_a_bias_from_the_left,
    filled_where_zero,
    filled_where_not,
    filled_where_true,
    filled_with_the_least_number,
    chosen,
    chosen_the_other_way_round,
    chosen_by_method,
    filled_and_then_scaled,
    filled_twice,
    biased_and_then_filled,
    filled_causally,
    filled_causally_and_by_a_mask,
    capped,
    product_with_a_mask,
    scaled_and_masked_in_place,
    exponentials_written_out,
    dropped_out_in_inference,
]
every_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)


@pytest.fixture
def draw():
    """draw(batch=2, dtype=torch.float64): scores, a bool mask that leaves a key, and a bias."""

    def draw(batch=2, dtype=torch.float64):
        x = torch.randn(batch, HEADS, LENGTH, LENGTH, dtype=dtype)
        keep = torch.rand(batch, 1, 1, LENGTH) > 0.4
        keep[..., 0] = True
        return x, keep, torch.randn_like(x)

    return draw


def _arguments(rewritten, op="masked_softmax"):
    """Those of the one op in the graph, by name."""
    (node,) = (n for g in rewritten.graphs for n in g.graph.nodes if op in str(n.target))
    names = [argument.name for argument in node.target._schema.arguments]
    return dict(zip(names, node.args, strict=False))


# --- every form -----------------------------------------------------------------------------------


@every_form
def test_every_form_is_one_op_with_eagers_values(rewrite, draw, form):
    arguments = draw()
    rewritten = rewrite(form, *arguments)
    assert rewritten.replaced == {"masked_softmax": 1} and rewritten.reasons == []
    torch.testing.assert_close(rewritten.call(*arguments), form(*arguments), rtol=1e-12, atol=0)


@every_form
def test_every_form_has_eagers_gradients(rewrite_dynamo, draw, form):
    x, keep, bias = draw()
    leaves = x.requires_grad_(), bias.requires_grad_()
    rewritten = rewrite_dynamo(form, x, keep, bias)
    assert rewritten.replaced == {"masked_softmax": 1}
    ours, eager = (
        torch.autograd.grad(f(x, keep, bias).sin().sum(), leaves, allow_unused=True)
        for f in (rewritten.call, form)
    )
    torch.testing.assert_close(ours, eager, rtol=1e-10, atol=1e-14)


@every_form
def test_every_form_is_found_and_compiled_once_for_all_batch_sizes(rewrite_dynamo, draw, form):
    rewritten = rewrite_dynamo(form, *draw(4), dynamic=True)
    for batch in (2, 5, LENGTH):
        arguments = draw(batch)
        torch.testing.assert_close(rewritten.call(*arguments), form(*arguments), rtol=1e-12, atol=0)
    assert rewritten.replaced == {"masked_softmax": 1} and len(rewritten.graphs) == 1


@pytest.mark.parametrize("form", [with_bias_and_mask, filled_causally_and_by_a_mask])
def test_the_backward_pass_is_our_op_too(backward_ops, draw, form):
    x, keep, bias = draw()
    arguments = x.requires_grad_(), keep, bias.requires_grad_()
    assert backward_ops(form, *arguments) == {"masked_softmax_backward": 1}


def _golden(rewritten):
    """The code, with short names for the op, its result and slices."""
    code = rewritten.code.replace("masked_softmax_default", "y")
    code = code.replace("fusedops.masked_softmax.default", "masked_softmax")
    return code.replace("slice(None, None, None)", ":").replace("slice(None, 1, None)", ":1")


def test_the_dynamo_graphs_after_the_rewrite(rewrite_dynamo, draw):
    codes = []
    for form in FORMS:
        torch._dynamo.reset()
        codes.append(f"{form.__name__}\n{_golden(rewrite_dynamo(form, *draw()))}\n")
    assert_expected_inline(
        "\n".join(codes),
        """\
scaled
y = masked_softmax(l_x_, None, 0.5, False, -inf, None, None, 0)
return (y,)

divided
y = masked_softmax(l_x_, None, 0.35355339059327373, False, -inf, None, None, 0)
return (y,)

scaled_twice_from_the_left
y = masked_softmax(l_x_, None, 0.5, False, -inf, None, None, 0)
return (y,)

with_a_mask_added
getitem = operator.getitem(l_bias_, (:, :1))
y = masked_softmax(l_x_, getitem, 0.5, False, -inf, None, None, 0)
return (y,)

with_a_mask_subtracted
invert = operator.invert(l_keep_)
to = to(invert, torch.float64)
mul_1 = operator.mul(1e+30, to)
neg_default = aten.neg.default(mul_1)
y = masked_softmax(l_x_, neg_default, 0.5, False, -inf, None, None, 0)
return (y,)

with_bias_and_mask
getitem = operator.getitem(l_bias_, (:1, :1))
y = masked_softmax(l_x_, getitem, 1.0, False, -inf, l_bias_, None, 0)
return (y,)

with_three_addends
getitem = operator.getitem(l_bias_, (:, :1))
add = operator.add(l_x_, getitem)
getitem_1 = operator.getitem(l_bias_, :1)
getitem_2 = operator.getitem(l_bias_, (:1, :1))
y = masked_softmax(add, getitem_2, 1.0, False, -inf, getitem_1, None, 0)
return (y,)

with_a_bias_under_the_scale
getitem = operator.getitem(l_bias_, (:, :1, :1))
getitem_1 = operator.getitem(l_bias_, (:, :1))
mul_tensor = aten.mul.Tensor(getitem, 0.5)
y = masked_softmax(l_x_, getitem_1, 0.5, False, -inf, mul_tensor, None, 0)
return (y,)

with_a_bias_from_the_left
getitem = operator.getitem(l_bias_, (:, :1))
y = masked_softmax(l_x_, getitem, 0.125, False, -inf, None, None, 0)
return (y,)

filled_where_zero
eq = operator.eq(l_keep_, 0)
logical_not_default = aten.logical_not.default(eq)
y = masked_softmax(l_x_, logical_not_default, 0.125, False, -1000000000.0, None, None, 0)
return (y,)

filled_where_not
y = masked_softmax(l_x_, l_keep_, 1.0, False, -inf, None, None, 0)
return (y,)

filled_where_true
y = masked_softmax(l_x_, l_keep_, 1.0, False, -10000.0, None, None, 0)
return (y,)

filled_with_the_least_number
y = masked_softmax(l_x_, l_keep_, 0.5, False, -1.7976931348623157e+308, None, None, 0)
return (y,)

chosen
y = masked_softmax(l_x_, l_keep_, 0.5, False, -inf, None, None, 0)
return (y,)

chosen_the_other_way_round
y = masked_softmax(l_x_, l_keep_, 0.5, False, -1000000000.0, None, None, 0)
return (y,)

chosen_by_method
y = masked_softmax(l_x_, l_keep_, 0.5, False, -1000000000.0, None, None, 0)
return (y,)

filled_and_then_scaled
y = masked_softmax(l_x_, l_keep_, 0.5, False, -5000.0, None, None, 0)
return (y,)

filled_twice
getitem = operator.getitem(l_bias_, (:1, :1))
gt = operator.gt(getitem, 1)
logical_not_default = aten.logical_not.default(gt)
logical_and_default = aten.logical_and.default(l_keep_, logical_not_default)
y = masked_softmax(l_x_, logical_and_default, 0.25, False, -inf, None, None, 0)
return (y,)

biased_and_then_filled
y = masked_softmax(l_x_, l_keep_, 0.5, False, -inf, l_bias_, None, 0)
return (y,)

filled_causally
ones = torch.ones(6, 6)
triu = torch.triu(ones)
hidden = bool(triu)
y = masked_softmax(l_x_, None, 0.5, True, -inf, None, None, 0)
return (y,)

filled_causally_and_by_a_mask
ones = torch.ones(6, 6)
visible = tril(ones)
invert_1 = operator.invert(visible)
y = masked_softmax(l_x_, l_keep_, 1.0, True, -inf, None, None, 0)
return (y,)

capped
truediv = operator.truediv(l_x_, 50)
tanh = torch.tanh(truediv)
getitem = operator.getitem(l_bias_, (:, :1))
y = masked_softmax(tanh, getitem, 50.0, False, -inf, None, None, 0)
return (y,)

product_with_a_mask
a = flatten(l_x_, 0, 1)
b = flatten(l_bias_, 0, 1)
getitem = operator.getitem(l_bias_, (0, 0))
bmm_default = aten.bmm.default(a, b)
mul_tensor = aten.mul.Tensor(getitem, 0.5)
y = masked_softmax(bmm_default, mul_tensor, 0.3, False, -inf, None, None, 0)
return (y,)

scaled_and_masked_in_place
scores = torch.matmul(l_x_, l_x_)
y = masked_softmax(scores, l_keep_, 0.125, False, -inf, l_bias_, None, 0)
return (y,)

exponentials_written_out
y = masked_softmax(l_x_, l_keep_, 0.5, False, -1000000000.0, None, None, 0)
return (y,)

dropped_out_in_inference
y = masked_softmax(l_x_, l_bias_, 0.5, False, -inf, None, None, 0)
dropout = torch.nn.functional.dropout(y, 0.5)
return (dropout,)
""",
    )


def test_the_exported_graph_after_the_rewrite(entries, draw):
    rewritten = entries["export"](scaled_and_masked_in_place, *draw())
    assert_expected_inline(
        _golden(rewritten),
        """\
matmul = aten.matmul.default(args_0, args_0)
y = masked_softmax(matmul, args_1, 0.125, False, None, args_2, None, 0)
return (y,)""",
    )


def test_the_traced_graph_after_the_rewrite(entries, draw):
    rewritten = entries["symbolic_trace"](biased_and_then_filled, *draw())
    assert_expected_inline(
        _golden(rewritten),
        """\
y = masked_softmax(x, keep, 0.5, False, -inf, bias, None, 0)
return y""",
    )


# --- scale and fill as tensors without dimensions -------------------------------------------------


@pytest.mark.parametrize("entry", ["dynamo", "export"])
def test_scale_and_fill_may_be_tensors_made_of_numbers(entries, entry, draw):
    def model(x, keep, bias):
        x = x / torch.tensor(8.0) * torch.full([], 2.0, dtype=x.dtype)
        return torch.where(keep, x, torch.full([], torch.finfo(x.dtype).min)).softmax(-1)

    arguments = draw(dtype=torch.float32)
    rewritten = entries[entry](model, *arguments)
    assert rewritten.replaced == {"masked_softmax": 1}
    assert _arguments(rewritten)["scale"] == 0.25
    torch.testing.assert_close(rewritten.call(*arguments), model(*arguments))


def test_a_number_is_what_its_tensors_dtype_holds(rewrite_dynamo, draw):
    def model(x, keep, bias):
        return (x / torch.tensor(0.3)).softmax(-1)

    rewritten = rewrite_dynamo(model, *draw())
    assert _arguments(rewritten)["scale"] == 1 / torch.tensor(0.3).item() != 1 / 0.3


@pytest.mark.parametrize("entry", ["dynamo", "export"])
def test_a_number_that_is_written_over_is_not_read(entries, entry, draw):
    def model(x, keep, bias):
        scale = torch.tensor(2.0)
        scale.mul_(3)
        return (x * scale).softmax(-1)

    arguments = draw()
    rewritten = entries[entry](model, *arguments)
    torch.testing.assert_close(rewritten.call(*arguments), model(*arguments), rtol=1e-12, atol=0)


def test_a_scale_that_depends_on_a_size_compiles_once_for_all_of_them(rewrite_dynamo, draw):
    def model(x, keep, bias):
        return (x * x.shape[0] + bias).softmax(-1)

    rewritten = rewrite_dynamo(model, *draw(4), dynamic=True)
    for batch in (2, 3, 5):
        arguments = draw(batch)
        torch.testing.assert_close(rewritten.call(*arguments), model(*arguments))
    assert len(rewritten.graphs) == 1 and rewritten.replaced == {"masked_softmax": 1}
    assert _arguments(rewritten)["scale"] == 1.0


def test_a_scale_as_a_graph_input_is_found(rewrite_dynamo, draw):
    class Model(torch.nn.Module):
        scale = 0.3

        def forward(self, x, keep, bias):
            return (x * self.scale).masked_fill(~keep, -INF).softmax(-1)

    rewritten = rewrite_dynamo(Model(), *draw(), dynamic=True)
    assert _arguments(rewritten)["scale"] == 0.3


# --- causal masks ---------------------------------------------------------------------------------


def _ones():
    return torch.ones(LENGTH, LENGTH, dtype=torch.bool)


def _arange():
    keys = torch.arange(LENGTH)
    return keys[None, :] <= keys[:, None]


def _nested():
    return _ones().tril().view(1, 1, LENGTH, LENGTH).expand(2, 1, -1, -1)


CAUSAL = {
    "tril of bool": lambda: _ones().tril(),
    "tril of float": lambda: torch.ones(LENGTH, LENGTH).tril() == 1,
    "not triu": lambda: ~torch.triu(_ones(), 1),
    "triu of zero": lambda: torch.ones(LENGTH, LENGTH).triu(1) == 0,
    "arange": _arange,
    "view and expand": _nested,
}


@pytest.mark.parametrize("entry", ["dynamo", "export"])  # symbolic_trace stores it, as a buffer
@pytest.mark.parametrize("mask", CAUSAL)
def test_a_causal_mask_that_the_graph_builds_is_recognised(entries, entry, draw, mask):
    def model(x, keep, bias):
        return (x * 0.5).masked_fill(~CAUSAL[mask](), -INF).softmax(-1)

    arguments = draw()
    rewritten = entries[entry](model, *arguments)
    given = _arguments(rewritten)
    assert (given["mask"], given["causal"], given["diagonal"]) == (None, True, 0)
    torch.testing.assert_close(rewritten.call(*arguments), model(*arguments), rtol=1e-12, atol=0)


@pytest.mark.parametrize("diagonal", [0, 1, 2])
def test_where_keys_come_before_the_queries_the_diagonal_is_kept(rewrite_dynamo, diagonal):
    def model(x):
        hidden = torch.ones(4, 6, dtype=torch.bool).triu(diagonal + 1)
        return x.masked_fill(hidden, -INF).softmax(-1)

    x = torch.randn(2, 4, 6, dtype=torch.float64)
    rewritten = rewrite_dynamo(model, x)
    given = _arguments(rewritten)
    assert (given["mask"], given["causal"], given["diagonal"]) == (None, True, diagonal)
    torch.testing.assert_close(rewritten.call(x), model(x), rtol=1e-12, atol=0)


def _overwritten():
    mask = _ones().tril()
    mask[0, 3] = True
    return mask


def _overwritten_through_a_view():
    mask = _ones().tril()
    mask[0].fill_(True)
    return mask


OTHERS = {
    "anti-causal": lambda: _ones().triu(),
    "banded": lambda: _ones().tril().triu(-2),
    "nothing in the first row": lambda: _ones().tril(-1) | (torch.arange(LENGTH) == 5),
    "one row": lambda: torch.arange(LENGTH) < 4,
    "everything": lambda: _ones(),
    "overwritten": _overwritten,
    "overwritten through a view": _overwritten_through_a_view,
}


@pytest.mark.parametrize("mask", OTHERS)
def test_a_mask_that_is_not_causal_stays_a_mask(rewrite_dynamo, draw, mask):
    def model(x, keep, bias):
        return (x * 0.5).masked_fill(~OTHERS[mask](), -INF).softmax(-1)

    arguments = draw()
    rewritten = rewrite_dynamo(model, *arguments)
    assert _arguments(rewritten)["causal"] is False
    torch.testing.assert_close(rewritten.call(*arguments), model(*arguments), rtol=1e-12, atol=0)


def test_a_causal_buffer_stays_a_mask_as_it_may_change(rewrite_dynamo):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("visible", _ones().tril())

        def forward(self, x):
            return x.masked_fill(~self.visible, -INF).softmax(-1)

    model, x = Model(), torch.randn(2, LENGTH, LENGTH, dtype=torch.float64)
    rewritten = rewrite_dynamo(model, x)
    assert _arguments(rewritten)["causal"] is False
    model.visible.fill_(True)
    torch.testing.assert_close(rewritten.call(x), x.softmax(-1), rtol=1e-12, atol=0)


def test_a_causal_mask_of_a_symbolic_length_stays_a_mask(rewrite_dynamo):
    def model(x):
        visible = torch.ones(x.shape[-1], x.shape[-1], dtype=torch.bool).tril()
        return x.masked_fill(~visible, -INF).softmax(-1)

    rewritten = rewrite_dynamo(model, torch.randn(2, 6, 6, dtype=torch.float64), dynamic=True)
    assert _arguments(rewritten)["causal"] is False
    x = torch.randn(3, 9, 9, dtype=torch.float64)
    torch.testing.assert_close(rewritten.call(x), model(x), rtol=1e-12, atol=0)
    assert len(rewritten.graphs) == 1


# --- what is not taken in -------------------------------------------------------------------------


def _over_the_first_dimension(x, keep, bias):
    return (x * 0.5).softmax(0)


def _over_the_second_to_last_dimension(x, keep, bias):
    return x.masked_fill(~keep, -1e9).softmax(-2)


def _enlarged_by_a_mask(x, keep, bias):
    return x[:1].masked_fill(~keep, -INF).softmax(-1)


def _enlarged_by_a_bias(x, keep, bias):
    return (x[0] + bias).softmax(-1)


def _scores_used_too(x, keep, bias):
    scores = x * 0.5 + bias
    return scores.softmax(-1) + scores


def _exponentials_of_another_dim(x, keep, bias):
    x = x.masked_fill(~keep, -1e9)
    e = (x - x.amax(1, keepdim=True)).exp()
    return e / e.sum(1, keepdim=True)


def _logarithm(x, keep, bias):
    return (x * 0.5).masked_fill(~keep, -1e9).log_softmax(-1)


PLAIN = [
    _over_the_first_dimension,
    _over_the_second_to_last_dimension,
    _enlarged_by_a_mask,
    _scores_used_too,
    _exponentials_of_another_dim,
]


@pytest.mark.parametrize("form", PLAIN, ids=lambda form: form.__name__)
def test_what_does_not_fit_keeps_the_plain_op(rewrite, draw, form):
    arguments = draw()
    rewritten = rewrite(form, *arguments)
    assert rewritten.replaced == {"softmax": 1} and rewritten.reasons == []
    torch.testing.assert_close(rewritten.call(*arguments), form(*arguments), rtol=1e-12, atol=0)


def _scaled_and_returned(x, keep, bias):
    scores = x * 0.5
    return (scores + bias[:, :1]).softmax(-1), scores


def _filled_with_two_values(x, keep, bias):
    return x.masked_fill(~keep, -INF).masked_fill(bias > 1, -1e9).softmax(-1)


def _filled_and_then_biased(x, keep, bias):
    return (x.masked_fill(~keep, -1e9) + bias).softmax(-1)


def _filled_with_infinity(x, keep, bias):
    return (x.masked_fill(keep, -INF) * -0.5).softmax(-1)


def _multiplied_by_a_tensor(x, keep, bias):
    return (x * bias[0, 0, 0, 0] + bias).softmax(-1)


def _quotient_of_a_number(x, keep, bias):
    return (2.0 / (x.abs() + 1) + bias).softmax(-1)


def _rounded_quotient(x, keep, bias):
    return (torch.div(x, 0.3, rounding_mode="floor") + bias).softmax(-1)


def _scaled_addend(x, keep, bias):
    return (torch.add(x, bias, alpha=2) * 0.5).softmax(-1)


def _added_to_itself(x, keep, bias):
    scores = x * 0.5
    return (scores + scores).softmax(-1)


def _written_between(x, keep, bias):
    scores = x * 0.5
    bias = bias * 1
    y = scores + bias
    bias.zero_()
    return y.softmax(-1) + bias


def _mask_written_between(x, keep, bias):
    keep = keep.clone()
    y = x.masked_fill(~keep, -1e9)
    keep.fill_(True)
    return y.softmax(-1) * keep


PARTS = [
    _enlarged_by_a_bias,
    _scaled_and_returned,
    _filled_with_two_values,
    _filled_and_then_biased,
    _filled_with_infinity,
    _multiplied_by_a_tensor,
    _quotient_of_a_number,
    _rounded_quotient,
    _scaled_addend,
    _added_to_itself,
    _written_between,
    _mask_written_between,
    _logarithm,
]


@pytest.mark.parametrize("form", PARTS, ids=lambda form: form.__name__)
def test_as_much_is_taken_in_as_keeps_eagers_values(rewrite, draw, form):
    arguments = draw()
    rewritten = rewrite(form, *arguments)
    assert len(rewritten.report.replaced) == 1 and rewritten.reasons == []
    ours, eager = rewritten.call(*arguments), form(*arguments)
    torch.testing.assert_close(ours, eager, rtol=1e-12, atol=0, equal_nan=True)


@pytest.mark.parametrize("seen", ["an argument", "returned", "a view"])
def test_in_place_steps_that_others_see_stay(rewrite_dynamo, draw, seen):
    def model(x, keep, bias):
        scores = x if seen == "an argument" else x * 1
        view = scores.flatten() if seen == "a view" else None
        scores *= 0.5
        scores.masked_fill_(~keep, -1e9)
        y = scores.softmax(-1)
        return y, (scores if seen == "returned" else view)

    ours = draw()
    eager, spare = ([tensor.clone() for tensor in ours] for _ in range(2))
    rewritten = rewrite_dynamo(model, *spare)
    results = rewritten.call(*ours), model(*eager)
    torch.testing.assert_close(*results, rtol=1e-12, atol=0)
    torch.testing.assert_close(list(ours), eager, rtol=0, atol=0)


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
def test_in_16_bits_it_has_eagers_dtype_and_is_rounded_once(rewrite_dynamo, draw, form, dtype):
    x, keep, bias = draw(8, dtype)
    rewritten = rewrite_dynamo(form, x, keep, bias)
    assert rewritten.replaced == {"masked_softmax": 1}
    assert not any(name in rewritten.code for name in ("mul", " add", "masked_fill", " to = "))
    ours, eager = rewritten.call(x, keep, bias), form(x, keep, bias)
    assert ours.dtype == eager.dtype
    mask = None if form is _float32_mask else keep
    parts = bounds.masked_scores(x, mask, 0.3, None, -1e4, bias[:, :1], ours.dtype)
    bounds.assert_within(ours, bounds.softmax(parts, ours.dtype))


def test_what_is_computed_in_float64_is_not_computed_in_less(rewrite, draw):
    def model(x, keep, bias):
        return (x.double() * 0.3 + bias.double()).softmax(-1).float()

    x, keep, bias = draw(dtype=torch.float32)
    rewritten = rewrite(model, x, keep, bias)
    assert len(rewritten.report.replaced) == 1
    assert torch.equal(rewritten.call(x, keep, bias), model(x, keep, bias))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_fill_that_overflows_its_dtype_is_infinite(rewrite_dynamo, draw, dtype):
    def model(x, keep, bias):
        fill = torch.full([], torch.finfo(torch.float32).min)
        return torch.where(keep, x, fill).softmax(-1)

    x, keep, bias = draw(dtype=dtype)
    keep[0] = False
    rewritten = rewrite_dynamo(model, x, keep, bias)
    assert rewritten.replaced == {"masked_softmax": 1}
    ours = rewritten.call(x, keep, bias)
    assert ours[0].isnan().all()
    torch.testing.assert_close(ours, model(x, keep, bias), equal_nan=True)


# --- rows without a visible key, NaN and infinities -----------------------------------------------

SPECIAL = [-INF, torch.finfo(torch.float32).min, -1e9, -1e4]


@pytest.mark.parametrize("fill", SPECIAL)
@pytest.mark.parametrize("spelling", ["fill", "where", "add"])
def test_a_row_that_is_hidden_whole_is_nan_or_uniform_as_eager_has_it(
    rewrite_dynamo, draw, spelling, fill
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
    rewritten = rewrite_dynamo(model, x, keep, bias)
    assert rewritten.replaced == {"masked_softmax": 1}
    ours, eager = rewritten.call(x, keep, bias), model(x, keep, bias)
    assert ours[0].isnan().all() == (fill == -INF)
    torch.testing.assert_close(ours, eager, rtol=2e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("value", [math.nan, INF, -INF])
@pytest.mark.parametrize("form", [filled_where_not, with_a_mask_added, biased_and_then_filled])
def test_nan_and_infinite_scores_give_what_eager_gives(rewrite_dynamo, draw, form, value):
    x, keep, bias = draw()
    keep[:, ..., 1] = False
    x[0, :, 0, 0] = x[0, :, 1, 1] = x[1, :, :3, 0] = value  # visible, hidden, visible
    rewritten = rewrite_dynamo(form, x, keep, bias)
    assert rewritten.replaced == {"masked_softmax": 1}
    ours, eager = rewritten.call(x, keep, bias), form(x, keep, bias)
    torch.testing.assert_close(ours, eager, rtol=1e-12, atol=0, equal_nan=True)


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
    x, table = torch.randn(2, HEADS, LENGTH, LENGTH), torch.randn(LENGTH, LENGTH, HEADS)
    inputs = (x.requires_grad_(), table.requires_grad_())
    rewritten = rewrite_dynamo(scores_with_a_bias_of_positions, *inputs)
    assert len(rewritten.report.replaced) == 2
    results = [f(*inputs) for f in (rewritten.call, scores_with_a_bias_of_positions)]
    torch.testing.assert_close(*results)
    weights = torch.randn_like(results[0])
    torch.testing.assert_close(*(torch.autograd.grad(r, inputs, weights) for r in results))


def test_a_second_run_changes_nothing(rewrite, draw):
    rewritten = rewrite(biased_and_then_filled, *draw())
    code = rewritten.code
    assert rewrite_graph(rewritten.graphs[0].graph).sites == () and rewritten.code == code
