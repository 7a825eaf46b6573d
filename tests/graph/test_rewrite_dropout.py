"""masked_softmax takes in the dropout behind it, with its own random numbers from torch's seed. Any
other dropout on a CPU is an op of its own, which takes in the relu before it."""

import sys

import pytest
import torch
import torch._functorch.config as functorch_config
import torch._inductor.config as inductor_config
import torch.nn.functional as F
from agreement import rewritten_alike
from torch import nn
from torch.utils.checkpoint import checkpoint

import fusedops

P = 0.4
#: The call that draws a seed, in the text of a graph.
SEED = "randint(-9223372036854775808, 9223372036854775807, [])"


def attention(x, keep):
    return F.dropout((x * 0.5).masked_fill(~keep, -1e9).softmax(-1), P)


def plain(x, keep):
    return F.dropout(x.softmax(-1), P, True)


def of_exponentials(x, keep):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return torch.dropout(e / e.sum(-1, keepdim=True), P, train=True)


def of_float32(x, keep):
    return F.dropout(F.softmax(x * 0.5, dim=-1, dtype=torch.float64).to(x.dtype), P)


def feed_forward(x, keep):
    return F.dropout(F.relu(x), P)


def alone(x, keep):
    return F.dropout(x, P)


OPS = dict.fromkeys([attention, plain, of_exponentials, of_float32], "masked_softmax_dropout")
OPS |= dict.fromkeys([feed_forward, alone], "dropout")
FORMS = list(OPS)
every_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)


def _without_dropout(form, x, keep):
    if OPS[form] == "dropout":
        return x.relu() if form is feed_forward else x
    scores = x if form in (plain, of_exponentials) else x * 0.5
    return (scores.masked_fill(~keep, -1e9) if form is attention else scores).softmax(-1)


@pytest.fixture
def inputs():
    x = torch.randn(8, 16, 64, dtype=torch.float64)
    keep = torch.rand(8, 1, 64) > 0.2
    return x, keep


def _check_gradient(output, x, probabilities):
    """The gradient of `x` is that of the dropout that `output` shows."""
    multiplier = (output.detach() != 0).double() / (1 - P)
    torch.testing.assert_close(output, probabilities * multiplier, rtol=1e-12, atol=0)
    upstream = torch.randn_like(output)
    (ours,) = torch.autograd.grad(output, x, upstream)
    (expected,) = torch.autograd.grad(probabilities * multiplier, x, upstream)
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-14)


@every_form
def test_a_share_p_is_zero_and_the_rest_is_scaled(rewrite, inputs, form):
    x, keep = inputs
    rewritten = rewrite(form, x, keep)
    assert rewritten.replaced == {OPS[form]: 1} and rewritten.reasons == []
    assert [result.partition("[")[0] for result in rewritten.results] == [OPS[form]]
    output, probabilities = rewritten.call(x, keep), _without_dropout(form, x, keep)
    survivors = output != 0
    scaled = probabilities[survivors] / (1 - P)
    torch.testing.assert_close(output[survivors], scaled, rtol=1e-12, atol=0)
    visible = probabilities != 0  # 4000 draws or more: the standard deviation is under 0.008
    assert abs(survivors[visible].double().mean() - (1 - P)) < 0.03


@every_form
def test_the_gradient_is_that_of_the_mask_in_the_output(rewrite_dynamo, inputs, form):
    x, keep = inputs[0].requires_grad_(), inputs[1]
    rewritten = rewrite_dynamo(form, x, keep)
    _check_gradient(rewritten.call(x, keep), x, _without_dropout(form, x, keep))


def test_the_backward_pass_is_our_op_too(backward_ops, inputs):
    x, keep = inputs[0].requires_grad_(), inputs[1]
    assert backward_ops(attention, x, keep) == {"masked_softmax_dropout_backward": 1}
    assert backward_ops(alone, x, keep) == {"dropout": 1}
    assert backward_ops(feed_forward, x, keep) == {}  # the result tells what is dropped


def test_a_seed_repeats_the_dropout_and_every_call_differs(rewrite, inputs):
    rewritten = rewrite(attention, *inputs)
    torch.manual_seed(1)
    first, second = rewritten.call(*inputs), rewritten.call(*inputs)
    torch.manual_seed(1)
    assert torch.equal(first, rewritten.call(*inputs)) and not torch.equal(first, second)


def test_compiled_it_has_the_same_properties(inputs, ops_run):
    x, keep = inputs[0].requires_grad_(), inputs[1]
    compiled = torch.compile(attention, backend="fusedops")
    outputs = []
    counts = ops_run(lambda: outputs.append(compiled(x, keep)))
    assert counts["masked_softmax_dropout"] >= 1
    outputs.append(compiled(x, keep))
    assert not torch.equal(*outputs)
    _check_gradient(outputs[0], x, _without_dropout(attention, x, keep))


@pytest.mark.parametrize("form", [attention, feed_forward, alone])
def test_a_checkpoint_drops_the_same_again(rewrite_dynamo, inputs, form):
    x, keep = inputs[0].requires_grad_(), inputs[1]

    def model(x, keep):
        return checkpoint(lambda x: form(x.sin(), keep), x, use_reentrant=False)

    assert rewrite_dynamo(model, x, keep).replaced == {OPS[form]: 1}
    torch._dynamo.reset()
    output = torch.compile(model, backend="fusedops")(x, keep)
    _check_gradient(output, x, _without_dropout(form, x.sin(), keep))


def dropout_in_norm(x, branch):
    sum = x + F.dropout(branch, P)
    return F.gelu(F.layer_norm(sum, sum.shape[-1:])).sin(), sum


def dropout_after_norm(x, branch):
    kept = F.dropout(branch, P)
    return F.layer_norm(x + kept.sin(), x.shape[-1:]), kept


