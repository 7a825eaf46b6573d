"""A rewrite takes work linear in the number of layers. Calls are counted, since times differ
between machines."""

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.testing import EagerAndRecordGraphs
from torch._subclasses.fake_tensor import FakeTensorMode

import fusedops
from fusedops.graph import rewrite_graph

PACKAGE = str(Path(fusedops.__file__).parent / "graph")


class _Block(nn.Module):
    """Attention and a feed-forward part, decomposed as models write them, with writes in place."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.weight = nn.Parameter(torch.ones(8))
        self.project = nn.Linear(8, 8)

    def forward(self, x, mask):
        y = self.norm(x)
        scores = (y @ y.transpose(-1, -2) * 0.5).masked_fill(mask == 0, -1e9)
        scores = scores - scores.amax(-1, keepdim=True)
        scores = scores.exp()
        scores /= scores.sum(-1, keepdim=True)
        x = x + F.dropout(self.project(scores @ y), 0.1)
        y = self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))
        return x + F.relu(self.project(y), inplace=True)


class _Model(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList([_Block() for _ in range(layers)])

    def forward(self, x, mask):
        for layer in self.layers:
            x = layer(x, mask)
        return x


def _program(layers):
    inputs = torch.randn(2, 4, 8), torch.ones(4, 4)
    return torch.export.export(_Model(layers), inputs, strict=False)


def _exported(layers):
    return _program(layers).graph_module


def _decomposed(layers):
    return _program(layers).run_decompositions().graph_module


def _recorded(function):
    backend = EagerAndRecordGraphs()
    torch.compile(function, backend=backend)(torch.randn(2, 4, 8), torch.ones(4, 4))
    (graph,) = backend.graphs
    return graph


def _captured(layers):
    return _recorded(_Model(layers))


def _with_regions(layers):
    """Each layer is in an autocast and a no_grad region of its own."""
    model = _Model(layers)

    def function(x, mask):
        for layer in model.layers:
            with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
                x = layer(x, mask)
        return x

    return _recorded(function)


def _work(graph_module):
    """The calls of the rewriter's functions, and the ops that it runs on fake tensors."""
    counts = Counter()

    def count(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            counts["calls"] += 1
        if event == "call" and frame.f_code is FakeTensorMode.dispatch.__code__:
            counts["fake"] += 1

    sys.setprofile(count)
    try:
        report = rewrite_graph(graph_module.graph)
    finally:
        sys.setprofile(None)
    return counts, len(report.sites)


@pytest.mark.exhaustive
@pytest.mark.parametrize("capture", [_captured, _exported, _decomposed, _with_regions])
def test_twice_the_layers_are_twice_the_work(capture):
    (less, few), (more, many) = (_work(capture(layers)) for layers in (12, 24))
    assert many == 2 * few >= 24
    assert more["calls"] <= 2.1 * less["calls"]
    assert more["fake"] <= 2.1 * less["fake"]


def test_fake_tensors_run_a_site_a_few_times_only():
    counts, sites = _work(_captured(4))
    assert sites == 12 and counts["fake"] <= 6 * sites
