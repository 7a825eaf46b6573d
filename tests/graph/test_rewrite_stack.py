"""The stack rule: a stack of softmaxes or norms of several tensors of one shape becomes one op."""

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_becomes, assert_one_graph, assert_same_gradients, rewritten_alike
from decomposed import softmax_decomposed
from torch import nn

import fusedops

#: Functions of three tensors.
SOFTMAXES = {
    "softmax": lambda a, b, c: torch.stack([F.softmax(x, -1) for x in (a, b, c)]),
    "softmax, stacked in the middle": lambda a, b, c: torch.stack(
        [a.softmax(1), b.softmax(1), c.softmax(1)], 1
    ),
    "softmax, stacked last": lambda a, b, c: torch.stack(
        [a.softmax(0), b.softmax(0), c.softmax(0)], dim=-1
    ),
    "softmaxes, one of them decomposed": lambda a, b, c: torch.stack(
        [softmax_decomposed(a), b.softmax(-1), c.softmax(1)]
    ),
    "log_softmax": lambda a, b, c: torch.stack([torch.log_softmax(x, 0) for x in (a, b, c)]),
}


class Norms(nn.Module):
    """Independent norms, a loop over modules."""

    def __init__(self, **options):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(8, **options) for _ in range(3))
        for parameter in self.parameters():
            nn.init.normal_(parameter)

    def forward(self, a, b, c):
        return torch.stack([norm(x) for norm, x in zip(self.norms, [a, b, c], strict=True)], 1)


def inputs(count=3, *shape):
    return [torch.randn(shape or (4, 8)) for _ in range(count)]


@pytest.mark.parametrize("spelling", SOFTMAXES)
def test_a_stack_of_softmaxes_is_one_op_at_every_entry(rewrite, spelling):
    op = "stack_log_softmax" if "log" in spelling else "stack_softmax"
    assert_becomes(rewrite, SOFTMAXES[spelling], inputs(), {op: 1})


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"elementwise_affine": False}])
def test_a_loop_over_norms_is_one_op_at_every_entry(rewrite, options):
    model, given = Norms(**options), inputs()
    assert_becomes(rewrite, model, given, {"stack_layer_norm": 1}, rtol=1e-5, atol=1e-6)


