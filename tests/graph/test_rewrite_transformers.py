"""Hugging Face models built from their configs: every site, equal outputs, equal gradients."""

from collections import Counter

import pytest
import torch
import transformers
from oracle import relative_error
from transformers import BertConfig, BertModel

import fusedops
from fusedops.backend import backend

#: Two layers of attention and two residual norms each, behind the norm of the embeddings.
BERT_SITES = {"masked_softmax": 2, "layer_norm": 1, "add_layer_norm": 4}


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
    assert Counter(site.op for site in report.sites) == BERT_SITES
    assert all(site.location.startswith("modeling_bert.py:") for site in report.sites)


def test_compiled_bert_gives_eagers_output(bert, inputs, ops_run):
    compiled = torch.compile(bert, backend=backend)
    with torch.no_grad():
        ours = compiled(**inputs).last_hidden_state
        eager = bert(**inputs).last_hidden_state
        assert ops_run(lambda: compiled(**inputs)) == BERT_SITES
    torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5)


def test_rewritten_bert_gives_eagers_gradients(bert, inputs, rewrite_dynamo):
    bert = bert.double()

    def loss():
        return bert(**inputs).last_hidden_state.sin().sum()

    rewritten = rewrite_dynamo(loss)
    assert rewritten.replaced == BERT_SITES
    parameters = [p for name, p in bert.named_parameters() if not name.startswith("pooler")]
    ours = torch.autograd.grad(rewritten.call(), parameters)
    eager = torch.autograd.grad(loss(), parameters)
    torch.testing.assert_close(ours, eager, rtol=1e-10, atol=1e-10)


def test_exported_bert_gives_eagers_output(bert, inputs):
    exported = torch.export.export(bert, (), inputs)
    program = fusedops.export.rewrite(exported)
    targets = [str(node.target).split(".") for node in program.graph.nodes]
    assert Counter(target[1] for target in targets if target[0] == "fusedops") == BERT_SITES
    with torch.no_grad():
        ours = program.module()(**inputs).last_hidden_state
        eager = bert(**inputs).last_hidden_state
    torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5)


def _decoder(name, **more):
    """A model of two layers whose RMSNorms are decomposed."""
    config = getattr(transformers, f"{name}Config")(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        attn_implementation="eager",
        **more,
    )
    return getattr(transformers, f"{name}Model")(config).eval()


def _t5():
    config = transformers.T5Config(
        vocab_size=64,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=2,
        attn_implementation="eager",
    )
    return transformers.T5EncoderModel(config).eval()


#: Each model and its number of norms without a residual in front: the first norm, and in Gemma2
#: those of the branches. Each has four norms behind a residual, and a masked softmax in each layer.
RMS_NORM_MODELS = {
    "Llama": (lambda: _decoder("Llama"), 1),
    "Mistral": (lambda: _decoder("Mistral"), 1),
    "Qwen2": (lambda: _decoder("Qwen2"), 1),
    "Gemma2": (lambda: _decoder("Gemma2", head_dim=8), 5),
    "T5": (_t5, 1),
}


@pytest.mark.parametrize("name", RMS_NORM_MODELS)
def test_every_rms_norm_is_found_and_gives_eagers_output_and_gradients(name, rewrite_dynamo):
    build, norms = RMS_NORM_MODELS[name]
    model, ids = build(), torch.randint(0, 64, (2, 8))

    def loss():
        return model(input_ids=ids).last_hidden_state.sin().sum()

    rewritten = rewrite_dynamo(loss)
    expected = {"masked_softmax": 2, "rms_norm": norms, "add_rms_norm": 4}
    assert rewritten.replaced == expected and rewritten.reasons == []
    torch.testing.assert_close(rewritten.call(), loss(), rtol=1e-5, atol=1e-4)
    parameters = [p for p in model.parameters() if p.requires_grad]
    ours = torch.autograd.grad(rewritten.call(), parameters)
    eager = torch.autograd.grad(loss(), parameters)
    torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4)


#: Tensors in bfloat16 on the longest path through such a model: of each of two layers the norm,
#: query or key, its rotation, scores, probabilities, context, projection, residual, norm, gate, its
#: activation, product, projection and residual, and Gemma2's norms of both branches; beside the
#: embeddings, scaled, and the last norm.
ROUNDINGS = 2 * 16 + 3


@pytest.mark.parametrize("name", RMS_NORM_MODELS)
def test_a_compiled_model_in_bfloat16_is_off_by_the_roundings_of_its_tensors(name):
    """Each moves a tensor by u / sqrt(3) of its norm at most, independently of the others. No CPU
    changes that: whatever instructions multiply matrices, sums are in float32, and rounded once."""
    model, ids = RMS_NORM_MODELS[name][0](), torch.randint(0, 64, (2, 8))
    compiled = torch.compile(model.bfloat16(), backend=backend, dynamic=True)
    with torch.no_grad():
        ours = compiled(input_ids=ids).last_hidden_state.double()
        exact = model.double()(input_ids=ids).last_hidden_state.double()
    u = torch.finfo(torch.bfloat16).eps / 2
    assert relative_error(ours, exact) <= (ROUNDINGS / 3) ** 0.5 * u
