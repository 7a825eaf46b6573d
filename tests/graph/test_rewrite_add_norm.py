"""add_layer_norm and add_rms_norm: a residual connection, its dropout and the norm behind it."""

import bounds
import pytest
import torch
import torch.nn.functional as F
from agreement import (
    assert_agrees,
    assert_becomes,
    assert_one_graph,
    compiled_by_aot,
    rewritten_alike,
)
from decomposed import EPS, layer_norm_decomposed
from torch import nn

import fusedops

N = 8


def layer_norm(h, weight, bias):
    return F.layer_norm(h, (N,), weight, bias, EPS)


def rms_norm(h, weight, bias):
    return F.rms_norm(h, (N,), weight, EPS)


def rms_norm_decomposed(h, weight, bias):
    return weight * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS))


NORMS = [layer_norm, layer_norm_decomposed, rms_norm, rms_norm_decomposed]
every_norm = pytest.mark.parametrize("norm", NORMS, ids=lambda norm: norm.__name__)


def _op(norm):
    return f"add_{norm.__name__.removesuffix('_decomposed')}"


def residual(form, norm):
    """The model of a branch x, a residual r, weight and bias that has this form with a norm."""
    return lambda x, r, w, b: form(norm, x, r, w, b)


def before(norm, x, r, w, b):
    h = x + r
    return h + norm(h, w, b).sin()


def sum_first(norm, x, r, w, b):
    h = torch.add(x, r)
    twice = h * 2
    return twice, norm(h, w, b)


def reshaped(norm, x, r, w, b):
    h = (x + r).reshape(-1, N)
    return h, norm(h, w, b)


def in_place(norm, x, r, w, b):
    h = x * 1
    h += r
    return norm(h, w, b)


FORMS = {
    "after": lambda norm, x, r, w, b: norm(x + r, w, b),
    "before": before,
    "sum first": sum_first,
    "reshaped": reshaped,
    "viewed": lambda norm, x, r, w, b: norm((x + r).view(size=(-1, N)), w, b),
    "in place": in_place,
    "added to itself": lambda norm, x, r, w, b: norm(x + x, w, b) * r,
}
every_form = pytest.mark.parametrize("form", FORMS)


def draw(batch=3, dtype=torch.float64, requires_grad=False):
    """Branch, residual, weight, bias."""
    shapes = ((batch, 5, N), (batch, 5, N), (N,), (N,))
    return [torch.randn(shape, dtype=dtype, requires_grad=requires_grad) for shape in shapes]


@every_norm
@every_form
def test_every_form_is_one_op_with_eagers_values(rewrite, form, norm):
    assert_becomes(rewrite, residual(FORMS[form], norm), draw(), {_op(norm): 1})


@every_norm
@every_form
def test_every_form_has_eagers_gradients_at_all_batch_sizes(rewrite_dynamo, form, norm):
    model = residual(FORMS[form], norm)
    leaves = draw(4, requires_grad=True)
    for tensor in leaves[:2]:  # rows of a symbolic length would leave decomposed norms as they are
        torch._dynamo.mark_dynamic(tensor, 0)
    rewritten = rewrite_dynamo(model, *leaves)
    assert_one_graph(rewritten, model, [draw(batch, requires_grad=True) for batch in (4, 2, 5)])
    assert rewritten.replaced == {_op(norm): 1}


@every_norm
def test_the_backward_pass_is_our_op_too(backward_ops, norm):
    counts = backward_ops(residual(before, norm), *draw(requires_grad=True))
    assert counts == {f"{_op(norm)}_backward": 1}


def test_modules_are_found_at_symbolic_trace(entries):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = nn.Linear(N, N), nn.LayerNorm(N)

        def forward(self, x):
            h = x + self.linear(x)
            return h * 2 + self.norm(h)

    block, x = Block().double(), draw()[0]
    assert_becomes(entries["symbolic_trace"], block, [x], {"add_layer_norm": 1})


# --- dropout --------------------------------------------------------------------------------------

P = 0.3


def _dropped_branch(x, r, w, b):
    return layer_norm(F.dropout(x, P) + r, w, b)


def _dropped_residual(x, r, w, b):
    return layer_norm(r + F.dropout(x, P), w, b)


@pytest.mark.parametrize("model", [_dropped_branch, _dropped_residual])
def test_the_dropout_of_one_side_is_taken_in(rewrite, model):
    x, r, w, b = draw(32)
    r.zero_()
    rewritten = rewrite(model, x, r, w, b)
    assert rewritten.replaced == {"add_layer_norm": 1} and " dropout" not in rewritten.code
    torch.manual_seed(1)
    first, second = (rewritten.call(x, r, w, b) for _ in range(2))
    torch.manual_seed(1)
    assert torch.equal(first, rewritten.call(x, r, w, b)) and not torch.equal(first, second)


