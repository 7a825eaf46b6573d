"""Hugging Face models built from their configs: every site, equal outputs, equal gradients."""

from collections import Counter

import pytest
import torch
import transformers
from agreement import assert_becomes, assert_same_gradients, rewritten_alike
from exhaustive import beyond
from masked_softmax_forms import all_arguments_of
from oracle import relative_error
from tiny_models import tiny, tiny_decoder

import fusedops
from fusedops.backend import backend

#: Two layers of attention and two residual norms each, behind the norm of the embeddings.
BERT_SITES = {"masked_softmax": 2, "layer_norm": 1, "add_layer_norm": 4}


@pytest.fixture
def bert():
    return tiny("Bert", max_position_embeddings=16)


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


def hidden(model, **settings):
    """The model's last hidden states, as a function of its tokens."""
    return lambda ids: model(input_ids=ids, **settings).last_hidden_state


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
    "Llama": (lambda: tiny_decoder("Llama"), 1),
    "Mistral": (lambda: tiny_decoder("Mistral"), 1),
    "Qwen2": (lambda: tiny_decoder("Qwen2"), 1),
    "Gemma2": (lambda: tiny_decoder("Gemma2", head_dim=8), 5),
    "T5": (_t5, 1),
}


@pytest.mark.parametrize("name", RMS_NORM_MODELS)
def test_every_rms_norm_is_found_and_gives_eagers_output_and_gradients(name, rewrite_dynamo):
    build, norms = RMS_NORM_MODELS[name]
    model, ids = build(), torch.randint(0, 64, (2, 8))

    run = hidden(model)
    expected = {"masked_softmax": 2, "rms_norm": norms, "add_rms_norm": 4}
    rewritten = assert_becomes(rewrite_dynamo, run, [ids], expected, rtol=1e-5, atol=1e-4)
    parameters = [p for p in model.parameters() if p.requires_grad]
    assert_same_gradients(rewritten.call, run, [ids], parameters, rtol=1e-4, atol=1e-4)


#: Tensors in bfloat16 on the longest path through such a model: of each of two layers the norm,
#: query or key, its rotation, scores, probabilities, context, projection, residual, norm, gate, its
#: activation, product, projection and residual, and Gemma2's norms of both branches; besides the
#: embeddings, scaled, and the last norm.
ROUNDINGS = 2 * 16 + 3


@pytest.mark.exhaustive
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


GEMMA3_LAYERS = ["sliding_attention", "full_attention"]
#: Models with windows: their settings, and what each layer's mask leaves visible to a query i.
WINDOWS = {
    "Mistral": ({"sliding_window": 4}, [{"causal": True, "lower_diagonal": -3}] * 2),
    "Gemma2": (
        {"sliding_window": 4, "head_dim": 8, "attn_logit_softcapping": 5.0},
        [{"causal": True, "lower_diagonal": -3, "softcap": 5.0}, {"causal": True, "softcap": 5.0}],
    ),
    "Gemma3Text": (
        {"sliding_window": 4, "head_dim": 8, "layer_types": GEMMA3_LAYERS},
        [{"causal": True, "lower_diagonal": -3}, {"causal": True, "lower_diagonal": None}],
    ),
}


def _masking(rewritten):
    """For each masked softmax, by name, the arguments that hide columns or cap scores."""
    wanted = ("mask", "causal", "diagonal", "lower_diagonal", "start", "end", "bias", "softcap")
    for given in all_arguments_of(rewritten):
        yield {name: given.get(name) for name in wanted}


NOTHING = dict.fromkeys(("mask", "lower_diagonal", "start", "end", "bias", "softcap"))
NOTHING |= {"diagonal": 0}


def _assert_masking(found, layers, position_ids):
    """Each layer hides what it should, and bounds each document where there are position ids."""
    found = list(found)
    documents = {"start": None, "end": None}
    assert [given | documents for given in found] == [NOTHING | layer for layer in layers]
    assert all((given["start"] is None) == (position_ids is None) for given in found)


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_no_decoder_writes_its_mask_of_queries_and_keys(name, dynamic, rewrite_dynamo):
    settings, layers = WINDOWS[name]
    model, ids = tiny_decoder(name, **settings), torch.randint(0, 64, (2, 9))

    run = hidden(model)
    rewritten = rewrite_dynamo(run, ids, dynamic=dynamic)
    assert list(_masking(rewritten)) == [NOTHING | layer for layer in layers]
    if dynamic:
        ids = torch.randint(0, 64, (3, 13))
    _assert_exact(rewritten.call(ids), model, run, ids)
    assert len(rewritten.graphs) == 1


