"""fusedops.explain: one row for each site, whether it was replaced, and why."""

import inspect
import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo.testing import EagerAndRecordGraphs

import fusedops
from fusedops.graph.rewriting.evaluation import Evaluation
from fusedops.graph.rewriting.report import Site


class _Attention(nn.Module):
    def forward(self, x):
        return (x @ x.transpose(-1, -2)).softmax(-1) @ x


class _Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attention = _Attention()

    def forward(self, x):
        return x + self.attention(self.norm(x))


class _Model(nn.Module):
    def __init__(self, break_graph=False):
        super().__init__()
        self.layers = nn.ModuleList([_Layer(), _Layer()])
        self.break_graph = break_graph

    def forward(self, x):
        first, second = self.layers
        x = first(x)
        if self.break_graph:
            torch._dynamo.graph_break()
        x = second(x)
        return F.scaled_dot_product_attention(x, x, x.softmax(-1))


MODULES = ["layers.0.norm", "layers.0.attention", "layers.1.norm", "layers.1.attention", "", ""]


@pytest.mark.parametrize("break_graph", [False, True])
def test_every_site_of_every_graph_is_a_row(break_graph):
    report = fusedops.explain(_Model(break_graph), torch.randn(2, 3, 8))
    assert [site.module for site in report.sites] == MODULES
    # The sum in front of the second norm is in the same graph only without a graph break.
    norm = "layer_norm" if break_graph else "add_layer_norm"
    ops = ["layer_norm", "softmax", norm, "softmax", "softmax"]
    assert [site.op for site in report.replaced] == ops
    (left,) = report.left
    assert (left.rule, left.op) == ("leaf", "scaled_dot_product_attention")
    assert left.reason == "already runs as SDPA"


def test_a_site_knows_its_line_and_its_shapes():
    first, softmax, *_ = fusedops.explain(_Model(), torch.randn(2, 3, 8)).sites
    lines, start = inspect.getsourcelines(_Layer)
    line = start + next(i for i, text in enumerate(lines) if "self.norm(x)" in text)
    assert first.location == f"test_rewrite_explain.py:{line}"
    assert first.shapes == ((2, 3, 8), (8,), (8,))
    assert softmax.shapes == ((2, 3, 3),)
    assert first.reason == "" and first.bytes_saved == 0 and first.rule == "layer_norm"


@pytest.mark.parametrize("columns", [80, 120])
def test_equal_sites_share_an_entry_that_fits_the_terminal(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    text = str(fusedops.explain(_Model(), torch.randn(2, 3, 8)))
    summary, *entries = text.split("\n\n")
    assert summary.splitlines() == [
        "fusedops: 5 of 5 sites replaced in training",
        "Left on purpose, and not counted: 1 x scaled_dot_product_attention.",
    ]
    titles = [entry.splitlines()[0] for entry in entries]
    assert titles == [
        "replaced  layer_norm",
        "replaced  softmax  2 times",
        "replaced  add_layer_norm",
        "replaced  softmax",
        "left  scaled_dot_product_attention",
    ]
    assert "  module   layers.*.attention" in entries[1].splitlines()
    assert max(map(len, text.splitlines())) <= columns


@pytest.mark.parametrize("trains", [True, False])
def test_a_module_is_judged_in_the_mode_that_it_is_in(trains):
    report = fusedops.explain(_Model().train(trains), torch.randn(2, 3, 8))
    assert report.mode == report.to_dict()["mode"] == ("training" if trains else "inference")
    with torch.no_grad():
        assert fusedops.explain(_Model(), torch.randn(2, 3, 8)).mode == "inference"
    assert fusedops.explain(torch.sin, torch.ones(3)).mode == ""


def test_the_report_is_json():
    data = json.loads(json.dumps(fusedops.explain(_Model(), torch.randn(2, 3, 8)).to_dict()))
    assert data["replaced"] == 5 and data["left"] == 1
    assert data["sites"][0]["shapes"] == [[2, 3, 8], [8], [8]]


def test_the_report_is_the_same_on_a_warm_cache():
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1)), torch.randn(4, 8)
    compiled = torch.compile(model, backend="fusedops")
    with torch.no_grad():
        compiled(x)
        counts = [len(fusedops.explain(each, x).replaced) for each in (model, compiled, model)]
    assert counts == [1, 1, 1]


def test_dynamo_starts_afresh_afterwards():
    model, x, backend = nn.Softmax(-1), torch.randn(4, 8), EagerAndRecordGraphs()
    compiled = torch.compile(model, backend=backend)
    compiled(x)
    fusedops.explain(model, x)
    compiled(x)
    assert len(backend.graphs) == 2
    assert "fusedops" not in backend.graphs[-1].code


def test_nothing_that_was_captured_stays_even_where_the_model_raises():
    def model(x, fail):
        y = x.softmax(-1)
        torch._dynamo.graph_break()
        if fail:
            raise ZeroDivisionError
        return y

    x = torch.randn(4, 8)
    assert len(fusedops.explain(model, x, fail=False).replaced) == 1
    assert _debug_get_cache_entry_list(model.__code__) == []
    with pytest.raises(ZeroDivisionError):
        fusedops.explain(model, x, fail=True)
    assert _debug_get_cache_entry_list(model.__code__) == []


def test_functions_and_keyword_arguments_are_explained():
    report = fusedops.explain(lambda x, dim: x.softmax(dim), torch.randn(4, 8), dim=0)
    (site,) = report.sites
    assert site.replaced and site.module == "" and site.shapes == ((4, 8),)


def test_a_bound_method_knows_the_paths_of_its_module():
    report = fusedops.explain(_Model().forward, torch.randn(2, 3, 8))
    assert [site.module for site in report.sites] == MODULES


EMPTY = {
    "fusedops: 0 of 0 sites replaced in training: torch.compile found no softmax or norm": (
        nn.Linear(8, 8)
    ),
    "fusedops: 0 of 0 sites replaced: torch.compile captured no graph": lambda x: 3,
}


@pytest.mark.parametrize("text", EMPTY)
def test_a_model_without_sites_or_graphs_has_a_report_that_says_so(text):
    report = fusedops.explain(EMPTY[text], torch.randn(4, 8))
    assert report.sites == () and " ".join(str(report).split()) == text


def _silent(*_):
    raise RuntimeError("\n  \n")


def test_a_refusal_that_says_nothing_still_has_a_reason(monkeypatch):
    monkeypatch.setattr(Evaluation, "value", _silent)
    (site,) = fusedops.explain(lambda x: x.softmax(-1), torch.randn(4, 8)).left
    assert site.reason == "fusedops.softmax.default refuses: RuntimeError"


@pytest.mark.parametrize(("replaced", "reason"), [(False, ""), (False, " "), (True, "slower")])
def test_a_site_is_replaced_or_has_a_reason(replaced, reason):
    with pytest.raises(ValueError, match="wanted a reason if and only if"):
        Site("softmax", "softmax", replaced, reason, "", "", ())
