"""Describes the models in the zoo: their sizes, inputs and how to build them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

ENCODER, DECODER, ENCODER_DECODER = "encoder", "decoder", "encoder-decoder"
VISION, PLAIN = "vision", "plain"

# Every encoder and decoder has two layers, whatever its size. A model then has the same softmaxes
# and norms in tests and in benchmarks, and its first layer is not its last.
LAYERS = 2

Inputs = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """The size of a model and its inputs.

    Args:
        width: the features of a token; feed-forward layers are four times as wide.
        heads: the number of attention heads.
        vocabulary: the rows of the token embedding in models without a language model's head.
        length: the tokens of a sequence, or approximately the patches of an image.
        classes: the rows of a language model's head, and of the token embedding in such a model.
    """

    width: int
    heads: int
    vocabulary: int
    length: int
    classes: int


TINY = Size(width=32, heads=4, vocabulary=64, length=16, classes=97)
# The sizes of GPT-2 small and BERT base. Only language models with a head have GPT-2's vocabulary,
# as `classes`: in a model of two layers the embedding of so many tokens outweighs the layers.
BASE = Size(width=768, heads=12, vocabulary=4096, length=512, classes=50257)


@dataclass(frozen=True)
class Model:
    """A model with random weights. Its attention is several calls, with a softmax among them.

    Args:
        kind: ENCODER, DECODER, ENCODER_DECODER, VISION or PLAIN.
        sites: kind of softmax, norm or cross entropy -> how many of them the model computes.
        build: a function of a size, and of whether the model has its default dropout. Without it,
            two runs of a training step can be compared. Returns the model in training mode.
        inputs: a function of a size and a number of sequences. Returns the named inputs. If the
            model takes a padding mask, the last quarter of the first sequence is padding.
    """

    kind: str
    sites: Mapping[str, int]
    build: Callable[[Size, bool], nn.Module]
    inputs: Callable[[Size, int], Inputs]


def tokens(size: Size, batch: int) -> Tensor:
    """Returns random token ids. The first three ids do not occur, because they are special tokens
    in the configs."""
    return torch.randint(3, size.vocabulary, (batch, size.length))


def padding(size: Size, batch: int) -> Tensor:
    """Returns a padding mask, which is 1 where there is a token. It is 0 in the last quarter of the
    first sequence."""
    mask = torch.ones(batch, size.length, dtype=torch.long)
    mask[0, size.length - size.length // 4 :] = 0
    return mask


def features(size: Size, batch: int) -> Tensor:
    """Returns random embeddings of tokens."""
    return torch.randn(batch, size.length, size.width)


def cast(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    """Returns the inputs, of which floating-point tensors are cast to `dtype`."""
    floating = {name: value for name, value in inputs.items() if _is_floating(value)}
    return inputs | {name: value.to(dtype) for name, value in floating.items()}


def main_tensors(output: Any) -> list[Tensor]:
    """Returns the floating-point tensors in a model's result, which may be nested."""
    return [leaf for leaf in tree_leaves(output) if _is_floating(leaf)]


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
