"""Makes Hugging Face models for `explain` from their config, without loading any weights."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from fusedops.cli.errors import UsageError, UserError
from fusedops.cli.options import MOST, positive

#: The default length of sequences, in tokens. It is shorter for models that take fewer.
_LENGTH = 512
#: The options that describe a call. Each is None unless it is given.
_OPTIONS = ("attention", "batch", "length")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options that describe a call of a Hugging Face model."""
    group = parser.add_argument_group("for a Hugging Face model")
    group.add_argument(
        "--attention",
        metavar="NAME",
        help="the attn_implementation, such as eager or sdpa; by default the model's own",
    )
    group.add_argument("--batch", type=positive, help="sequences or images (1)")
    group.add_argument(
        "--length",
        type=positive,
        help=f"tokens of a sequence ({_LENGTH}, or the most that the model takes)",
    )


def is_model(target: str) -> bool:
    """Returns whether a target of `explain` names a Hugging Face model, because it is a JSON file
    or a folder, or could be the id of a model on the Hub."""
    looks_like_id = re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", target) is not None
    try:
        path = Path(target)
        is_config = path.is_file() and path.suffix == ".json"
        is_folder = bool(target) and path.is_dir()
        return is_config or is_folder or (looks_like_id and path.suffix != ".py")
    except (OSError, ValueError):  # no file can have such a name
        return False


def refuse_options(args: argparse.Namespace) -> None:
    """Raises UsageError if an option describes the call of a Hugging Face model. FUNCTION, which
    `args.target` names, returns a model and inputs of its own."""
    for name in _OPTIONS:
        if (given := getattr(args, name)) is not None:
            raise UsageError(
                f"--{name}: got {given!r} with {args.target}, wanted no --{name}, which is for a "
                "Hugging Face model: FUNCTION itself returns the model and its inputs"
            )


@contextmanager
def example(args: argparse.Namespace) -> Iterator[tuple[nn.Module, dict[str, torch.Tensor]]]:
    """Yields the model of `args.target` and its named inputs, for the body of a `with` statement.

    The tensors of both have shapes and dtypes, but no elements, so that any model fits into memory.
    """
    model = _model(args.target, args.attention)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu")
        yield model, _inputs(model, args.batch or 1, args.length)


def _model(target: str, attention: str | None) -> nn.Module:
    """Returns the model that `target` names, on the meta device, or raises UserError."""
    import transformers

    transformers.logging.set_verbosity_error()
    try:
        config = transformers.AutoConfig.from_pretrained(target)
        architecture = getattr(transformers, next(iter(config.architectures or ()), ""), None)
        build = architecture._from_config if architecture else transformers.AutoModel.from_config
        with torch.device("meta"):
            model: nn.Module = build(config, attn_implementation=attention)
    except (OSError, ValueError, ImportError) as error:
        raise UserError(
            f"target: {target!r} gives no Hugging Face model: {error}; wanted FILE:FUNCTION, a "
            "folder with a config.json, or the id of a model on the Hub"
        ) from error
    return model


def _inputs(model: Any, batch: int, length: int | None) -> dict[str, torch.Tensor]:
    """Returns `batch` sequences of `length` token ids, by default at most _LENGTH, or images of the
    size that the config names. Raises UserError if the model takes neither, and UsageError if it
    takes no sequences of this length."""
    config, name = model.config, model.main_input_name
    if name == "pixel_values":
        size = config.image_size
        height, width = (size, size) if isinstance(size, int) else size
        return {name: torch.empty(batch, config.num_channels, height, width)}
    if name != "input_ids":
        raise UserError(
            f"target: {type(model).__name__} takes {name}, wanted a model that takes input_ids or "
            "pixel_values; write a FUNCTION that returns the model and its inputs"
        )
    most = getattr(config, "max_position_embeddings", None) or MOST
    if length and length > most:
        raise UsageError(
            f"--length: got {length}, wanted at most {most}, the max_position_embeddings of "
            f"{type(model).__name__}; change its config for more"
        )
    ids = torch.zeros(batch, length or min(_LENGTH, most), dtype=torch.int64)
    named = ("input_ids", "decoder_input_ids") if config.is_encoder_decoder else ("input_ids",)
    return dict.fromkeys(named, ids)
