"""Residual connections of two dtypes, as autocast leaves them, and whole models under autocast."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from agreement import outcome
from exhaustive import beyond
from test_rewrite_add_norm import layer_norm, residual, rms_norm, rms_norm_decomposed
from torch.fx.experimental.proxy_tensor import make_fx

import fusedops
from fusedops.graph import rewrite_module
from tools.bench.zoo import MODELS, TINY

N = 8
NARROW = [torch.bfloat16, torch.float16]
narrow = pytest.mark.parametrize("dtype", NARROW, ids=["bfloat16", "float16"])


NORMS = [layer_norm, rms_norm, rms_norm_decomposed]
every_norm = pytest.mark.parametrize("norm", NORMS, ids=lambda norm: norm.__name__)


#: Residual connections of a narrow branch x and a residual r, before a norm n.
FORMS = {
    "promoted": lambda n, x, r, w, b: n(x + r, w, b),
    "promoted last": lambda n, x, r, w, b: (lambda h: (h, n(h, w, b)))(r + x),
    "converted": lambda n, x, r, w, b: n(r + x.to(r.dtype), w, b),
    "converted twice": lambda n, x, r, w, b: n(x.type_as(r).to(r.dtype) + r, w, b),
    "reshaped": lambda n, x, r, w, b: n((x.to(r.dtype) + r).reshape(-1, N), w, b),
}


def draw(dtype):
    """A narrow branch, and residual, weight and bias in float32."""
    branch = torch.randn(3, 5, N).to(dtype)
    return [branch, torch.randn(3, 5, N), torch.randn(N), torch.randn(N)]


@every_norm
@pytest.mark.parametrize("form", FORMS)
@narrow
def test_a_narrow_branch_is_part_of_the_op(rewrite, form, norm, dtype):
    model, arguments = residual(FORMS[form], norm), draw(dtype)
    rewritten = rewrite(model, *arguments)
    op = f"add_{norm.__name__.removesuffix('_decomposed')}"
    assert rewritten.replaced == {op: 1} and rewritten.reasons == []
    (call,) = rewritten.calls
    assert "to" not in call.split("(")[1:3]
    leaves = [tensor.requires_grad_() for tensor in arguments]
    ours = outcome(rewritten.call, leaves)
    exact = outcome(model, [tensor.detach().double().requires_grad_() for tensor in leaves])
    assert all(result.dtype == torch.float32 for result in ours.results)
    single = torch.finfo(torch.float32).eps
    for actual, expected in zip(ours.values, exact.values, strict=True):
        largest = expected.abs().max().item()
        rtol = torch.finfo(actual.dtype).eps if actual.dtype in NARROW else 16 * single
        torch.testing.assert_close(actual.double(), expected, rtol=rtol, atol=64 * single * largest)


@narrow
@pytest.mark.parametrize("is_first", [True, False], ids=["dropout first", "cast first"])
def test_the_dropout_of_a_narrow_branch_is_part_of_the_op(rewrite, dtype, is_first):
    def model(x, r, w, b):
        if is_first:
            return layer_norm(r + F.dropout(x, 0.25).to(r.dtype), w, b)
        return layer_norm(r + F.dropout(x.to(r.dtype), 0.25), w, b)

    rewritten = rewrite(model, *draw(dtype))
    assert rewritten.replaced == {"add_layer_norm": 1} and len(rewritten.graphs) == 1
    targets = [str(node.target) for node in rewritten.graphs[0].graph.nodes]
    assert not any("dropout" in target or ".to" in target or target == "to" for target in targets)


def test_the_copies_of_aten_graphs_are_seen_through():
    arguments = draw(torch.bfloat16)
    graph = make_fx(residual(FORMS["converted"], layer_norm), tracing_mode="fake")(*arguments)
    assert torch.ops.aten._to_copy.default in {node.target for node in graph.graph.nodes}
    report = rewrite_module(graph)
    assert Counter(site.op for site in report.replaced) == {"add_layer_norm": 1}
    graph.graph.eliminate_dead_code()
    assert torch.ops.aten._to_copy.default not in {node.target for node in graph.graph.nodes}


def test_a_cast_with_another_reader_remains_the_branch(rewrite_dynamo):
    def model(x, r, w, b):
        wide = x.float()
        return layer_norm(wide + r, w, b), wide.sin()

    rewritten = rewrite_dynamo(model, *draw(torch.bfloat16))
    assert rewritten.replaced == {"add_layer_norm": 1}
    (node,) = [n for n in rewritten.graphs[0].graph.nodes if "add_layer_norm" in str(n.target)]
    assert node.args[0].meta["example_value"].dtype == torch.float32


def test_of_two_narrow_summands_one_keeps_its_cast(rewrite_dynamo):
    """Without both casts the op's sum would be narrow too."""
    x, r, w, b = draw(torch.bfloat16)
    rewritten = rewrite_dynamo(lambda x, r: layer_norm(x.float() + r.float(), w, b), x, r.to(x))
    assert rewritten.replaced == {"add_layer_norm": 1}
    (node,) = [n for n in rewritten.graphs[0].graph.nodes if "add_layer_norm" in str(n.target)]
    dtypes = {argument.meta["example_value"].dtype for argument in node.args[:2]}
    assert dtypes == {torch.bfloat16, torch.float32}


