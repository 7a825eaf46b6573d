"""Cross entropies and log-probabilities of a class, however they are written, become one op that
reads the logits once, and whose backward pass writes over logits that nothing else needs."""

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_agrees, assert_becomes, rewritten_alike
from torch import nn

import fusedops

CLASSES = 37


def _logits(h, w):
    return h @ w.T


def _flat(h, w):
    return _logits(h, w).view(-1, CLASSES)


def _shifted(h, w, target):
    shifted = _logits(h, w)[..., :-1, :].contiguous()
    return F.cross_entropy(shifted.view(-1, CLASSES), target[..., 1:].contiguous().view(-1))


def _z_loss(h, w, target):
    logits = _flat(h, w)
    return F.cross_entropy(logits, target.view(-1)) + 0.1 * logits.logsumexp(-1).pow(2).mean()


def _difference(h, w, target):
    logits = _logits(h, w)
    return logits.logsumexp(-1) - logits.gather(-1, target.unsqueeze(-1)).squeeze(-1)


def _written_out(h, w, target):
    logits = _logits(h, w)
    maximum = logits.max(-1, keepdim=True).values
    total = maximum + (logits - maximum).exp().sum(-1, keepdim=True).log()
    return total.squeeze(-1) - logits.gather(-1, target.unsqueeze(-1)).squeeze(-1)


def _written_out_for_shifted(h, w, target):
    logits = _logits(h, w)
    shifted = logits - logits.amax(-1, keepdim=True)
    return shifted.gather(-1, target.unsqueeze(-1)) - shifted.exp().sum(-1, keepdim=True).log()


def _selective_log_softmax(h, w, target):
    logits = _logits(h, w)
    selected = torch.gather(logits, -1, target.unsqueeze(-1)).squeeze(-1)
    return selected - torch.stack([torch.logsumexp(row, dim=-1) for row in logits])


def _categorical(h, w, target):
    policy = torch.distributions.Categorical(logits=_logits(h, w), validate_args=False)
    return policy.log_prob(target)


def _places(target):
    rows, cols = target.shape
    return torch.arange(rows)[:, None], torch.arange(cols)


def _indexed(h, w, target):
    return _logits(h, w).log_softmax(-1)[(*_places(target), target - CLASSES)]


def _indexed_by_range(h, w, target):
    return _flat(h, w).log_softmax(-1)[range(target.numel()), target.view(-1)]


def _difference_of_indexed(h, w, target):
    logits = _logits(h, w)
    return logits.logsumexp(-1) - logits[(*_places(target), target)]


def _soft_capped(h, w, target):
    capped = torch.tanh(_logits(h, w) / 3.0) * 3.0
    return F.cross_entropy(capped.view(-1, CLASSES), target.view(-1))


#: Forms without ignored rows, and the arguments of the op that differ from their defaults.
CALLS = {
    "of rows": (lambda h, w, t: F.cross_entropy(_flat(h, w), t.view(-1)), {}),
    "positional": (
        lambda h, w, t: F.cross_entropy(_flat(h, w), t.view(-1), None, None, 3, None, "mean", 0.0),
        {"ignore_index": 3},
    ),
    "summed": (
        lambda h, w, t: F.cross_entropy(_flat(h, w), t.view(-1), reduction="sum") / 7,
        {},
    ),
    "each": (lambda h, w, t: F.cross_entropy(_flat(h, w), t.view(-1), reduction="none"), {}),
    "smoothed": (
        lambda h, w, t: F.cross_entropy(_flat(h, w), t.view(-1), label_smoothing=0.1),
        {"label_smoothing": 0.1},
    ),
    "weighted": (
        lambda h, w, t: F.cross_entropy(_flat(h, w), t.view(-1), w.detach()[:, 0].abs()),
        {},
    ),
    "classes before rows": (lambda h, w, t: F.cross_entropy(_logits(h, w).transpose(1, 2), t), {}),
    "soft-capped": (_soft_capped, {"scale": 1.0, "softcap": 3.0}),
    "shifted": (_shifted, {}),
    "z-loss": (_z_loss, {"reads_ignored": True}),
    "nll_loss": (
        lambda h, w, t: F.nll_loss(_flat(h, w).log_softmax(-1), t.view(-1), ignore_index=3),
        {"ignore_index": 3},
    ),
}
LOG_PROBABILITIES = {
    "gather": lambda h, w, t: (_logits(h, w) / 0.7).log_softmax(-1).gather(-1, t.unsqueeze(-1)),
    "take_along_dim": lambda h, w, t: (
        _logits(h, w).log_softmax(-1).take_along_dim(t.unsqueeze(-1), -1)
    ),
    "indexed": _indexed,
    "indexed by a range": _indexed_by_range,
    "difference of indexed": _difference_of_indexed,
    "one-hot": lambda h, w, t: (_logits(h, w).log_softmax(-1) * F.one_hot(t, CLASSES)).sum(-1),
    "difference": _difference,
    "written out": _written_out,
    "written out for shifted logits": _written_out_for_shifted,
    "selective_log_softmax": _selective_log_softmax,
    "Categorical": _categorical,
}
FORMS = {name: form for name, (form, _) in CALLS.items()} | LOG_PROBABILITIES


