"""A Hugging Face model built from its config: every site, equal outputs, equal gradients."""

import pytest
import torch
from transformers import BertConfig, BertModel

import fusedops
from fusedops.backend import backend


@pytest.fixture
def bert():
    config = BertConfig(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        attn_implementation="eager",
    )
    return BertModel(config).eval()


@pytest.fixture
def inputs():
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[1, 5:] = 0
    return {"input_ids": torch.randint(0, 64, (2, 8)), "attention_mask": mask}


def test_explain_finds_every_site_of_bert(bert, inputs):
    report = fusedops.explain(bert, **inputs)
    assert report.left == ()
    assert sorted(site.module for site in report.replaced) == [
        "embeddings.LayerNorm",
        "encoder.layer.0.attention.output.LayerNorm",
        "encoder.layer.0.attention.self",
        "encoder.layer.0.output.LayerNorm",
        "encoder.layer.1.attention.output.LayerNorm",
        "encoder.layer.1.attention.self",
        "encoder.layer.1.output.LayerNorm",
    ]
    assert [site.op for site in report.sites].count("softmax") == 2
    assert all(site.location.startswith("modeling_bert.py:") for site in report.sites)


def test_compiled_bert_gives_eagers_output(bert, inputs, ops_run):
    compiled = torch.compile(bert, backend=backend)
    with torch.no_grad():
        ours = compiled(**inputs).last_hidden_state
        eager = bert(**inputs).last_hidden_state
        assert ops_run(lambda: compiled(**inputs)) == {"softmax": 2, "layer_norm": 5}
    torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5)


def test_rewritten_bert_gives_eagers_gradients(bert, inputs, rewrite_dynamo):
    bert = bert.double()

    def loss():
        return bert(**inputs).last_hidden_state.sin().sum()

    rewritten = rewrite_dynamo(loss)
    assert rewritten.replaced == {"softmax": 2, "layer_norm": 5}
    parameters = [p for name, p in bert.named_parameters() if not name.startswith("pooler")]
    ours = torch.autograd.grad(rewritten.call(), parameters)
    eager = torch.autograd.grad(loss(), parameters)
    torch.testing.assert_close(ours, eager, rtol=1e-10, atol=1e-10)


def test_exported_bert_gives_eagers_output(bert, inputs):
    exported = torch.export.export(bert, (), inputs)
    program = fusedops.export.rewrite(exported)
    names = [str(node.target) for node in program.graph.nodes]
    assert names.count("fusedops.softmax.default") == 2
    assert names.count("fusedops.layer_norm.default") == 5
    with torch.no_grad():
        ours = program.module()(**inputs).last_hidden_state
        eager = bert(**inputs).last_hidden_state
    torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5)