def test_a_cast_that_loses_digits_remains_before_the_op(rewrite_dynamo):
    def model(x, r):
        return layer_norm(x.bfloat16() + r, None, None)

    x, r = torch.randn(3, 5, N), torch.randn(3, 5, N)
    rewritten = rewrite_dynamo(model, x, r)
    assert rewritten.replaced == {"add_layer_norm": 1}
    exact = model(x, r.double())
    torch.testing.assert_close(rewritten.call(x, r).double(), exact, rtol=1e-5, atol=1e-5)


def test_an_integer_branch_is_left(rewrite_dynamo):
    _, r, w, b = draw(torch.bfloat16)
    integers = torch.ones(3, 5, N, dtype=torch.long)
    rewritten = rewrite_dynamo(residual(FORMS["promoted"], layer_norm), integers, r, w, b)
    assert rewritten.replaced == {"layer_norm": 1}


def test_the_report_says_why_a_norm_is_not_one_with_its_residual(rewrite_dynamo):
    with fusedops.config.patch(fuse="always,add_layer_norm=never"):
        rewritten = rewrite_dynamo(residual(FORMS["promoted"], layer_norm), *draw(torch.bfloat16))
    (site,) = rewritten.report.sites
    assert (site.op, site.replaced, site.reason) == ("layer_norm", True, "")
    assert site.note == 'no add_layer_norm: config: fuse="always,add_layer_norm=never"'
    assert site.note in str(rewritten.report)


# --- whole models ---------------------------------------------------------------------------------

WHOLE = ["nn.TransformerEncoder", "nanogpt", "bert", "gpt2", "mistral", "gemma2", "t5", "vit"]


@narrow
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", beyond(["nanogpt"], WHOLE))
def test_under_autocast_as_much_is_replaced_as_in_float32(rewrite_dynamo, name, training, dtype):
    # With dynamic=True the dropout of this model's attention is a symbol, and its SDPA is left.
    model = MODELS[name].build(TINY, name != "nn.TransformerEncoder").train(training)
    inputs = MODELS[name].inputs(TINY, 2)
    found = []
    for is_enabled in (False, True):
        torch._dynamo.reset()
        with torch.set_grad_enabled(training), torch.autocast("cpu", dtype, enabled=is_enabled):
            found.append(rewrite_dynamo(lambda: model(**inputs), dynamic=is_enabled or None))
    single, autocast = found
    assert autocast.replaced == single.replaced and autocast.reasons == single.reasons
    assert any(op.startswith("add_") for op in autocast.replaced)


@pytest.mark.parametrize("fuse", ["profitable", "always", "never"])
@pytest.mark.parametrize(
    "name", beyond(["by_hand"], ["nn.MultiheadAttention", "by_hand", "bert", "llama"])
)
def test_every_site_that_is_left_has_a_reason(rewrite_dynamo, name, fuse):
    model, inputs = MODELS[name].build(TINY, True), MODELS[name].inputs(TINY, 2)
    with fusedops.config.patch(fuse=fuse), torch.autocast("cpu", torch.bfloat16):
        report = rewrite_dynamo(lambda: model(**inputs)).report
    assert len(report.sites) >= sum(MODELS[name].sites.values())
    assert all(site.reason.strip() for site in report.left)
