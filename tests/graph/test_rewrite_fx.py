"""fusedops.rewrite: plain fx graphs."""

import operator

import expressions
import pytest
import torch
import torch.nn.functional as F
from agreement import assert_agrees, assert_same_gradients, rewritten_alike
from torch import nn

import fusedops
from fusedops.graph import rewrite_module


def test_the_graph_module_itself_is_rewritten_and_returned():
    graph_module = torch.fx.symbolic_trace(nn.Sequential(nn.LayerNorm(8), nn.Softmax(-1)))
    assert fusedops.rewrite(graph_module, torch.randn(2, 8)) is graph_module
    assert "fusedops.layer_norm" in graph_module.code and "fusedops.softmax" in graph_module.code


def test_leaf_modules_keep_training_their_own_parameters():
    model = nn.Sequential(nn.LayerNorm(8), nn.Softmax(-1)).double()
    x, leaves = torch.randn(4, 8, dtype=torch.float64), list(model.parameters())
    graph_module = fusedops.rewrite(torch.fx.symbolic_trace(model), x)
    assert_same_gradients(graph_module, model, [x], leaves, rtol=1e-12, atol=1e-12)


def test_a_site_in_a_nested_graph_module_is_left_with_a_reason():
    nested = nn.Sequential(torch.fx.symbolic_trace(nn.Softmax(-1)))
    graph_module = torch.fx.GraphModule(nested, _LeafTracer().trace(nested))
    x = torch.randn(2, 8)
    fusedops.rewrite(graph_module, x)
    (site,) = rewrite_module(graph_module).left
    assert site.reason == "capture recorded no shape and dtype for the input"
    torch.testing.assert_close(graph_module(x), x.softmax(-1))


class _LeafTracer(torch.fx.Tracer):
    def is_leaf_module(self, module, name):
        return True


def _rms_norm(x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


#: Models of logits [batch, length, classes] and classes [batch, length].
OF_ANY_BATCH = {
    "a norm of size 1": lambda x, t: _rms_norm(x.transpose(0, 1)),
    "normalize": lambda x, t: F.normalize(x.transpose(0, 1), dim=-1),
    "losses": lambda x, t: F.cross_entropy(x.transpose(1, 2), t, reduction="none"),
    "losses of a view": lambda x, t: F.cross_entropy(x.view(-1, 8), t.view(-1), reduction="none"),
    "log-probabilities": lambda x, t: x.log_softmax(-1).gather(-1, t.unsqueeze(-1)),
    "a mean of a view": lambda x, t: F.cross_entropy(x.view(-1, 8), t.view(-1)),
}


@pytest.mark.parametrize("model", OF_ANY_BATCH.values(), ids=OF_ANY_BATCH)
@pytest.mark.parametrize("batch, length", [(5, 1), (1, 5), (3, 3)])
def test_norms_and_losses_are_right_for_other_batches_too(entries, model, batch, length):
    def inputs(batch, length):
        x = torch.randn(batch, length, 8, dtype=torch.float64)
        return x, torch.randint(8, (batch, length))

    rewritten = entries["symbolic_trace"](model, *inputs(batch, length))
    assert rewritten.replaced
    for sizes in ((batch, length), (4, 6)):
        given = inputs(*sizes)
        torch.testing.assert_close(rewritten.call(*given), model(*given), rtol=1e-9, atol=1e-9)


def test_operators_that_are_methods_are_found_as_functions_are():
    """torch 2.10's Dynamo writes x == y as x.__eq__(y), and abs(x) as x.__abs__()."""

    def attention(x, segments):
        others = segments[:, :, None] != segments[:, None, :]
        return x.masked_fill(others, -float("inf")).softmax(-1)

    x, segments = torch.randn(2, 5, 5), torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]])
    graph_module = torch.fx.symbolic_trace(attention)
    (comparison,) = graph_module.graph.find_nodes(op="call_function", target=operator.ne)
    comparison.op, comparison.target = "call_method", "__ne__"
    graph_module.recompile()
    rewritten = fusedops.rewrite(graph_module, x, segments)
    (call,) = expressions.calls(rewritten.graph)
    assert call.startswith("masked_softmax(x, mask=") and "mask_value=-inf" in call
    assert_agrees(rewritten, attention, [x, segments])


