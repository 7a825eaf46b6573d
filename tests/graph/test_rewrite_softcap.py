"""Scores that a tanh bounds before the mask and the softmax become an argument of the one call."""

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_one_graph, rewritten_alike
from masked_softmax_forms import INF, arguments_of, draw

CAP = 5.0


def _gemma2(x, keep, bias):
    scores = x * 0.5
    scores = scores / CAP
    scores = torch.tanh(scores)
    scores = scores * CAP
    scores = scores + bias[:, :1]
    return F.softmax(scores, dim=-1, dtype=torch.float32).to(x.dtype)


def _cap_from_the_left(x, keep, bias):
    return (CAP * torch.tanh(x * 0.5 / CAP) + bias[:, :1]).softmax(-1)


def _in_place(x, keep, bias):
    scores = torch.matmul(x, x)
    scores *= 0.5
    scores /= CAP
    scores = scores.tanh_()
    scores *= CAP
    return scores.masked_fill_(~keep, -INF).softmax(-1)


def _causal(x, keep, bias):
    hidden = torch.ones(x.shape[-2:], dtype=torch.bool).triu(1)
    return (CAP * torch.tanh(x * 0.5 / CAP)).masked_fill(hidden, -INF).softmax(-1)


FORMS = {
    "gemma2": _gemma2,
    "cap from the left": _cap_from_the_left,
    "times the reciprocal": lambda x, keep, bias: (
        torch.tanh(x * (0.5 / CAP)).mul(CAP).masked_fill(~keep, -1e30).softmax(-1)
    ),
    "scale after the reciprocal": lambda x, keep, bias: torch.where(
        keep, CAP * F.tanh((1 / CAP) * x * 0.5), -INF
    ).softmax(-1),
    "in place": _in_place,
    "causal": _causal,
    "without a mask": lambda x, keep, bias: (CAP * torch.tanh(x * 0.5 / CAP)).softmax(-1),
    "with a negative cap": lambda x, keep, bias: (-CAP * torch.tanh(x * 0.5 / -CAP) + bias).softmax(
        -1
    ),
    "dropped out in inference": lambda x, keep, bias: F.dropout(
        _cap_from_the_left(x, keep, bias), 0.5, training=False
    ),
}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


@every_form
@pytest.mark.parametrize("entry", ["dynamo", "export"])
def test_the_cap_is_an_argument_of_the_one_call(entries, entry, form):
    dtype = torch.float32 if form is _gemma2 else torch.float64
    rewritten = rewritten_alike(entries[entry], form, draw(2, dtype, requires_grad=True))
    (call,) = (call for call in rewritten.calls if "masked_softmax" in call)
    assert f"softcap={CAP}" in call and "tanh" not in rewritten.code


@every_form
def test_the_scale_is_that_of_the_scores(rewrite_dynamo, form):
    given = arguments_of(rewrite_dynamo(form, *draw(dtype=torch.float32)))
    assert given["softcap"] == CAP
    assert given["scale"] == pytest.approx(0.5, rel=1e-15)


def test_a_cap_of_symbolic_lengths_holds_for_every_length(rewrite_dynamo):
    def causal(x):
        return _causal(x, None, None)

    rewritten = rewrite_dynamo(causal, draw()[0], dynamic=True)
    assert f"softcap={CAP}" in rewritten.calls[0]
    assert_one_graph(rewritten, causal, [[torch.randn(3, 3, 9, 9, dtype=torch.float64)]])


# --- what stays -----------------------------------------------------------------------------------


def _tanh_is_returned(x, keep, bias):
    bounded = torch.tanh(x / CAP)
    return (bounded * CAP).masked_fill(~keep, -INF).softmax(-1), bounded


def _capped_scores_are_used_again(x, keep, bias):
    scores = torch.tanh(x / CAP) * CAP
    return (scores + bias[:, :1]).softmax(-1), scores.sum()


NO_CAPS = {
    "the tanh is returned": _tanh_is_returned,
    "the capped scores are used again": _capped_scores_are_used_again,
    "times a tensor": lambda x, keep, bias: (torch.tanh(x / CAP) * bias).softmax(-1),
    "without a factor": lambda x, keep, bias: torch.tanh(x).masked_fill(~keep, -INF).softmax(-1),
}
BEFORE_THE_CAP = {
    "added": lambda x, keep, bias: (torch.tanh((x + bias) / CAP) * CAP).softmax(-1),
    "masked": lambda x, keep, bias: (torch.tanh(x.masked_fill(~keep, -INF) / CAP) * CAP).softmax(
        -1
    ),
    "capped twice": lambda x, keep, bias: (torch.tanh(torch.tanh(x / 2) * 2 / CAP) * CAP).softmax(
        -1
    ),
}


@pytest.mark.parametrize("form", NO_CAPS.values(), ids=NO_CAPS)
def test_a_tanh_that_is_no_cap_or_is_used_elsewhere_stays(rewrite_dynamo, form):
    rewritten = rewritten_alike(rewrite_dynamo, form, draw())
    assert "softcap=" not in " ".join(rewritten.calls) and "tanh" in rewritten.code


@pytest.mark.parametrize("form", BEFORE_THE_CAP.values(), ids=BEFORE_THE_CAP)
def test_what_comes_before_the_cap_but_for_the_scale_stays_before_the_call(rewrite_dynamo, form):
    rewritten = rewritten_alike(rewrite_dynamo, form, draw())
    assert arguments_of(rewritten)["softcap"] == CAP
    assert arguments_of(rewritten)["mask"] is arguments_of(rewritten)["bias"] is None


def test_an_input_that_is_written_later_is_not_what_the_derivative_sees(rewrite_dynamo):
    """Eager saves the result of tanh, and the op its input."""

    def model(x, keep, bias):
        scores = x * 1.0
        y = (torch.tanh(scores / CAP) * CAP).masked_fill(~keep, -INF).softmax(-1)
        scores.add_(1)
        return y, scores

    rewritten = rewritten_alike(rewrite_dynamo, model, draw(requires_grad=True))
    assert "softcap=" in " ".join(rewritten.calls)
