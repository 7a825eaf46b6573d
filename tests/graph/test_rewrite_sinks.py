"""A logit beside the scores of each row, whose probability is dropped, becomes a sink."""

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_one_graph, rewritten_alike

HEADS, LENGTH, FEATURES = 3, 6, 4


def _gpt_oss(scores, sinks):
    sinks = sinks.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[-2], -1)
    combined = torch.cat([scores, sinks], dim=-1)
    combined = combined - combined.max(dim=-1, keepdim=True).values
    probabilities = F.softmax(combined, dim=-1, dtype=combined.dtype)[..., :-1]
    return probabilities.to(scores.dtype)  # export leaves an assertion beside the cast


def _joined(scores, sinks):
    column = sinks.view(1, HEADS, 1, 1).expand(scores.shape[0], HEADS, scores.shape[-2], 1)
    return torch.softmax(torch.cat((scores, column), -1), -1)[:, :, :, :-1]


def _zeros_joined(scores, sinks):
    zeros = torch.zeros(*scores.shape[:-1], 1, dtype=scores.dtype)
    return torch.cat([scores, zeros], -1).softmax(-1)[..., :-1]


def _padded(scores, sinks):
    return F.pad(scores, (0, 1)).softmax(-1)[..., :-1]


FORMS = {
    "gpt oss": _gpt_oss,
    "joined": _joined,
    "zeros joined": _zeros_joined,
    "padded": _padded,
    "sliced": lambda scores, sinks: torch.ops.aten.slice(
        F.pad(scores, (0, 1)).softmax(-1), -1, 0, -1
    ),
}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def _attention(form):
    def attention(q, k, v, sinks):
        visible = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
        scores = torch.matmul(q, k.transpose(-1, -2)) * 0.5
        return torch.matmul(form(scores.masked_fill(~visible, -1e30), sinks), v)

    return attention


def _inputs(batch=2, length=LENGTH):
    shape = (batch, HEADS, length, FEATURES)
    tensors = [torch.randn(shape, dtype=torch.float64) for _ in range(3)]
    return [t.requires_grad_() for t in (*tensors, torch.randn(HEADS, dtype=torch.float64))]


@every_form
@pytest.mark.parametrize("entry", ["dynamo", "export"])
def test_a_sink_is_an_argument_of_the_one_call(entries, entry, form):
    inputs = _inputs()
    rewritten = rewritten_alike(entries[entry], _attention(form), inputs)
    (call,) = (call for call in rewritten.calls if "masked_softmax" in call)
    assert "sinks=" in call and "causal=True" in call and "mask=" not in call


@pytest.mark.parametrize("form", [_zeros_joined, _padded])
def test_a_sink_of_zeros_is_a_number(rewrite_dynamo, form):
    rewritten = rewrite_dynamo(_attention(form), *_inputs())
    assert "sinks=scalar_tensor(0.0)" in rewritten.calls[0]


@every_form
def test_a_sink_of_symbolic_lengths_holds_for_every_length(rewrite_dynamo, form):
    rewritten = rewrite_dynamo(_attention(form), *_inputs(), dynamic=True)
    assert "sinks=" in rewritten.calls[0]
    assert_one_graph(rewritten, _attention(form), [_inputs(3, 9)])


def test_sinks_without_a_gradient_need_no_operator_of_their_own(rewrite_dynamo):
    inputs = [tensor.detach() for tensor in _inputs()]
    rewritten = rewritten_alike(rewrite_dynamo, _attention(_gpt_oss), inputs)
    assert rewritten.replaced == {"masked_softmax": 1}


def test_dropout_behind_a_sink_is_fused_too(rewrite_dynamo):
    def attention(q, k, v, sinks):
        return F.dropout(_gpt_oss(q @ k.mT, sinks), 0.5) @ v

    q, k, _, sinks = _inputs(length=64)
    v = torch.ones(2, HEADS, 64, 1, dtype=torch.float64)
    rewritten = rewrite_dynamo(attention, q, k, v, sinks)
    (call,) = rewritten.calls
    assert call.startswith("masked_softmax_sinks") and "p=0.5" in call
    kept = _gpt_oss(q @ k.mT, sinks) @ v  # the expectation of the rows' sums
    means = torch.stack([rewritten.call(q, k, v, sinks) for _ in range(64)]).mean()
    torch.testing.assert_close(means, kept.mean(), rtol=0.05, atol=0)


def _beside(make):
    """Attention with one more column of scores, which `make` makes of their shape and dtype."""

    def attention(q, k, v, sinks):
        scores = q @ k.mT
        column = make((*scores.shape[:-1], 1), scores.dtype)
        return torch.cat([scores, column], -1).softmax(-1)[..., :-1] @ v

    return attention