def dropout_of_relu(x, branch):
    kept = F.dropout(F.relu(branch), P)
    return kept @ x, kept.sin()


@pytest.mark.parametrize("form", [dropout_in_norm, dropout_after_norm, dropout_of_relu])
def test_a_memory_budget_does_not_draw_again(form):
    x, branch = torch.zeros(64, 64), torch.randn(64, 64, requires_grad=True)
    compiled = torch.compile(lambda *inputs: form(*inputs), backend="fusedops")
    with functorch_config.patch(activation_memory_budget=0.4):
        _, dropped = compiled(x, branch)
        (gradient,) = torch.autograd.grad(dropped.sum(), branch)
    assert torch.equal(gradient != 0, dropped != 0)


def test_a_model_exported_in_training_drops_out(entries, inputs):
    model, x = nn.Sequential(nn.Softmax(-1), nn.Dropout(P)), inputs[0].requires_grad_()
    rewritten = entries["export"](model, x)
    assert rewritten.replaced == {"masked_softmax_dropout": 1}
    _check_gradient(rewritten.call(x), x, x.softmax(-1))


def test_a_traced_dropout_module_keeps_following_train_and_eval(inputs):
    x = inputs[0]
    model = nn.Sequential(nn.Softmax(-1), nn.Dropout(P))
    graph_module = fusedops.rewrite(torch.fx.symbolic_trace(model), x)
    torch.testing.assert_close(graph_module.eval()(x), x.softmax(-1), rtol=1e-12, atol=0)
    assert (graph_module.train()(x) == 0).any()


def _of_what_is_used_too(x):
    y = x.softmax(-1)
    return F.dropout(y, P) + y


def _of_relu_used_too(x):
    y = F.relu(x.softmax(-1))
    return F.dropout(y, P) + y


APART = {
    "in inference": lambda x: F.dropout(x.softmax(-1), P, training=False),
    "of nothing": lambda x: F.dropout(x.softmax(-1), 0.0),
    "of what is used too": _of_what_is_used_too,
    "in place": lambda x: F.dropout(x.softmax(-1), P, True, True),
    "over another dim": lambda x: F.dropout(x.softmax(1), P),
    "of whole channels": lambda x: F.dropout1d(x.softmax(-1), P),
    "of a logarithm": lambda x: F.dropout(x.log_softmax(-1), P),
    "of a relu that is used too": _of_relu_used_too,
}


@pytest.mark.parametrize("form", APART.values(), ids=APART)
def test_a_dropout_that_is_not_taken_in_is_eagers_to_the_bit(rewrite, inputs, form):
    with fusedops.config.patch(fuse="always,dropout=never"):
        rewritten = rewritten_alike(rewrite, form, inputs[:1], rtol=1e-12, atol=0)
    assert sum(rewritten.replaced.values()) == 1
    assert "masked_softmax_dropout" not in rewritten.replaced


#: What a dropout reads -> the form, and the call's arguments other than p and the seed.
OPERANDS = {
    "a relu": (lambda x: F.dropout(x.sin().relu(), P), "sin(x)", ", relu=True)"),
    "a relu in place": (lambda x: F.dropout(x.sin().relu_(), P), "relu_(sin(x))", ")"),
    "a relu that is used too": (_of_relu_used_too, "relu(softmax)", ")"),
}


@pytest.mark.parametrize("form, input, end", OPERANDS.values(), ids=OPERANDS)
def test_a_relu_is_taken_in_if_only_the_dropout_reads_it(rewrite_dynamo, inputs, form, input, end):
    call = rewrite_dynamo(form, inputs[0]).calls[-1]
    assert call == f"dropout({input}, p=0.4, seed={SEED}{end}"


def test_a_row_of_few_columns_is_left_to_inductor(rewrite):
    rewritten = rewrite(lambda x: F.dropout(x, P), torch.randn(64, 3))
    assert rewritten.reasons == ["its rows have fewer than 4 columns"]


@every_form
def test_under_fallback_random_it_is_eagers_to_the_bit(rewrite_dynamo, inputs, form):
    with inductor_config.patch(fallback_random=True):
        rewritten = rewritten_alike(rewrite_dynamo, form, inputs, rtol=1e-12, atol=0)
    assert OPS[form] not in rewritten.replaced
    (why,) = [site.reason for site in rewritten.report.sites if site.op == "dropout"]
    assert why == "Inductor's setting fallback_random asks for eager's random numbers"


@pytest.mark.parametrize("form", [plain, feed_forward, alone])
def test_everything_may_be_dropped(rewrite_dynamo, inputs, form, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "P", 1.0)
    rewritten = rewrite_dynamo(lambda x: form(x, None), inputs[0])
    assert rewritten.replaced == {OPS[form]: 1}
    assert not rewritten.call(inputs[0]).any()


@pytest.mark.parametrize("form", [plain, feed_forward, alone])
def test_one_graph_serves_all_batch_sizes(rewrite_dynamo, form):
    rewritten = rewrite_dynamo(lambda x: form(x, None), torch.randn(4, 6, 6), dynamic=True)
    for batch in (2, 3, 5):
        assert (rewritten.call(torch.randn(batch, 6, 6)) == 0).any()
    assert rewritten.replaced == {OPS[form]: 1} and len(rewritten.graphs) == 1


def test_the_graph_after_the_rewrite(rewrite, inputs):
    rewritten = rewrite(attention, *inputs)
    (call,) = rewritten.calls
    assert call == (
        "masked_softmax_dropout(x, mask=keep, scale=0.5, mask_value=-1000000000.0, p=0.4, "
        f"seed={SEED})"
    )
    assert rewritten.results == ["masked_softmax_dropout[0]"] and rewritten.unused == []
