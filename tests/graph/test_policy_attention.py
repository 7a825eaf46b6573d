"""Which attention Inductor runs as scaled_dot_product_attention (SDPA), and what is replaced."""

import dataclasses

import pytest
import torch
import torch._inductor.config as inductor_config
from torch._dynamo.utils import counters

from fusedops.graph.policy import costs, decision
from fusedops.graph.policy.decision import BECOMES_SDPA
from fusedops.graph.policy.machine import here

pytestmark = pytest.mark.usefixtures("profitable")

BATCH, HEADS, TOKENS, FEATURES = 2, 4, 16, 8

#: How queries, keys and values become [batch, heads, tokens, features]. A batch of one is apart,
#: since batch and heads are then one dimension in memory.
LAYOUTS = {
    "heads in front": lambda x: [
        part.contiguous().view(len(x), HEADS, TOKENS, FEATURES) for part in x.chunk(3, -1)
    ],
    "transposed": lambda x: [
        part.contiguous().view(len(x), TOKENS, HEADS, FEATURES).transpose(1, 2)
        for part in x.view(len(x), TOKENS, 3, -1).unbind(2)
    ],
    "one projection": lambda x: (
        x.view(len(x), TOKENS, 3, HEADS, FEATURES).permute(2, 0, 3, 1, 4).unbind(0)
    ),
}
SCALINGS = {
    "divided": lambda scores: scores / FEATURES**0.5,
    "multiplied": lambda scores: scores * FEATURES**-0.5,
    "as they are": lambda scores: scores,
}


class Attention(torch.nn.Module):
    def __init__(self, layout, scaling, of_queries=False):
        super().__init__()
        self.projection = torch.nn.Linear(32, 3 * HEADS * FEATURES)
        self.layout, self.scaling, self.of_queries = layout, scaling, of_queries

    def forward(self, x, mask=None):
        query, key, value = self.layout(self.projection(x))
        query = query * 0.25 if self.of_queries else query
        scores = self.scaling(query @ key.transpose(-2, -1))
        scores = scores if mask is None else scores + mask
        return scores.softmax(-1) @ value


def _inputs(batch=BATCH, is_masked=False):
    x = torch.randn(batch, TOKENS, 32)
    return (x, torch.randn(batch, 1, 1, TOKENS)) if is_masked else (x,)


@pytest.mark.slow("Inductor compiles each form")
@pytest.mark.parametrize("is_trained", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("is_masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("batch", [1, BATCH])
@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_what_inductor_runs_as_sdpa_is_known(
    layout, scaling, batch, is_masked, is_trained, table, rewrite_dynamo
):
    for mode in ("inference", "training"):
        table("attention", inductor=1, ours=2, mode=mode)
    model, inputs = Attention(layout, scaling), _inputs(batch, is_masked)
    counters.clear()
    with torch.set_grad_enabled(is_trained):
        with inductor_config.patch(force_disable_caches=True):
            torch.compile(model)(*inputs)
        reasons = rewrite_dynamo(model, *inputs).reasons
    assert (BECOMES_SDPA in reasons) == (counters["inductor"]["fuse_attention"] > 0)


def _rewrite_divided(rewrite_dynamo, **kinds):
    with torch.no_grad():
        return rewrite_dynamo(
            Attention(LAYOUTS["transposed"], SCALINGS["divided"]), *_inputs(**kinds)
        )


def test_scaled_queries_are_no_sdpa(no_table, rewrite_dynamo):
    model = Attention(LAYOUTS["transposed"], SCALINGS["as they are"], of_queries=True)
    with torch.no_grad():
        assert BECOMES_SDPA not in rewrite_dynamo(model, *_inputs()).reasons


@pytest.mark.parametrize("is_masked", [False, True], ids=["plain", "masked"])
def test_sdpa_is_replaced_where_that_is_measured_to_be_faster(is_masked, table, rewrite_dynamo):
    table("attention", inductor=2, ours=1)
    rewritten = _rewrite_divided(rewrite_dynamo, is_masked=is_masked)
    assert rewritten.replaced == {"masked_softmax": 1}
    assert "with its matrix products, Inductor" in str(rewritten.report)


def test_sdpa_is_replaced_by_what_is_a_tenth_faster(table, rewrite_dynamo):
    table("attention", inductor=2, ours=1.81)
    assert _rewrite_divided(rewrite_dynamo).reasons == [BECOMES_SDPA]
    table("attention", inductor=2, ours=1.79)
    assert _rewrite_divided(rewrite_dynamo).replaced == {"masked_softmax": 1}


def test_only_a_table_for_this_machine_counts(table, rewrite_dynamo, monkeypatch):
    table("attention", inductor=2, ours=1)
    other = dataclasses.replace(here(torch.device("cpu")), threads=3)
    monkeypatch.setattr(costs, "here", lambda device: other)
    assert _rewrite_divided(rewrite_dynamo).reasons == [BECOMES_SDPA]


def test_scores_of_many_bytes_are_left_to_sdpa(table, rewrite_dynamo, monkeypatch):
    table("attention", inductor=2, ours=1)
    monkeypatch.setitem(decision._MOST_SCORES, "inference", 2**10)
    assert _rewrite_divided(rewrite_dynamo).reasons == [BECOMES_SDPA]


def test_attention_of_a_size_that_depends_on_data_is_left_to_sdpa(no_table, rewrite_dynamo):
    def model(x, chosen):
        query = x[torch.nonzero(chosen)[:, 0]]
        return (query @ query.mT / FEATURES**0.5).softmax(-1) @ query

    x = torch.randn(3, TOKENS, HEADS, FEATURES).transpose(1, 2)
    chosen = torch.tensor([True, False, True])
    with torch.no_grad(), torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        rewritten = rewrite_dynamo(model, x, chosen)
        assert rewritten.reasons == [BECOMES_SDPA]
        torch.testing.assert_close(rewritten.call(x, chosen), model(x, chosen))