def _assert_exact(ours, model, run, ids):
    """Compares a result and its gradients with those of the model in float64."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(ours.sin().sum(), parameters)
    model.double()
    exact = run(ids)
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-4)
    expected = torch.autograd.grad(exact.sin().sum(), parameters)
    torch.testing.assert_close([g.double() for g in gradients], [*expected], rtol=1e-4, atol=1e-4)


#: Two sequences of packed documents.
PACKED = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4], [0, 1, 0, 1, 2, 3, 4, 5, 0]])


@pytest.mark.parametrize("name", beyond(["Gemma2"], WINDOWS))
@pytest.mark.parametrize("position_ids", [None, PACKED], ids=["one document", "packed"])
def test_no_decoder_that_trains_without_a_cache_writes_its_mask(name, position_ids, rewrite_dynamo):
    """Without a cache, masks depend on the jumps of position ids, given or not."""
    settings, layers = WINDOWS[name]
    model, ids = tiny_decoder(name, **settings), torch.randint(0, 64, (2, 9))

    run = hidden(model, position_ids=position_ids, use_cache=False)
    rewritten = rewrite_dynamo(run, ids)
    _assert_masking(_masking(rewritten), layers, position_ids)
    _assert_exact(rewritten.call(ids), model, run, ids)


@pytest.mark.parametrize("name", beyond(["Mistral"], WINDOWS))
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("position_ids", [None, PACKED], ids=["one document", "packed"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_under_autocast_no_decoder_writes_its_mask(
    name, training, position_ids, dtype, dynamic, rewrite_dynamo
):
    settings, layers = WINDOWS[name]
    model = tiny_decoder(name, attention_dropout=0.1, **settings).train(training)
    ids = torch.randint(0, 64, (2, 9))

    run = hidden(model, position_ids=position_ids, use_cache=False)
    with torch.set_grad_enabled(training), torch.autocast("cpu", dtype):
        rewritten = rewrite_dynamo(run, ids, dynamic=dynamic)
    softmax = "masked_softmax_dropout" if training else "masked_softmax"
    norms = 5 if name.startswith("Gemma") else 1
    extra = 4 if name == "Gemma3Text" else 0  # of queries and keys
    assert rewritten.replaced == {softmax: 2, "add_rms_norm": 4, "rms_norm": norms + extra}
    assert rewritten.reasons == []
    _assert_masking(_masking(rewritten), layers, position_ids)


def test_llama4_has_chunks_and_norms_of_queries_and_keys(rewrite_dynamo):
    model = tiny_decoder(
        "Llama4Text",
        intermediate_size_mlp=32,
        head_dim=8,
        attention_chunk_size=4,
        num_local_experts=2,
        layer_types=["chunked_attention", "full_attention"],
        no_rope_layers=[1, 0],
        pad_token_id=0,
    )
    ids = torch.randint(1, 64, (2, 9))

    run = hidden(model, use_cache=False)
    ops = {"masked_softmax": 2, "rms_norm": 3, "add_rms_norm": 4}
    rewritten = assert_becomes(rewrite_dynamo, run, [ids], ops, rtol=1e-5, atol=1e-4)
    chunked, everything = _masking(rewritten)
    assert everything == NOTHING | {"causal": True}
    assert chunked["mask"] is None and chunked["causal"] and chunked["start"] is not None


@pytest.mark.parametrize("name", beyond(["Gemma3Text"], WINDOWS))
def test_a_padding_mask_is_read_beside_the_window_in_inference(name, rewrite_dynamo):
    settings, layers = WINDOWS[name]
    model, ids = tiny_decoder(name, **settings), torch.randint(0, 64, (2, 9))
    keep = torch.ones(2, 9, dtype=torch.long)
    keep[1, :6] = 0  # with a window of 4, queries of the padding see nothing

    def run(ids, keep):
        with torch.no_grad():
            return model(input_ids=ids, attention_mask=keep).last_hidden_state

    rewritten = rewritten_alike(rewrite_dynamo, run, [ids, keep], rtol=1e-5, atol=1e-4)
    found = list(_masking(rewritten))
    assert [given["mask"].meta["example_value"].shape for given in found] == [(2, 1, 1, 9)] * 2
    assert [given | {"mask": None} for given in found] == [NOTHING | layer for layer in layers]
    notes = {site.note for site in rewritten.report.sites if site.op == "masked_softmax"}
    assert notes == {"the mask depends on the elements of l_keep_"}


def test_modernberts_local_layers_have_a_window_around_each_token(rewrite_dynamo):
    tokens = ("pad", "bos", "eos", "cls", "sep")
    tokens = {f"{token}_token_id": id for token, id in zip(tokens, (0, 1, 2, 1, 2), strict=True)}
    model, ids = tiny("ModernBert", local_attention=4, **tokens), torch.randint(1, 64, (2, 9))

    run = hidden(model)
    rewritten = rewritten_alike(rewrite_dynamo, run, [ids], rtol=1e-5, atol=1e-4)
    window = {"causal": True, "diagonal": 2, "lower_diagonal": -2}
    everything = {"causal": False}
    assert list(_masking(rewritten)) == [NOTHING | everything, NOTHING | window]


@pytest.mark.parametrize("dynamic", beyond([True], [False, True]))
def test_gpt_oss_has_sinks_and_windows_and_writes_no_mask(rewrite_dynamo, dynamic):
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1}
    model = tiny_decoder("GptOss", head_dim=8, sliding_window=4, **experts)
    ids = torch.randint(0, 64, (2, 9))

    run = hidden(model)
    rewritten = rewritten_alike(rewrite_dynamo, run, [ids], 1e-5, 1e-4, dynamic=dynamic)
    assert rewritten.replaced["masked_softmax_sinks"] == 2
    window, everything = ({"causal": True, "lower_diagonal": left} for left in (-3, None))
    assert list(_masking(rewritten)) == [NOTHING | window, NOTHING | everything]
    sinks = [layer.self_attn.sinks for layer in model.layers]
    assert_same_gradients(rewritten.call, run, [ids], sinks, rtol=1e-4, atol=1e-4)