#: By its one call: a model.
CALLS = {
    "stack_softmax([a, b], dim=1, stack_dim=0)": lambda a, b: torch.stack(
        [a.softmax(-1), b.softmax(-1)]
    ),
    "stack_layer_norm([a, b], normalized_shape=[8], weights=[c, c], biases=[], eps=1e-05, "
    "stack_dim=-1)": lambda a, b, c: torch.stack(
        [F.layer_norm(a, (8,), c), F.layer_norm(b, (8,), c)], -1
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_the_graph_has_one_call(rewrite_dynamo, call):
    is_norm = "norm" in call
    rewritten = rewrite_dynamo(CALLS[call], *inputs(2), *inputs(is_norm, 8))
    assert rewritten.calls == [call] and rewritten.unused == []
    assert rewritten.results == ["stack_layer_norm[0]" if is_norm else "stack_softmax"]


@pytest.mark.parametrize("model", [SOFTMAXES["softmax"], Norms()], ids=["softmax", "norm"])
def test_training_runs_one_op_each_way(backward_ops, model):
    given = [x.requires_grad_() for x in inputs()]
    is_norm = isinstance(model, Norms)
    op = "stack_layer_norm_backward" if is_norm else "softmax_backward"
    assert backward_ops(model, *given) == {op: 1}


def test_training_gives_eagers_gradients():
    model, given = Norms(), [x.requires_grad_() for x in inputs()]
    leaves = [*given, *model.parameters()]
    compiled = torch.compile(model, backend="fusedops", fullgraph=True)
    assert_same_gradients(compiled, model, given, leaves, rtol=1e-5, atol=1e-5)


def test_compiled_inference_calls_one_op_below_autograd(ops_run):
    compiled = torch.compile(SOFTMAXES["softmax"], backend="fusedops")
    given = inputs()
    with torch.no_grad():
        compiled(*given)
        assert ops_run(compiled, *given) == {"stack_softmax": 1}


def test_sizes_may_be_symbols(rewrite_dynamo):
    model = SOFTMAXES["softmax"]
    rewritten = rewrite_dynamo(model, *inputs(), dynamic=True)
    assert rewritten.replaced == {"stack_softmax": 1}
    assert_one_graph(rewritten, model, [inputs(3, rows, 8) for rows in (5, 9)])


def masked(x):
    return x.masked_fill(torch.ones(4, 8, dtype=torch.bool).tril(), -torch.inf).softmax(-1)


SINGLE = {
    "a result has another user": (
        lambda a, b, c: (lambda y: torch.stack([y, b.softmax(-1)]) + y)(a.softmax(-1)),
        {"softmax": 2},
    ),
    "different dims": (
        lambda a, b, c: torch.stack([a.softmax(-1), b.softmax(0)]),
        {"softmax": 2},
    ),
    "different functions": (
        lambda a, b, c: torch.stack([a.softmax(-1), b.log_softmax(-1)]),
        {"softmax": 1, "log_softmax": 1},
    ),
    "something else among them": (
        lambda a, b, c: torch.stack([a.softmax(-1), b, c.softmax(-1)]),
        {"softmax": 2},
    ),
    "one alone": (lambda a, b, c: torch.stack([a.softmax(-1)]), {"softmax": 1}),
    "different eps": (
        lambda a, b, c: torch.stack([F.layer_norm(a, (8,)), F.layer_norm(b, (8,), eps=1e-3)]),
        {"layer_norm": 2},
    ),
    "a weight for one": (
        lambda a, b, c: torch.stack([F.layer_norm(a, (8,)), F.layer_norm(b, (8,), c[0])]),
        {"layer_norm": 2},
    ),
    "masks, which another op takes in": (
        lambda a, b, c: torch.stack([masked(a), masked(b)]),
        {"masked_softmax": 2},
    ),
    "residuals, which another op takes in": (
        lambda a, b, c: torch.stack([F.layer_norm(a + b, (8,)), F.layer_norm(c, (8,))]),
        {"add_layer_norm": 1, "layer_norm": 1},
    ),
    "another dtype": (
        lambda a, b, c: torch.stack([x.softmax(-1, torch.float64) for x in (a, b, c)]),
        {"softmax": 3},
    ),
}


@pytest.mark.parametrize("function, replaced", SINGLE.values(), ids=SINGLE)
def test_calls_that_are_not_one_stack_are_replaced_one_by_one(rewrite_dynamo, function, replaced):
    assert_becomes(rewrite_dynamo, function, inputs(), replaced)


def test_an_input_that_is_written_before_the_stack_is_read_in_time(rewrite_dynamo):
    def function(a):
        x = a.clone()
        y = x.softmax(-1)
        x.add_(1)
        return torch.stack([y, x.softmax(-1)]), x

    rewritten = rewritten_alike(rewrite_dynamo, function, inputs(1))
    assert rewritten.replaced == {"softmax": 2}
    assert "written in place before its last call" in rewritten.reasons[0]


def test_one_tensor_may_stand_in_a_stack_twice(rewrite_dynamo):
    def function(a):
        y = a.softmax(-1)
        return torch.stack([y, y])

    rewritten_alike(rewrite_dynamo, function, inputs(1))


def test_explain_shows_the_stack():
    report = fusedops.explain(SOFTMAXES["softmax"], *inputs())
    (site,) = report.replaced
    assert site.rule == "stack" and site.op == "stack_softmax" and site.bytes_saved > 0


def test_the_rule_can_be_switched_off(rewrite_dynamo):
    with fusedops.config.patch(fuse="always,stack=never"):
        rewritten = rewrite_dynamo(SOFTMAXES["softmax"], *inputs())
    assert rewritten.replaced == {"softmax": 3}
    assert rewritten.reasons == ['config: fuse="always,stack=never"']
