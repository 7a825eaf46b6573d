"""attn_implementation="fusedops" of Hugging Face models, compared with their own attention."""

import pytest
import torch
import transformers

import fusedops.integrations.transformers as integration

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
DECODER = SIZES | {"num_key_value_heads": 2, "pad_token_id": 0}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
#: What each model adds: grouped heads, a window, a soft cap, sinks, a position bias, no causality.
MODELS = {
    "Llama": DECODER,
    "Mistral": DECODER | {"sliding_window": 4},
    "Gemma2": DECODER | {"sliding_window": 4, "head_dim": 8, "attn_logit_softcapping": 2.0},
    "GptOss": DECODER | {"sliding_window": 4, "head_dim": 8} | EXPERTS,
    "T5Encoder": {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2},
    "Bert": SIZES,
    "GPT2": {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4},
}
every_model = pytest.mark.parametrize("name", MODELS)


def config_of(name, **more):
    return getattr(transformers, f"{name.removesuffix('Encoder')}Config")(**MODELS[name] | more)


def build(name, **more):
    """A model whose sinks and position biases are not zero."""
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}Model")._from_config(
        config_of(name, **more), attn_implementation="eager"
    )
    for parameter_name, parameter in model.named_parameters():
        if "sinks" in parameter_name or "bias" in parameter_name:
            torch.nn.init.normal_(parameter)
    return model.eval()


@pytest.fixture
def tokens():
    return torch.randint(1, 64, (2, 9), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def padded():
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, :3] = 0
    return mask


def outcome(model, implementation, **inputs):
    """The model's last states, its attention weights, and the gradients of all parameters."""
    model.set_attn_implementation(implementation)
    outputs = model(**inputs, output_attentions=True)
    parameters = [p for p in model.parameters() if p.requires_grad]
    loss = outputs.last_hidden_state[:, 4:].sin().sum()  # without the padding
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return (outputs.last_hidden_state,), outputs.attentions, gradients


@every_model
@pytest.mark.parametrize("has_padding", [False, True])
def test_states_weights_and_gradients_are_those_of_eager_attention(
    name, has_padding, tokens, padded
):
    model = build(name)
    inputs = {"input_ids": tokens, "attention_mask": padded if has_padding else None}
    ours, eager = (outcome(model, which, **inputs) for which in ("fusedops", "eager"))
    # Up to float32's rounding, in proportion to the largest number.
    for actual, expected in zip(ours, eager, strict=True):
        largest = max(tensor.abs().max().item() for tensor in expected)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5 * largest)


def test_the_weights_come_from_our_operator(tokens):
    model = build("Llama")
    model.set_attn_implementation("fusedops")
    with torch.no_grad(), torch.profiler.profile() as profile:
        model(tokens)
    names = [event.name for event in profile.events()]
    assert sum(name.endswith("masked_softmax") for name in names) == 2


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["Llama", "Mistral", "Gemma2"])
def test_generated_tokens_are_those_of_eager_attention(name, cache, tokens, padded):
    model_class = getattr(transformers, f"{name}ForCausalLM")
    model = model_class._from_config(config_of(name), attn_implementation="eager").eval()
    found = []
    for implementation in ("fusedops", "eager"):
        model.set_attn_implementation(implementation)
        found.append(
            model.generate(
                input_ids=tokens,
                attention_mask=padded,
                max_new_tokens=6,
                do_sample=False,
                cache_implementation=cache,
                disable_compile=True,
            )
        )
    assert torch.equal(*found)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_16_bits_are_rounded_once(dtype):
    query, key, value = (torch.randn(2, heads, 5, 8).to(dtype) for heads in (4, 2, 2))
    _, weights = integration.attention_forward(torch.nn.Module(), query, key, value, None)
    scores = (query @ key.repeat_interleave(2, dim=1).transpose(2, 3)).double() * 8**-0.5
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
    exact = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    u = torch.finfo(dtype).eps / 2
    torch.testing.assert_close(weights.double(), exact, rtol=1.01 * u, atol=1e-7)


def test_dropout_scales_what_it_keeps_in_training_alone():
    module = torch.nn.Module()
    query, key, value = (torch.randn(2, 4, 64, 8) for _ in range(3))
    given = (module, query, key, value, torch.ones(1, 1, 64, 64, dtype=torch.bool))
    _, dropped = integration.attention_forward(*given, dropout=0.5)
    _, kept = integration.attention_forward(*given)
    is_zero = dropped == 0
    assert 0.45 < is_zero.double().mean() < 0.55
    torch.testing.assert_close(dropped[~is_zero], 2 * kept[~is_zero])
    _, evaluated = integration.attention_forward(module.eval(), *given[1:], dropout=0.5)
    assert torch.equal(evaluated, kept)


def test_a_compiled_model_gives_eagers_states(tokens, padded):
    model = build("Mistral")
    with torch.no_grad():
        eager = model(tokens, attention_mask=padded).last_hidden_state
        model.set_attn_implementation("fusedops")
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        ours = compiled(tokens, attention_mask=padded).last_hidden_state
    torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["cache", "indices", "block_indices"])
def test_what_it_does_not_support_is_refused(name):
    query = torch.randn(1, 2, 3, 4)
    with pytest.raises(ValueError, match=rf'"fusedops" does not support .* \({name}\)'):
        integration.attention_forward(torch.nn.Module(), query, query, query, None, **{name: query})


def test_it_can_be_registered_under_another_name(tokens):
    integration.register("ours")
    model = build("Llama")
    eager = model(tokens).last_hidden_state
    model.set_attn_implementation("ours")
    torch.testing.assert_close(model(tokens).last_hidden_state, eager, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", [None, "eager"])
def test_a_model_that_computes_attention_itself_is_refused(tokens, backend):
    """It would add the bool mask to its scores."""
    config = transformers.BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=4)
    model = transformers.BloomModel._from_config(config, attn_implementation="fusedops")
    model = model if backend is None else torch.compile(model, backend=backend)
    with pytest.raises(Exception, match='BloomConfig computes attention itself; use "eager"'):
        model(tokens)
