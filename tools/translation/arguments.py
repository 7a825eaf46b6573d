"""The arguments that the translation tools share."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from translation.model import ModelConfig
from translation.training import TrainingConfig

Config = TypeVar("Config", ModelConfig, TrainingConfig)


def parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """A tool's own arguments, which its parser has, and those that all share.

    Ends the program where they do not go together, or not with this machine.
    """
    _add_data_arguments(parser)
    _add_config_arguments(parser)
    args = parser.parse_args(argv)
    if args.embedding % args.heads:
        parser.error(f"--embedding {args.embedding} is no multiple of --heads {args.heads}")
    if args.device.type == "cuda" and not torch.cuda.is_available():
        parser.error(f"--device {args.device}: this torch sees no GPU; python -m fusedops env")
    return args


def _add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """Where pairs come from, what is kept of them, and where they go."""
    add = parser.add_argument
    add(
        "--data", default="auto",
        help="auto: LibreOffice's help, from Debian's archive; FILE.tsv: lines of "
        "source<TAB>target; hf:NAME: a data set of the Hugging Face hub",
    )  # fmt: skip
    add(
        "--languages", nargs=2, default=["de", "en"], metavar=("SOURCE", "TARGET"),
        help="of auto and hf:NAME",
    )  # fmt: skip
    add(
        "--cache", type=Path, default=Path.home() / ".cache" / "fusedops",
        help="folder of what is fetched and of subwords",
    )  # fmt: skip
    add("--device", type=device, default="cpu", help="cpu, cuda or cuda:N")


def _add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """One for each field of the configs, with its default."""
    for kind, title in ((ModelConfig, "the model"), (TrainingConfig, "training")):
        group = parser.add_argument_group(title)
        for field in dataclasses.fields(kind):
            name = field.name.replace("_", "-")
            group.add_argument(f"--{name}", default=field.default, **CONFIG_OPTIONS[field.name])


def _checked(
    convert: Callable[[str], Any], accepts: Callable[[Any], bool], wanted: str
) -> Callable[[str], Any]:
    """A type for argparse whose errors say what is wanted."""

    def parse(text: str) -> Any:
        try:
            value = convert(text)
        except (ValueError, RuntimeError):
            value = None
        if value is None or not accepts(value):
            raise argparse.ArgumentTypeError(f"{text!r}, wanted {wanted}")
        return value

    return parse


positive = _checked(int, lambda value: value > 0, "an integer above 0")
probability = _checked(float, lambda value: 0 <= value < 1, "a number from 0 to below 1")
rate = _checked(float, lambda value: 0 < value < math.inf, "a number above 0")
device = _checked(torch.device, lambda value: value.type in ("cpu", "cuda"), "cpu, cuda or cuda:N")

CONFIG_OPTIONS = {
    "vocabulary": {"type": positive, "help": "subwords"},
    "embedding": {"type": positive, "help": "features of a token"},
    "heads": {"type": positive, "help": "of attention"},
    "layers": {"type": positive, "help": "each of attention and feed-forward network"},
    "feed_forward": {"type": positive, "help": "features inside the feed-forward network"},
    "positions": {"type": positive, "help": "tokens that the model sees, source and target"},
    "dropout": {"type": probability, "help": "probability of a zero"},
    "batch_size": {"type": positive, "help": "pairs"},
    "samples_per_epoch": {"type": positive, "help": "pairs, at most"},
    "learning_rate": {"type": rate, "help": "the highest, after warm-up"},
    "warm_up_steps": {"type": positive, "help": "until then it rises, then falls with the root"},
    "seed": {"type": int, "help": "of initial values, order and dropout"},
    "dtype": {"choices": ["float32", "bfloat16"], "help": "bfloat16: autocast"},
}


def config_of(kind: type[Config], args: argparse.Namespace) -> Config:
    """A config whose fields are arguments."""
    return kind(**{field.name: getattr(args, field.name) for field in dataclasses.fields(kind)})