def test_the_sum_shows_which_values_were_dropped_and_scaled(rewrite_dynamo):
    def model(x, r, w, b):
        h = F.dropout(x, P) + r
        return h, layer_norm(h, w, b)

    x, r, w, b = leaves = draw(64, requires_grad=True)
    rewritten = rewrite_dynamo(model, *leaves)
    assert rewritten.replaced == {"add_layer_norm": 1}
    ours, y = rewritten.call(*leaves)
    survivors = (ours - r).detach().abs() > 1e-12
    assert abs(survivors.double().mean() - (1 - P)) < 0.04  # 2560 draws: deviation 0.009
    h = x * survivors / (1 - P) + r
    torch.testing.assert_close(ours, h, rtol=1e-12, atol=1e-14)
    expected = layer_norm(h, w, b)
    torch.testing.assert_close(y, expected, rtol=1e-11, atol=1e-13)
    loss, expected_loss = (h.cos().sum() + y.sin().sum() for h, y in ((ours, y), (h, expected)))
    gradients = (torch.autograd.grad(total, leaves) for total in (loss, expected_loss))
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


def _both_dropped(x, r, w, b):
    return layer_norm(F.dropout(x, P) + F.dropout(r, P), w, b)


def _dropped_and_added_to_itself(x, r, w, b):
    dropped = F.dropout(x, P)
    return layer_norm(dropped + dropped, w, b)


def test_one_of_two_dropouts_is_taken_in(rewrite):
    rewritten = rewrite(_both_dropped, *draw())
    assert rewritten.replaced == {"add_layer_norm": 1, "dropout": 1}
    assert f", {P}," in rewritten.code.split("add_layer_norm", 1)[1]


def test_a_dropout_added_to_itself_is_drawn_once(rewrite):
    with fusedops.config.patch(fuse="always,dropout=never"):
        rewritten_alike(rewrite, _dropped_and_added_to_itself, draw())


# --- dtypes ---------------------------------------------------------------------------------------


def _llama(x, r, w, b):
    h = x + r
    f = h.to(torch.float32)
    f = f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + EPS)
    return w * f.to(h.dtype), h * 2


def _layer_norm_and_twice_the_sum(x, r, w, b):
    h = x + r
    return layer_norm(h, w, b), h * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("model", [_llama, _layer_norm_and_twice_the_sum])
def test_a_norm_behind_a_residual_is_rounded_as_its_model_has_it(rewrite, model, dtype):
    x, r, w, b = arguments = draw(16, dtype)
    kind, b = ("rms_norm", 0.0) if model is _llama else ("layer_norm", b)
    rewritten = rewrite(model, *arguments)
    assert rewritten.replaced == {f"add_{kind}": 1}
    (ours, twice), (_, eager_twice) = rewritten.call(*arguments), model(*arguments)
    assert ours.dtype == dtype and torch.equal(twice, eager_twice)
    wanted = bounds.norm(kind, x + r, w, b, EPS, rounds_normalized=model is _llama)
    bounds.assert_within(ours, wanted)


@pytest.mark.parametrize("entry", ["dynamo", "export"])
def test_a_cast_that_others_read_too_stays_behind_the_sum(entries, entry):
    def model(x, r, w, b):
        h = x + r
        f = h.float()
        y = f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + EPS)
        return y.to(x.dtype), f.sum(), h * 2

    assert_becomes(entries[entry], model, draw(dtype=torch.bfloat16), {"add_rms_norm": 1})


# --- what is not taken in -------------------------------------------------------------------------


def _written_into(x, r, w, b):
    h = x + r
    h.mul_(2)
    return layer_norm(h, w, b)


def _written_through_a_view(x, r, w, b):
    h = x + r
    h.view(-1)[:3].fill_(0.5)
    return layer_norm(h, w, b)


def _residual_written_between(x, r, w, b):
    r = r * 1
    h = x + r
    r.zero_()
    return layer_norm(h, w, b) + r


def _weight_made_of_the_sum(x, r, w, b):
    h = x + r
    return layer_norm(h, (h * 2).mean((0, 1)), b)


def _sum_not_contiguous(x, r, w, b):
    h = x.transpose(0, 1) + r.transpose(0, 1)
    return layer_norm(h, w, b), h