def _inputs(dtype=torch.float64, size=(2, 5)):
    torch.manual_seed(0)
    h = torch.randn(*size, 8, dtype=dtype, requires_grad=True)
    w = torch.randn(CLASSES, 8, dtype=dtype, requires_grad=True)
    return [h, w, torch.randint(CLASSES, size)]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_loss_becomes_one_op_with_eagers_results_and_gradients(rewrite_dynamo, form):
    rewritten = rewritten_alike(rewrite_dynamo, form, _inputs())
    assert rewritten.replaced == {"cross_entropy": 1} and len(rewritten.calls) == 1
    assert "log_softmax" not in rewritten.code and "logsumexp" not in rewritten.code


def test_the_log_probabilities_of_every_pair_are_left(rewrite_dynamo):
    """One row of logits meets the classes of all rows."""

    def model(h, w, target):
        pairs = _logits(h, w).view(-1, 1, CLASSES).log_softmax(-1)
        return (pairs * F.one_hot(target, CLASSES)).sum(-1)

    h, w, _ = _inputs(size=(4,))
    rewritten = rewritten_alike(rewrite_dynamo, model, [h, w, torch.arange(4)])
    assert "cross_entropy" not in rewritten.replaced


@pytest.mark.parametrize("name", CALLS)
def test_the_op_has_the_arguments_of_the_loss(rewrite_dynamo, name):
    form, expected = CALLS[name]
    rewritten = rewrite_dynamo(form, *_inputs())
    (node,) = (n for g in rewritten.graphs for n in g.graph.nodes if "cross_entropy" in str(n))
    defaults = (-100, 0.0, 1.0, None, False)
    names = ("ignore_index", "label_smoothing", "scale", "softcap", "reads_ignored")
    assert node.args[2:] == tuple({**dict(zip(names, defaults, strict=True)), **expected}.values())


@pytest.mark.parametrize("entry", ["export", "symbolic_trace"])
@pytest.mark.parametrize(
    "name", ["of rows", "weighted", "z-loss", "gather", "take_along_dim", "indexed"]
)
def test_the_other_entries_find_it_too(entries, entry, name):
    assert_becomes(entries[entry], FORMS[name], _inputs(), {"cross_entropy": 1})


@pytest.mark.parametrize("module", [nn.CrossEntropyLoss(torch.rand(CLASSES)), nn.NLLLoss()])
def test_the_modules_are_read_by_symbolic_trace(entries, module):
    module = module.double()

    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.log = nn.LogSoftmax(-1) if isinstance(module, nn.NLLLoss) else nn.Identity()
            self.loss = module

        def forward(self, x, target):
            return self.loss(self.log(x), target)

    inputs = [torch.randn(6, CLASSES, dtype=torch.float64), torch.arange(6)]
    assert_becomes(entries["symbolic_trace"], Step(), inputs, {"cross_entropy": 1})