def _written_in_part(shape, dtype):
    column = torch.zeros(shape, dtype=dtype)
    column[:, 0] = 5.0
    return column


def _written_through_a_view(shape, dtype):
    column = torch.full(shape, 2.0, dtype=dtype)
    column.view(-1)[3:].mul_(2.0)
    return column


def _written_afterwards(q, k, v, sinks):
    scores = q @ k.mT
    column = torch.zeros(*scores.shape[:-1], 1, dtype=scores.dtype)
    joined = torch.cat([scores, column], -1)
    column += 5.0
    return joined.softmax(-1)[..., :-1] @ v


WRITTEN = [_beside(_written_in_part), _beside(_written_through_a_view), _written_afterwards]


@pytest.mark.parametrize("attention", WRITTEN)
def test_a_column_that_is_written_is_no_number(rewrite_dynamo, attention):
    rewritten_alike(rewrite_dynamo, attention, [tensor.detach() for tensor in _inputs()])


FILLED = {
    "truncated": _beside(lambda shape, dtype: torch.full(shape, 2.7, dtype=torch.int64)),
    "in float32": _beside(lambda shape, dtype: torch.full(shape, 0.1, dtype=torch.float32)),
    "in float64": _beside(lambda shape, dtype: torch.full(shape, 0.1, dtype=dtype)),
    "padded": lambda q, k, v, sinks: F.pad(q @ k.mT, (0, 1), value=0.1).softmax(-1)[..., :-1] @ v,
}


@pytest.mark.parametrize("attention", FILLED.values(), ids=FILLED)
def test_a_number_has_the_precision_of_its_column(rewrite_dynamo, attention):
    inputs = [tensor.detach() for tensor in _inputs()]
    rewritten = rewritten_alike(rewrite_dynamo, attention, inputs, rtol=1e-12, atol=1e-12)
    assert "sinks=scalar_tensor(" in rewritten.calls[0]


def _with_the_sinks_probability(scores, sinks):
    probabilities = torch.cat([scores, sinks.view(1, HEADS, 1, 1).expand(2, -1, LENGTH, 1)], -1)
    probabilities = probabilities.softmax(-1)
    return probabilities[..., :-1] @ scores, probabilities[..., -1]


def _without_the_last_batch(scores, sinks):
    padded = F.pad(scores, (0, 1)).softmax(-1)
    return torch.ops.aten.slice(padded, 0, 0, -1) @ F.pad(scores, (0, 0, 0, 1))[:-1]


def _with_a_sink_in_front(scores, sinks):
    column = sinks.view(1, HEADS, 1, 1).expand(2, HEADS, LENGTH, 1)
    return torch.cat((column, scores), -1).softmax(-1)[..., :-1] @ scores


OTHERS = {
    "returned": lambda scores, sinks: _gpt_oss(scores, sinks),
    "with the sinks probability": _with_the_sinks_probability,
    "without the last batch": _without_the_last_batch,
    "without the first column": lambda scores, sinks: (
        F.pad(scores, (0, 1)).softmax(-1)[..., 1:] @ scores
    ),
    "beside two columns": lambda scores, sinks: (
        F.pad(scores, (0, 2)).softmax(-1)[..., :-1] @ F.pad(scores, (0, 0, 0, 1))
    ),
    "with a sink in front": _with_a_sink_in_front,
    "with an index of nothing": lambda scores, sinks: F.pad(scores, (0, 1)).softmax(-1)[()],
    "padded in front": lambda scores, sinks: F.pad(scores, (1, 0)).softmax(-1)[..., :-1] @ scores,
}


@pytest.mark.parametrize("form", OTHERS.values(), ids=OTHERS)
def test_other_columns_beside_the_scores_are_no_sinks(rewrite_dynamo, form):
    scores = torch.randn(2, HEADS, LENGTH, LENGTH, dtype=torch.float64, requires_grad=True)
    inputs = [scores, torch.randn(HEADS, dtype=torch.float64, requires_grad=True)]
    rewritten = rewritten_alike(rewrite_dynamo, form, inputs)
    assert not any("sinks=" in call for call in rewritten.calls)


def test_a_sink_of_each_head_is_not_read_as_one_of_each_query(rewrite_dynamo):
    """Beside sums without the columns' dimension, [heads, 1] has a number for each head."""

    def model(scores, sinks):
        most = scores.amax(-1)
        e = torch.exp(scores - most.unsqueeze(-1))
        return e / (e.sum(-1) + torch.exp(sinks - most)).unsqueeze(-1)

    sinks = torch.randn(HEADS, 1, dtype=torch.float64, requires_grad=True)
    scores = torch.randn(2, HEADS, HEADS, 5, dtype=torch.float64, requires_grad=True)
    assert rewrite_dynamo(model, scores, sinks).calls == []
