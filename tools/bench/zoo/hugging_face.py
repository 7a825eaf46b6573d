"""Has models of the package transformers, which is imported when the first model is built."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import nn

from tools.bench.zoo.model import (
    DECODER,
    ENCODER,
    ENCODER_DECODER,
    LAYERS,
    VISION,
    Inputs,
    Model,
    Size,
    padding,
    tokens,
)

Fields = dict[str, Any]


def import_transformers() -> ModuleType:
    """Returns the package transformers. Raises ImportError, which says what to do, if it is not
    installed."""
    try:
        import transformers
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise ImportError(
            "models of Hugging Face need the package 'transformers', which is not installed. "
            "Install it: pip install fusedops[demo]"
        ) from error
    return transformers


def _model(
    name: str,
    kind: str,
    sites: Mapping[str, int],
    fields: Callable[[Size], Fields] | None = None,
    inputs: Callable[[Size, int], Inputs] | None = None,
    class_name: str = "",
) -> Model:
    """Returns the zoo's entry for transformers' class `class_name`, by default `<name>Model`.

    `fields` returns additional fields of the model's config. A value of None removes a common
    field. `inputs` returns the model's inputs; by default they are those for models of this kind.
    """

    def build(size: Size, dropout: bool) -> nn.Module:
        transformers = import_transformers()
        chosen = _common_fields(size) | (fields(size) if fields else {})
        given = {field: value for field, value in chosen.items() if value is not None}
        config = getattr(transformers, f"{name}Config")(**given)
        if not dropout:
            _make_comparable(config)
        model_class = getattr(transformers, class_name or f"{name}Model")
        model: nn.Module = model_class._from_config(config, attn_implementation="eager")
        return model.train()

    return Model(kind, sites, build, inputs or _INPUTS[kind])


class _Loss(nn.Module):
    """A language model that returns only its loss. If it returned the logits too, the backward pass
    could not overwrite them with their gradient, because the caller might read them."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        # transformers chooses the loss by the name of the class. If the name does not say it, as
        # GPT-2's does not, it warns, and the warning breaks the graph before the loss.
        model.loss_type = "ForCausalLM"
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.model(**inputs).loss
        return loss


def _language_model(
    name: str, causal: str, sites: Mapping[str, int], fields: Callable[[Size], Fields]
) -> Model:
    """Returns the zoo's entry for the class `causal`, which has a head and a loss. The labels are
    the tokens that are not padding."""

    def with_head(size: Size) -> Fields:
        return {**fields(size), "vocab_size": size.classes}

    def inputs(size: Size, batch: int) -> Inputs:
        given = _decoder_inputs(size, batch)
        is_padding = given["attention_mask"] == 0
        return {**given, "labels": given["input_ids"].masked_fill(is_padding, -100)}

    model = _model(name, DECODER, {**sites, "cross_entropy": 1}, with_head, inputs, causal)
    return replace(model, build=lambda size, dropout: _Loss(model.build(size, dropout)))


