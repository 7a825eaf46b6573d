"""fusedops.rewrite: plain fx graphs."""

import operator

import expressions
import pytest
import torch
from torch import nn

import fusedops
from fusedops.graph import rewrite_module


def test_the_graph_module_itself_is_rewritten_and_returned():
    graph_module = torch.fx.symbolic_trace(nn.Sequential(nn.LayerNorm(8), nn.Softmax(-1)))
    assert fusedops.rewrite(graph_module, torch.randn(2, 8)) is graph_module
    assert "fusedops.layer_norm" in graph_module.code and "fusedops.softmax" in graph_module.code


def test_leaf_modules_keep_training_their_own_parameters():
    model = nn.Sequential(nn.LayerNorm(8), nn.Softmax(-1)).double()
    x = torch.randn(4, 8, dtype=torch.float64)
    (model(x) * x).sum().backward()
    eager, model[0].weight.grad = model[0].weight.grad, None
    graph_module = fusedops.rewrite(torch.fx.symbolic_trace(model), x)
    (graph_module(x) * x).sum().backward()
    torch.testing.assert_close(model[0].weight.grad, eager, rtol=1e-12, atol=1e-12)


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


def test_missing_example_inputs_are_named():
    graph_module = torch.fx.symbolic_trace(lambda x, y: x.softmax(-1) + y)
    with pytest.raises(TypeError, match=r"got 1 example_inputs, the graph takes 2 \(x, y\)"):
        fusedops.rewrite(graph_module, torch.randn(2))


def test_a_wrong_argument_is_named():
    with pytest.raises(TypeError, match="graph_module is a Softmax, wanted a torch.fx.GraphModule"):
        fusedops.rewrite(nn.Softmax(-1), torch.randn(2))


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
    torch.testing.assert_close(rewritten(x, segments), attention(x, segments))