GIVEN = {
    "temperature": (lambda x, number: torch.softmax(x / (number + 1.0), -1), 2.0, 4.0),
    "dim": (lambda x, number: torch.softmax(x, number), -1, 0),
    "eps": (lambda x, number: F.rms_norm(x, (8,), None, number), 1e-6, 1.0),
    "fill": (lambda x, number: x.masked_fill(x > 1, number).softmax(-1), -1e9, 0.0),
    "scale in a list": (lambda x, numbers: torch.softmax(x * numbers[0], -1), [2.0], [4.0]),
}


@pytest.mark.parametrize("name", GIVEN)
def test_a_number_among_the_example_inputs_may_be_another_in_a_call(name):
    model, example, other = GIVEN[name]
    x = torch.randn(4, 8, dtype=torch.float64)
    rewritten = fusedops.rewrite(torch.fx.symbolic_trace(model), x, example)
    for number in (example, other):
        torch.testing.assert_close(rewritten(x, number), model(x, number), rtol=1e-12, atol=1e-12)


def test_a_size_of_the_example_inputs_is_a_constant():
    def attention(x):
        return torch.softmax(x / x.shape[-1] ** 0.5, -1)

    x = torch.randn(4, 8)
    rewritten = fusedops.rewrite(torch.fx.symbolic_trace(attention), x)
    assert expressions.calls(rewritten.graph) == [
        f"masked_softmax(x, scale={1 / 8**0.5}, mask_value=-inf)"
    ]


def _of_a_view(x, y):
    h = (x + y).view(2, 2, 8)
    return F.layer_norm(h, h.shape[-1:])


SHAPES = {
    "layer_norm of a view": (_of_a_view, "layer_norm"),
    "reshape": (lambda x, y: F.layer_norm(torch.reshape(x + y, y.shape), (8,)), "add_layer_norm"),
    "view": (lambda x, y: F.layer_norm((x + y).view(y.shape), y.shape[-1:]), "add_layer_norm"),
    "stack": (
        lambda x, y: torch.stack([F.layer_norm(h, h.shape[-1:]) for h in (x, y)]),
        "stack_layer_norm",
    ),
}


@pytest.mark.parametrize("fuse", ["always", "profitable"])
@pytest.mark.parametrize("model, op", SHAPES.values(), ids=SHAPES)
def test_the_shape_of_a_norm_or_view_may_be_a_node(model, op, fuse):
    inputs = torch.randn(2, 4, 8, dtype=torch.float64)
    with fusedops.config.patch(fuse=fuse):
        graph_module = fusedops.rewrite(torch.fx.symbolic_trace(model), *inputs)
    assert fuse == "profitable" or f"fusedops.{op}." in graph_module.code
    assert_agrees(graph_module, model, inputs)


VIEWS = {
    "unsqueezed": lambda x, hidden: hidden.unsqueeze(hidden.dim()),
    "sliced": lambda x, hidden: torch.ops.aten.slice(
        hidden.unsqueeze(-1).expand(-1, 9), hidden.dim(), 0, 8
    ),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_the_dimension_of_a_view_may_be_a_node(entries, view):
    def attention(x, hidden):
        return x.masked_fill(view(x, hidden), -1e9).softmax(-1)

    inputs = torch.randn(4, 8, dtype=torch.float64), torch.tensor([True, False, False, True])
    rewritten_alike(entries["symbolic_trace"], attention, inputs)


def test_a_softmax_in_the_dtype_of_another_tensor_stays(entries):
    def model(x, y):
        return F.softmax(x * 2, -1, dtype=y.dtype)

    inputs = torch.randn(4, 8), torch.randn(4, 8)
    rewritten = rewritten_alike(entries["symbolic_trace"], model, inputs)
    assert rewritten.replaced == {} and len(rewritten.reasons) == 1