def _common_fields(size: Size) -> Fields:
    return {
        "vocab_size": size.vocabulary,
        "hidden_size": size.width,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": size.heads,
        "intermediate_size": 4 * size.width,
        # There are more positions than tokens, because RoBERTa numbers positions from its padding
        # id on, and Longformer pads sequences to whole windows.
        "max_position_embeddings": 2 * size.length,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _make_comparable(config: Any) -> None:
    """Removes dropout, and replaces ReLU by GELU: whether a ReLU passes on the gradient of an input
    near 0 is decided by rounding, and one such element changes T5's gradients by 4e-4."""
    for name, value in list(vars(config).items()):
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
        elif value == "relu":
            setattr(config, name, "gelu")
        elif name.endswith("_config") and hasattr(value, "to_dict"):
            _make_comparable(value)


def _encoder_inputs(size: Size, batch: int) -> Inputs:
    return {"input_ids": tokens(size, batch), "attention_mask": padding(size, batch)}


def _decoder_inputs(size: Size, batch: int) -> Inputs:
    return {**_encoder_inputs(size, batch), "use_cache": False}


def _encoder_decoder_inputs(size: Size, batch: int) -> Inputs:
    return {**_decoder_inputs(size, batch), "decoder_input_ids": tokens(size, batch)}


def _image(size: Size, batch: int) -> Inputs:
    side = image_side(size)
    return {"pixel_values": torch.randn(batch, 3, side, side)}


_INPUTS = {
    ENCODER: _encoder_inputs,
    DECODER: _decoder_inputs,
    ENCODER_DECODER: _encoder_decoder_inputs,
    VISION: _image,
}

PATCH = 4  # the side of a patch in pixels


def image_side(size: Size) -> int:
    """Returns the pixels along a square image of at most `length` patches."""
    return PATCH * math.isqrt(size.length)


def _image_fields(size: Size) -> Fields:
    return {"image_size": image_side(size), "patch_size": PATCH}


# --- fields of configs with other names -----------------------------------------------------------


def _factorised_embedding(size: Size) -> Fields:
    return {"embedding_size": size.width // 2}


def _unfactorised_embedding(size: Size) -> Fields:
    return {"embedding_size": size.width}


def _deberta(size: Size) -> Fields:
    return {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": size.length // 2,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
    }


def _xlnet(size: Size) -> Fields:
    return {
        "max_position_embeddings": None,  # XLNet has no limit, and its config refuses one
        "d_head": size.width // size.heads,
        "d_inner": 4 * size.width,
    }


def _longformer(size: Size) -> Fields:
    return {"attention_window": [size.length // 4] * LAYERS, "pad_token_id": 1}


def _opt(size: Size) -> Fields:
    return {"ffn_dim": 4 * size.width, "word_embed_proj_dim": size.width}


def _grouped_heads(size: Size) -> Fields:
    return {"num_key_value_heads": size.heads // 2}


def _sliding_window(size: Size) -> Fields:
    return {**_grouped_heads(size), "sliding_window": size.length // 2}


def _gemma2(size: Size) -> Fields:
    return {**_sliding_window(size), "head_dim": size.width // size.heads}


def _t5(size: Size) -> Fields:
    return {
        "d_kv": size.width // size.heads,
        "d_ff": 4 * size.width,
        "num_decoder_layers": LAYERS,
    }


def _decoder_like_encoder(size: Size) -> Fields:
    return {
        "decoder_layers": LAYERS,
        "decoder_attention_heads": size.heads,
        "encoder_ffn_dim": 4 * size.width,
        "decoder_ffn_dim": 4 * size.width,
    }


def _whisper(size: Size) -> Fields:
    return {
        **_decoder_like_encoder(size),
        "max_source_positions": size.length,
        "max_target_positions": size.length,
        "decoder_start_token_id": 1,
    }


def _whisper_inputs(size: Size, batch: int) -> Inputs:
    mel_bins, frames = 80, 2 * size.length  # a convolution of stride 2 halves the length
    return {
        "input_features": torch.randn(batch, mel_bins, frames),
        "decoder_input_ids": tokens(size, batch),
        "use_cache": False,
    }


def _swin(size: Size) -> Fields:
    """Returns the settings of a model of two stages. The second stage is twice as wide as the
    first, and has a quarter of its patches."""
    return {
        "embed_dim": size.width // 2,
        "depths": [LAYERS, LAYERS],
        "num_attention_heads": [size.heads // 2, size.heads],
        "window_size": _swin_window(size),
        "image_size": _swin_side(size),
        "patch_size": PATCH,
    }


def _swin_window(size: Size) -> int:
    return min(math.isqrt(size.length), 7)


def _swin_side(size: Size) -> int:
    # The second stage has two windows along each side, because a single one would not be shifted.
    return 4 * _swin_window(size) * PATCH


def _swin_inputs(size: Size, batch: int) -> Inputs:
    side = _swin_side(size)
    return {"pixel_values": torch.randn(batch, 3, side, side)}


def _clip(size: Size) -> Fields:
    common = _common_fields(size)
    return {
        "text_config": common,
        "vision_config": {**common, **_image_fields(size)},
        "projection_dim": size.width,
    }


def _clip_inputs(size: Size, batch: int) -> Inputs:
    return {**_encoder_inputs(size, batch), **_image(size, batch)}


HUGGING_FACE: dict[str, Model] = {
    "bert": _model("Bert", ENCODER, {"softmax": 2, "layer_norm": 5}),
    "roberta": _model("Roberta", ENCODER, {"softmax": 2, "layer_norm": 5}),
    "albert": _model("Albert", ENCODER, {"softmax": 2, "layer_norm": 5}, _factorised_embedding),
    "electra": _model("Electra", ENCODER, {"softmax": 2, "layer_norm": 5}, _unfactorised_embedding),
    "distilbert": _model(
        "DistilBert",
        ENCODER,
        {"softmax": 2, "layer_norm": 5},
        lambda size: {"hidden_dim": 4 * size.width},
    ),
    "mpnet": _model("MPNet", ENCODER, {"softmax": 2, "layer_norm": 5}),
    "deberta_v2": _model("DebertaV2", ENCODER, {"softmax": 2, "layer_norm": 6}, _deberta),
    "xlnet": _model("XLNet", ENCODER, {"softmax": 2, "layer_norm": 4}, _xlnet),
    "longformer": _model("Longformer", ENCODER, {"softmax": 2, "layer_norm": 5}, _longformer),
    "gpt2": _model("GPT2", DECODER, {"softmax": 2, "layer_norm": 5}),
    "gpt2_loss": _language_model(
        "GPT2", "GPT2LMHeadModel", {"softmax": 2, "layer_norm": 5}, lambda size: {}
    ),
    "gpt_neox": _model("GPTNeoX", DECODER, {"softmax": 2, "layer_norm": 5}),
    "opt": _model("OPT", DECODER, {"softmax": 2, "layer_norm": 5}, _opt),
    "bloom": _model("Bloom", DECODER, {"softmax": 2, "layer_norm": 6}),
    "falcon": _model("Falcon", DECODER, {"softmax": 2, "layer_norm": 3}),
    "falcon_alibi": _model(
        "Falcon", DECODER, {"softmax": 2, "layer_norm": 3}, lambda size: {"alibi": True}
    ),
    "llama": _model("Llama", DECODER, {"softmax": 2, "rms_norm": 5}, _grouped_heads),
    "llama_loss": _language_model(
        "Llama", "LlamaForCausalLM", {"softmax": 2, "rms_norm": 5}, _grouped_heads
    ),
    "mistral": _model("Mistral", DECODER, {"softmax": 2, "rms_norm": 5}, _sliding_window),
    "qwen2": _model("Qwen2", DECODER, {"softmax": 2, "rms_norm": 5}, _grouped_heads),
    "gemma2": _model("Gemma2", DECODER, {"softmax": 2, "rms_norm": 9}, _gemma2),
    "phi": _model("Phi", DECODER, {"softmax": 2, "layer_norm": 3}),
    "t5": _model("T5", ENCODER_DECODER, {"softmax": 6, "rms_norm": 12}, _t5),
    "bart": _model(
        "Bart", ENCODER_DECODER, {"softmax": 6, "layer_norm": 12}, _decoder_like_encoder
    ),
    "whisper": _model(
        "Whisper", ENCODER_DECODER, {"softmax": 6, "layer_norm": 12}, _whisper, _whisper_inputs
    ),
    "vit": _model("ViT", VISION, {"softmax": 2, "layer_norm": 5}, _image_fields),
    "swin": _model("Swin", VISION, {"softmax": 4, "layer_norm": 11}, _swin, _swin_inputs),
    "clip": _model(
        "CLIP", VISION, {"softmax": 4, "layer_norm": 11, "l2_norm": 2}, _clip, _clip_inputs
    ),
}