def test_ignored_rows_do_not_count(rewrite_dynamo):
    h, w, target = _inputs()
    target[0, 1:] = -100
    for name in ("of rows", "weighted", "z-loss"):
        rewritten_alike(rewrite_dynamo, FORMS[name], [h, w, target])
    every_row = rewrite_dynamo(FORMS["of rows"], h, w, target)
    assert every_row.call(h, w, target.fill_(-100)).isnan()


def test_the_logits_are_read_before_their_casts_and_the_result_has_eagers_dtype(rewrite_dynamo):
    def hugging_face(h, w, target):
        return F.cross_entropy(_logits(h, w).float().view(-1, CLASSES), target.view(-1))

    h, w, target = _inputs(torch.bfloat16)
    for form, dtype in ((hugging_face, torch.float32), (FORMS["of rows"], torch.bfloat16)):
        rewritten = rewrite_dynamo(form, h, w, target)
        assert rewritten.replaced == {"cross_entropy": 1} and "float()" not in rewritten.code
        assert rewritten.call(h, w, target).dtype == dtype


def test_logits_that_are_read_as_another_dtype_are_no_view(rewrite_dynamo):
    x, target = torch.randn(5, CLASSES, dtype=torch.bfloat16), torch.arange(5)
    rewritten = rewrite_dynamo(lambda x, t: F.cross_entropy(x.view(torch.float16), t), x, target)
    expected = F.cross_entropy(x.view(torch.float16).double(), target)
    assert rewritten.replaced == {"cross_entropy": 1}
    torch.testing.assert_close(rewritten.call(x, target).double(), expected, rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    "name", ["of rows", "each", "shifted", "z-loss", "gather", "indexed", "Categorical"]
)
def test_sizes_may_be_dynamic(rewrite_dynamo, name):
    rewritten = rewrite_dynamo(FORMS[name], *_inputs(), dynamic=True)
    assert rewritten.replaced == {"cross_entropy": 1}
    assert_agrees(rewritten.call, FORMS[name], _inputs(size=(3, 11)))


def test_an_exported_categorical_becomes_the_op_too(entries):
    """ATen's broadcast_tensors takes a list, and [..., :1] is aten.slice."""
    assert_becomes(entries["export"], _categorical, _inputs(), {"cross_entropy": 1})


def test_a_logsumexp_that_export_has_decomposed_is_read():
    class Model(nn.Module):
        def forward(self, h, w, target):
            return _categorical(h, w, target)

    program = torch.export.export(Model(), tuple(_inputs()))
    rewritten = fusedops.export.rewrite(program.run_decompositions())
    code = rewritten.graph_module.code
    assert "fusedops.cross_entropy" in code and "aten.exp.default" not in code
    torch.testing.assert_close(rewritten.module()(*_inputs()), _categorical(*_inputs()))


def test_two_logsumexps_beside_a_loss_have_memory_of_their_own(rewrite_dynamo):
    def model(x, target):
        return F.cross_entropy(x, target), x.logsumexp(-1), x.logsumexp(-1, keepdim=True)

    inputs = [torch.randn(5, CLASSES, dtype=torch.float64), torch.arange(5)]
    assert_becomes(rewrite_dynamo, model, inputs, {"cross_entropy": 1})


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@pytest.mark.parametrize("read", [F.nll_loss, lambda y, t: y.gather(-1, t.unsqueeze(-1))])
def test_a_log_softmax_in_another_precision_keeps_it(rewrite_dynamo, read, dtype):
    x = torch.randn(5, CLASSES) * 1e5  # beyond the range of float16

    def model(x, target):
        return read(torch.log_softmax(x, -1, dtype=dtype), target)

    assert_becomes(rewrite_dynamo, model, [x, torch.arange(5)], {"log_softmax": 1})


UNLIKE = {
    "of two products": lambda x, y, m: (x.logsumexp(-1, True), y),
    "with another gradient": lambda x, y, m: ((x - m).exp().sum(-1, True).log() + m.detach(), x),
    "with a maximum that is not added": lambda x, y, m: ((x - m).exp().sum(-1, True).log(), x),
    "of another row": lambda x, y, m: (m + (x - m).exp().sum(-1, True).log(), x - m),
    "of another dimension": lambda x, y, m: (x.logsumexp(1, True), x),
}


