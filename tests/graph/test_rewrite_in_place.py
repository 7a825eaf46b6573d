"""Writes in place are seen whatever makes them, and cost no gradient that eager has."""

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_agrees, assert_becomes, compiled_by_aot, rewritten_alike
from decomposed import EPS, layer_norm_decomposed, softmax_decomposed
from functorch.compile import min_cut_rematerialization_partition
from torch._inductor.fx_passes.joint_graph import joint_graph_passes


def _quotient(x, y):
    p = softmax_decomposed(x)
    p.mul_(0.5)
    return p * y


def _view_of_a_quotient(x, y):
    p = softmax_decomposed(x)
    v = p.transpose(0, 1)
    v.detach()[0].zero_()
    return p + v * y


def _cast_back(x, y):
    p = x.to(torch.float32).softmax(-1).to(torch.float64)
    p += y
    return p


def _norm_of_what_is_written(h, y):
    n = layer_norm_decomposed(h, y[0])
    h.mul_(0.5)
    return n + h


def _input_of_a_norm_decomposed(x, y):
    return _norm_of_what_is_written(x * 1, y)


def _sum_before_a_norm_decomposed(x, y):
    return _norm_of_what_is_written(x + y, y)


def _mask(x, y):
    keep = y > 0
    p = (x * 2).masked_fill(~keep, -30.0).softmax(-1)
    keep.fill_(False)
    return p + y * keep


def _stack(x, y):
    p = torch.stack([x.softmax(-1), y.softmax(-1)])
    p.mul_(2)
    return p


def _list_of_tensors(x, y):
    p = softmax_decomposed(x)
    torch._foreach_mul_([p], 3.0)
    return p * y


WRITTEN_LATER = [
    _quotient,
    _view_of_a_quotient,
    _input_of_a_norm_decomposed,
    _sum_before_a_norm_decomposed,
    _mask,
    _stack,
    _list_of_tensors,
]


def _inputs():
    return [torch.randn(8, 8, dtype=torch.float64, requires_grad=True) for _ in range(2)]


every_model = pytest.mark.parametrize("model", WRITTEN_LATER, ids=lambda model: model.__name__)


@every_model
def test_a_tensor_that_only_our_op_keeps_may_be_written_later(rewrite, model):
    assert len(rewritten_alike(rewrite, model, _inputs()).report.replaced) == 1


@every_model
def test_a_tensor_that_only_our_op_keeps_may_be_written_later_in_compiled_code(model):
    assert_agrees(compiled_by_aot(model)[0], model, _inputs())


def test_a_tensor_that_only_our_op_keeps_may_be_written_by_the_caller(rewrite_dynamo):
    x = torch.randn(8, 8, dtype=torch.float64, requires_grad=True)
    rewritten = rewrite_dynamo(softmax_decomposed, x)
    assert rewritten.replaced == {"softmax": 1}

    def halved(function):
        return lambda x: function(x).mul_(0.5)

    assert_agrees(halved(rewritten.call), halved(softmax_decomposed), [x])


#: Calls that write into their second argument, which only their documentation says.
UNSAID = {
    "batch_norm": lambda x, s: F.batch_norm(x, s[0], s[1], training=True),
    "batch_norm of ATen": lambda x, s: torch.batch_norm(
        x, None, None, s[0], s[1], True, 0.1, EPS, False
    ),
    "instance_norm": lambda x, s: F.instance_norm(x[..., None] * torch.arange(3), s[0], s[1]),
    "embedding": lambda x, s: F.embedding(torch.tensor([0, 1]), s, max_norm=0.5),
    "embedding_bag": lambda x, s: F.embedding_bag(
        torch.tensor([0, 1]), s, torch.tensor([0]), max_norm=0.5
    ),
}


@pytest.mark.parametrize("write", UNSAID.values(), ids=UNSAID)
def test_what_is_read_before_such_a_write_keeps_its_value(rewrite, write):
    def model(x, s):
        scaled = s * 2
        written = write(x, s)
        return scaled.softmax(-1), written

    inputs = [torch.randn(4, 8, dtype=torch.float64), torch.rand(2, 8, dtype=torch.float64)]
    assert rewritten_alike(rewrite, model, inputs).report.replaced


def test_a_module_may_write_into_its_parameter(entries):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(4, 8, max_norm=0.5).requires_grad_(False)

        def forward(self, i):
            scaled = self.embedding.weight * 2
            written = self.embedding(i)
            return scaled.softmax(-1), written

    torch.manual_seed(0)
    model = Model()
    before = model.embedding.weight.clone()
    rewritten = entries["symbolic_trace"](model, torch.arange(4))
    model.embedding.weight.copy_(before)
    assert rewritten.report.replaced
    torch.testing.assert_close(rewritten.call(torch.arange(4))[0], (before * 2).softmax(-1))


def _masked_by_lengths(x, lengths):
    hidden = torch.arange(8) >= lengths[:, None]
    return x.masked_fill(hidden, -torch.inf).softmax(-1)