def _two_norms(x, r, w, b):
    h = x + r
    return layer_norm(h, w, b), layer_norm(h, b, w), h


def _written_after_the_norm(x, r, w, b):
    h = x + r
    y = layer_norm(h, w, b)
    h.mul_(2)
    return y, h


APART = {
    "broadcast": lambda x, r, w, b: layer_norm(x + r[:1], w, b),
    "a number": lambda x, r, w, b: layer_norm(x + 1.0, w, b),
    "scaled": lambda x, r, w, b: layer_norm(torch.add(x, r, alpha=2), w, b),
    "rows cut": lambda x, r, w, b: F.layer_norm((x + r).view(-1, N // 2), (N // 2,)),
    "written into": _written_into,
    "written through a view": _written_through_a_view,
    "residual written between": _residual_written_between,
    "weight made of the sum": _weight_made_of_the_sum,
    "sum not contiguous": _sum_not_contiguous,
}


@pytest.mark.parametrize("model", APART.values(), ids=APART)
def test_a_sum_that_is_no_residual_stays_outside_of_the_norm(rewrite, model):
    assert_becomes(rewrite, model, draw(), {"layer_norm": 1})


@pytest.mark.parametrize(
    "model, apart", [(_two_norms, {"layer_norm": 1}), (_written_after_the_norm, {})]
)
def test_a_sum_that_others_use_too_is_taken_in_once(rewrite, model, apart):
    assert_becomes(rewrite, model, draw(), {"add_layer_norm": 1} | apart)


def test_where_the_weight_is_read_after_the_sum_is_used_the_sum_stays_outside(entries):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(N, dtype=torch.float64))

        def forward(self, x, r):
            h = x + r
            return h * 2, F.layer_norm(h, (N,), self.weight)

    model, (x, r, *_) = Model(), draw()
    assert_becomes(entries["symbolic_trace"], model, [x, r], {"layer_norm": 1})


#: What the operator adds: a reshape moves in front of it.
ADDENDS = {
    "reshaped": ("reshape(x, [-1, 8])", "reshape(r, [-1, 8])"),
    "viewed": ("reshape(x, [-1, 8])", "reshape(r, [-1, 8])"),
    "in place": ("mul(x, 1)", "r"),
    "added to itself": ("x", "x"),
}
#: What the model returns. The operator's results are the norm and the sum.
RESULTS = {
    "before": ["add(NORM[1], sin(NORM[0]))"],
    "sum first": ["mul(NORM[1], 2)", "NORM[0]"],
    "reshaped": ["NORM[1]", "NORM[0]"],
    "added to itself": ["mul(NORM[0], r)"],
}


@every_form
@pytest.mark.parametrize(
    "norm, parameters",
    [(layer_norm, "weight=w, bias=b, eps=1e-05"), (rms_norm, "weight=w, eps=1e-05")],
)
def test_the_op_takes_both_addends_and_readers_of_the_sum_read_the_ops(
    rewrite, form, norm, parameters
):
    rewritten, op = rewrite(residual(FORMS[form], norm), *draw()), _op(norm)
    x, r = ADDENDS.get(form, ("x", "r"))
    assert rewritten.calls == [f"{op}({x}, residual={r}, normalized_shape=[8], {parameters})"]
    results = [result.replace(op, "NORM") for result in rewritten.results]
    assert results == RESULTS.get(form, ["NORM[0]"]) and rewritten.unused == []


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("trained", ["branch", "residual", "parameters", "all", "none"])
@every_norm
def test_the_sum_requires_grad_where_eagers_does(rewrite_dynamo, norm, trained, compiled):
    def model(branch, residual, weight, bias):
        h = branch + residual
        return norm(h, weight, bias), h

    owners = ["branch", "residual", "parameters", "parameters"]
    inputs = [
        tensor.requires_grad_(trained in (owner, "all"))
        for tensor, owner in zip(draw(), owners, strict=True)
    ]
    aot, replaced = compiled_by_aot(model)
    assert_agrees(aot if compiled else rewrite_dynamo(model, *inputs).call, model, inputs)
    assert replaced == [_op(norm)] * compiled


def test_an_exported_norm_of_llama_becomes_one_call_that_rounds_as_it_does(entries):
    rewritten = entries["export"](_llama, *draw(dtype=torch.bfloat16))
    assert rewritten.calls == [
        "add_rms_norm(x, residual=r, normalized_shape=[8], weight=w, eps=1e-05, "
        "rounds_normalized=True)"
    ]
    assert rewritten.results == ["add_rms_norm[0]", "mul(add_rms_norm[1], 2)"]
    assert rewritten.unused == []