@pytest.mark.parametrize("parts", UNLIKE.values(), ids=UNLIKE)
def test_a_difference_of_other_numbers_is_no_loss(rewrite_dynamo, parts):
    def model(h, w, target):
        x, y = (torch.einsum("bth,ch->btc", h, each) for each in (w, w.flip(0)))
        total, logits = parts(x, y, x.amax(-1, keepdim=True))
        return total - logits.gather(-1, target.unsqueeze(-1))

    assert rewritten_alike(rewrite_dynamo, model, _inputs()).replaced == {}


@pytest.mark.parametrize(
    "shape, reasons",
    [
        ((-1,), []),
        ((2, -1), ["a size of its result is that of no dimension of the logits or target"]),
    ],
)
def test_sizes_that_are_products_need_no_crash(rewrite_dynamo, shape, reasons):
    def model(x, target):
        total, element = x.logsumexp(-1), x.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        return total.view(shape) - element.view(shape)

    inputs = [torch.randn(4, 5, CLASSES, dtype=torch.float64), torch.randint(CLASSES, (4, 5))]
    rewritten = rewritten_alike(rewrite_dynamo, model, inputs, dynamic=True)
    assert rewritten.reasons == reasons


def _written_by_a_view(n):
    rows = torch.arange(n)
    rows[:2].zero_()
    return rows


def _written_by_an_index(n):
    rows = torch.arange(n)
    rows[1] = 0
    return rows


@pytest.mark.parametrize(
    "place",
    [
        lambda n: torch.arange(n).flip(0),
        lambda n: torch.arange(-1, n - 1),
        lambda n: torch.arange(0, 2 * n, 2) // 2,
        lambda n: [*range(n - 1), 0],
        lambda n: torch.arange(n)[:, None],
        lambda n: torch.arange(n).add_(1).remainder_(n),
        _written_by_a_view,
        _written_by_an_index,
    ],
    ids=["reversed", "from -1", "halved", "repeated", "of every pair", "written"]
    + ["written by a view", "written by an index"],
)
def test_an_index_of_other_rows_is_no_loss(rewrite_dynamo, place):
    def model(h, w, target):
        return _logits(h, w).log_softmax(-1)[place(4), target]

    rewritten = rewritten_alike(rewrite_dynamo, model, _inputs(size=(4,)))
    assert "cross_entropy" not in rewritten.replaced