def _masked_by_later_lengths(x, lengths):
    hidden = torch.arange(8) > lengths[:, None] + 1
    return (x * 0.5).masked_fill(hidden, -torch.inf).softmax(-1)


def _masked_by_repeated_flags(x, flags):
    keep = flags.expand(4, 1, 8).transpose(0, 1)
    return x[None].masked_fill(~keep, -torch.inf).softmax(-1)[0]


OF_CALLERS = {
    _masked_by_lengths: torch.tensor([2, 8, 5, 3]),
    _masked_by_later_lengths: torch.tensor([2, 8, 5, 3]),
    _masked_by_repeated_flags: torch.tensor([True, False] * 4),
}


@pytest.mark.parametrize("model", OF_CALLERS, ids=lambda model: model.__name__)
def test_what_a_mask_is_computed_from_may_be_written_before_the_backward_pass(model):
    """In eager mode autograd keeps the mask that the model computes. Inductor decides what to keep
    after it has removed clones, so that the test does both."""
    x = torch.randn(4, 8, dtype=torch.float64, requires_grad=True)

    def partition(joint_graph, inputs, **options):
        joint_graph_passes(joint_graph)
        return min_cut_rematerialization_partition(joint_graph, inputs, **options)

    def gradient(function):
        given = OF_CALLERS[model].clone()
        probabilities = function(x, given)
        given.zero_()
        return torch.autograd.grad(probabilities[:, 0].sin().sum(), x)

    ours, replaced = compiled_by_aot(model, partition_fn=partition)
    torch.testing.assert_close(gradient(ours), gradient(model), rtol=1e-12, atol=1e-14)
    assert replaced == ["masked_softmax"]


#: Results for the caller, and whether they are of training.
NOT_COPIED = [
    (lambda x: softmax_decomposed(x, -1), False),
    (lambda x: (x * 0.5 + x).softmax(-1), False),
    (lambda x: (x * 0.5 + x).softmax(-1), True),  # which eager's softmax keeps too
    (lambda x: x.softmax(-1).mul_(2), False),
]


@pytest.mark.parametrize(("model", "is_trained"), NOT_COPIED)
def test_a_result_that_nobody_else_may_write_is_not_copied(rewrite, model, is_trained):
    rewritten = rewrite(model, torch.randn(4, 8, requires_grad=is_trained))
    assert len(rewritten.report.replaced) == 1 and "clone" not in rewritten.code


def test_a_result_cast_back_may_be_written_later(rewrite_dynamo):
    rewritten_alike(rewrite_dynamo, _cast_back, _inputs(), rtol=1e-5, atol=1e-6)


def test_the_16_bit_input_of_rms_norm_may_be_written_later(rewrite_dynamo):
    def model(x):
        h = x.bfloat16()
        n = F.rms_norm(h, (8,))
        h.mul_(2)
        return n + h

    x = torch.randn(4, 8, requires_grad=True)
    rewritten = rewritten_alike(rewrite_dynamo, model, [x], rtol=2e-2, atol=2e-2)
    assert rewritten.replaced == {"rms_norm": 1}


# --- chains written as statements -----------------------------------------------------------------


def _softmax_by_statements(x, weight):
    t = x * 0.5
    t -= t.max(-1, keepdim=True)[0]
    t.exp_()
    t /= t.sum(-1, keepdim=True)
    return t


def _softmax_by_chained_statements(x, weight):
    t = x * 0.5
    t.sub_(t.amax(-1, True)).exp_()
    t.div_(t.sum(-1, True))
    return t


def _fill_before_a_softmax(x, weight):
    t = x * 0.5
    t.masked_fill_(x.detach() > 1, -torch.inf)
    return t.softmax(-1)


def _fill_by_a_mask_in_the_shape_of_the_scores(x, weight):
    t = x @ x.mT
    t.masked_fill_((weight > 1).expand_as(t), -torch.inf)
    return t.softmax(-1)


def _causal_fill_by_ones_like_the_scores(x, weight):
    t = x @ x.mT
    t.masked_fill_(torch.ones_like(t).tril() == 0, -1e9)
    return t.softmax(-1)


def _parameters_after_a_norm(x, weight):
    h = (x - x.mean(-1, True)) * torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + EPS)
    h.mul_(weight)
    h.add_(weight)
    return h


def _scale_of_rows(x, weight):
    h = x * 1.0
    h.mul_(torch.rsqrt(h.detach().pow(2).mean(-1, keepdim=True) + EPS))
    return h * weight


STATEMENTS = {
    _softmax_by_statements: "masked_softmax",
    _softmax_by_chained_statements: "masked_softmax",
    _fill_before_a_softmax: "masked_softmax",
    _fill_by_a_mask_in_the_shape_of_the_scores: "masked_softmax",
    _causal_fill_by_ones_like_the_scores: "masked_softmax",
    _parameters_after_a_norm: "layer_norm",
}


