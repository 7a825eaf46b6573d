"""Models of Hugging Face, built from their configs, that are small enough for tests."""

import transformers


def tiny(name, **settings):
    """Two layers of an architecture in evaluation mode, whose softmaxes are written out."""
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2}
    config = getattr(transformers, f"{name}Config")
    model = getattr(transformers, f"{name}Model")
    return model(config(**sizes | settings, attn_implementation="eager")).eval()


def tiny_decoder(name, **settings):
    """One with grouped queries, whose RMSNorms are decomposed."""
    return tiny(name, num_key_value_heads=1, **settings)