REFUSED = {
    "the target has class probabilities": lambda x, t: F.cross_entropy(x, x.detach().softmax(-1)),
    "label smoothing with class weights": lambda x, t: F.cross_entropy(
        x, t, x.detach()[0], label_smoothing=0.1
    ),
    "the classes of a row are not adjacent in memory": lambda x, t: F.cross_entropy(
        x.view(1, 5, CLASSES), t[:1, None].expand(1, CLASSES)
    ),
    "size_average and reduce are deprecated": lambda x, t: F.cross_entropy(x, t, reduce=False),
    "the logits are written in place after the loss, which the backward pass reads": (
        lambda x, t: (lambda y: (F.cross_entropy(y, t), y.mul_(2)))(x * 3)
    ),
    "unsupported dtype torch.int64": lambda x, t: (
        (y := x.long()).logsumexp(-1) - y.gather(-1, t[:, None]).squeeze(-1)
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_the_op_does_not_compute_is_left_with_its_reason(rewrite_dynamo, reason):
    x = torch.randn(5, CLASSES, requires_grad=True)
    rewritten = rewrite_dynamo(REFUSED[reason], x, torch.arange(5))
    assert rewritten.reasons == [reason]


# --- the memory of the logits ---------------------------------------------------------------------


def _large(requires_grad=True):
    w = torch.randn(1024, 8, requires_grad=requires_grad)
    return torch.randn(64, 8), w, torch.randint(1024, (64,))


def _steps():
    """Training steps, and the ops of their backward passes: with an underscore, over the logits."""
    over, fresh = ["cross_entropy_backward_"], ["_cross_entropy_backward"]

    def with_logits(read):
        def step(h, w, target):
            logits = h @ w.T
            return read(logits, F.cross_entropy(logits, target), target)

        return step

    return {
        "free": (with_logits(lambda x, loss, t: [loss]), over),
        "a view": (
            lambda h, w, t: [F.cross_entropy((h.view(4, 16, 8) @ w.T).view(-1, 1024), t)],
            over,
        ),
        "also counted": (with_logits(lambda x, loss, t: [loss, x.argmax(-1) == t]), over),
        "returned": (with_logits(lambda x, loss, t: [loss, x]), fresh),
        "differentiated": (with_logits(lambda x, loss, t: [loss + x.square().mean()]), fresh),
        "of two losses": (
            with_logits(lambda x, loss, t: [loss + F.cross_entropy(x, t, label_smoothing=0.1)]),
            fresh * 2,
        ),
        "an input": (lambda h, w, t: [F.cross_entropy(w, t.repeat(16) % 8)], fresh),
    }


STEPS = _steps()


@pytest.mark.parametrize("step, expected", STEPS.values(), ids=STEPS)
def test_the_gradient_is_written_over_logits_that_nothing_needs_later(
    compiled_calls, step, expected
):
    h, w, target = _large()
    results, calls = compiled_calls(step, h, w, target)
    assert [name for name, _ in calls if "backward" in name] == expected
    exact = w.detach().double().requires_grad_()
    exact_results = step(h.double(), exact, target)
    torch.testing.assert_close(results, exact_results, check_dtype=False, rtol=1e-5, atol=1e-5)
    exact_results[0].backward()
    torch.testing.assert_close(w.grad, exact.grad.float(), rtol=1e-5, atol=1e-7)


# --- the linear layer before it -------------------------------------------------------------------

LINEAR = {
    "mean": lambda h, w, t: F.cross_entropy(F.linear(h, w).view(-1, CLASSES), t.view(-1)),
    "sum": lambda h, w, t: F.cross_entropy(
        F.linear(h, w, w[:, 0]).view(-1, CLASSES), t.view(-1), reduction="sum", label_smoothing=0.2
    ),
    "weighted": lambda h, w, t: F.cross_entropy(
        F.linear(h, w).view(-1, CLASSES), t.view(-1), w.detach()[:, 0].abs(), ignore_index=3
    ),
    "soft-capped": lambda h, w, t: F.cross_entropy(
        (torch.tanh(F.linear(h, w) / 3.0) * 3.0).view(-1, CLASSES), t.view(-1)
    ),
}


@pytest.fixture
def on_request():
    with fusedops.config.patch(fuse="always,linear_cross_entropy=always"):
        yield


@pytest.mark.parametrize("form", LINEAR.values(), ids=LINEAR)
def test_the_linear_layer_is_no_part_of_the_op_by_default(rewrite_dynamo, form):
    assert rewrite_dynamo(form, *_inputs()).replaced == {"cross_entropy": 1}


@pytest.mark.parametrize("form", LINEAR.values(), ids=LINEAR)
def test_on_request_the_linear_layer_is_part_of_the_op(on_request, rewrite_dynamo, form):
    rewritten = rewritten_alike(rewrite_dynamo, form, _inputs())
    assert rewritten.replaced == {"linear_cross_entropy": 1} and len(rewritten.calls) == 1


def _of_heads(h, w, target):
    logits = F.linear(h.flatten(0, 1), torch.stack([w, 2 * w], 1).flatten(0, 1))
    return F.cross_entropy(logits.view(-1, CLASSES, 2), torch.stack([target.flatten()] * 2, 1))


def _of_heads_by_our_function(h, w, target):
    targets = torch.stack([target.flatten()] * 2, 1)
    return fusedops.linear_cross_entropy(h.flatten(0, 1), torch.stack([w, 2 * w], 1), targets)


def _with_logits(h, w, target):
    logits = F.linear(h, w).view(-1, CLASSES)
    return F.cross_entropy(logits, target.view(-1)), logits


@pytest.mark.parametrize("form", [_of_heads, _of_heads_by_our_function, _with_logits])
def test_logits_of_several_heads_or_that_something_else_reads_are_computed_as_a_whole(
    on_request, rewrite_dynamo, form
):
    rewritten = rewritten_alike(rewrite_dynamo, form, _inputs())
    assert "linear_cross_entropy" not in rewritten.replaced