@pytest.mark.parametrize("model", STATEMENTS, ids=lambda model: model.__name__)
def test_a_write_whose_result_nothing_names_is_part_of_the_chain(rewrite, model):
    inputs = [_inputs()[0].detach(), torch.randn(8, dtype=torch.float64)]
    assert_becomes(rewrite, model, inputs, {STATEMENTS[model]: 1})


@pytest.mark.parametrize("model", [*STATEMENTS, _scale_of_rows], ids=lambda model: model.__name__)
def test_statements_have_the_gradients_of_eager_or_more(rewrite_dynamo, model):
    inputs = [_inputs()[0], torch.randn(8, dtype=torch.float64, requires_grad=True)]
    rewritten_alike(rewrite_dynamo, model, inputs)


def test_statements_that_write_into_an_input_still_write(rewrite_dynamo):
    def model(x):
        x.sub_(x.amax(-1, keepdim=True))
        x.exp_()
        x.div_(x.sum(-1, keepdim=True))
        return x * 2

    reason = "memory that it reads is written in place before its last call"
    assert_becomes(rewrite_dynamo, model, [torch.randn(4, 8, dtype=torch.float64)], {}, [reason])


def test_what_is_written_before_the_chain_reads_it_is_fused(rewrite):
    def model(x, y):
        residual = x.to(torch.float64)  # the chain begins here, and does nothing
        branch = y * 2
        branch.add_(1.0)
        return F.layer_norm(residual + branch, (8,))

    assert_becomes(rewrite, model, _inputs(), {"add_layer_norm": 1})


def test_a_call_before_a_write_reads_what_was_there(rewrite):
    def model(x, weight):
        t = x * 0.5
        before = t + 1
        t.exp_()
        return before, t * weight, t

    rewritten_alike(rewrite, model, [tensor.detach() for tensor in _inputs()])


def _by_assignment(h):
    h[:] = 3.0


def _inside_a_block(h):
    with torch.no_grad():
        h.mul_(3.0)


WRITES = {
    "by the name of an op": lambda h: torch.ops.aten.mul_(h, 3.0),
    "in a list": lambda h: torch._foreach_mul_([h], 3.0),
    "as one of several outputs": lambda h: torch.max(
        torch.ones(8, 8, dtype=h.dtype), -1, out=(h, torch.empty(8, dtype=torch.long))
    ),
    "by assignment": _by_assignment,
    "inside a block": _inside_a_block,
}


@pytest.mark.parametrize("entry", ["dynamo", "export"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_between_the_parts_of_a_chain_is_seen(entries, entry, write):
    def model(x):
        h = x.detach().amax(-1)
        z = h * 0.5
        write(h)
        return z.softmax(-1) + h

    x = torch.randn(8, 8, dtype=torch.float64)
    assert_becomes(entries[entry], model, [x], {"softmax": 1})


@pytest.mark.parametrize(("p", "training"), [(0.5, False), (0.0, True)])
def test_a_write_into_a_dropout_that_drops_nothing_reaches_its_input(rewrite, p, training):
    def model(x):
        h = F.dropout(x, p, training)
        h.mul_(0.5)
        return (h * 0.5).softmax(-1)

    x = torch.randn(8, 8, dtype=torch.float64)
    rewritten_alike(rewrite, model, [x])


#: What is read and what is written, which shares its memory, and the number of softmaxes.
SHARED = {
    "a view of our op's result": (softmax_decomposed, lambda y: y.view(-1), 2),
    "a decomposed call": (lambda x: F.softmin(x, -1), lambda y: y, 2),
    "a view of a decomposed call": (lambda x: F.softmin(x, -1), lambda y: y.view(-1), 2),
    "a view of a dropout that drops nothing": (
        lambda x: x * 1,
        lambda y: F.dropout(y, 0.5, training=False).view(-1),
        1,
    ),
}


@pytest.mark.parametrize("read, written, softmaxes", SHARED.values(), ids=SHARED)
def test_a_write_into_shared_memory_is_seen(rewrite, read, written, softmaxes):
    def model(x):
        y = read(x)
        v = written(y)
        z = y * 0.5
        v.fill_(1.0)
        return z.softmax(-1) + y

    assert_becomes(rewrite, model, _inputs()[:1], {"softmax": softmaxes})


def _fill(x):
    number = torch.tensor(-1e9, dtype=x.dtype)
    number.view(1).fill_(1.0)
    return x.masked_fill(x > 0.25, number).softmax(-1)


def _factor(x):
    number = torch.full((), 0.25, dtype=x.dtype)
    number[None].add_(0.5)
    return (x * number).softmax(-1)


@pytest.mark.parametrize("model", [_fill, _factor])
def test_a_tensor_of_a_number_that_is_written_through_a_view_is_no_number(rewrite_dynamo, model):
    rewritten_alike(rewrite_dynamo, model, [torch.rand(8, 8, dtype=torch.float64) * 0.5])
