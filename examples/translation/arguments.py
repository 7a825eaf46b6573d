"""The command-line arguments that the translation tools share."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from fusedops.cli import options
from fusedops.cli.errors import Parser
from fusedops.cli.options import positive, probability, rate
from translation.model import ModelConfig
from translation.training import TrainingConfig

SPECIAL = 4  # special subwords: padding, unknown, separator and end

Config = TypeVar("Config", ModelConfig, TrainingConfig)


def make_parser(doc: str, output: str, what: str) -> argparse.ArgumentParser:
    """A parser with the description and the folder of results that a tool has."""
    formatter = argparse.ArgumentDefaultsHelpFormatter
    parser = Parser(description=doc.partition("\n")[0], formatter_class=formatter)
    parser.add_argument("--output", type=options.output_folder, default=output, help=what)
    return parser


def parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parses a tool's own arguments, which `parser` has already, and the shared ones.

    Raises UsageError if they cannot be combined, or exceed this machine's memory.
    """
    _add_data_arguments(parser)
    _add_config_arguments(parser)
    args = parser.parse_args(argv)
    if args.embedding % args.heads:
        parser.error(f"--embedding {args.embedding} is not a multiple of --heads {args.heads}")
    source, target = args.languages
    if source == target:
        parser.error(f"--languages: got {source} twice, wanted two languages")
    if args.device.type == "cpu":
        options.require_memory(
            "--vocabulary, --embedding and the other sizes: a step", _bytes(args)
        )
    return args


def _bytes(args: argparse.Namespace) -> int:
    """A lower bound of a step's memory: weights, gradients, Adam's moments and activations."""
    layer = args.embedding * (4 * args.embedding + 2 * args.feed_forward)
    weights = args.embedding * (2 * args.vocabulary + args.positions) + args.layers * layer
    tokens = args.batch_size * args.positions
    activations = tokens * (args.vocabulary + args.layers * args.heads * args.positions)
    return 4 * (4 * weights + 2 * activations)


def _add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments about the data and the device."""
    add = parser.add_argument
    add(
        "--data", default="auto",
        help="auto: LibreOffice's help, from Debian's archive; FILE.tsv: lines of "
        "source<TAB>target; hf:NAME: a data set of the Hugging Face hub",
    )  # fmt: skip
    add(
        "--languages", nargs=2, type=language, default=["de", "en"], metavar=("SOURCE", "TARGET"),
        help="of auto and hf:NAME",
    )  # fmt: skip
    add(
        "--cache", type=options.output_folder, default=str(Path.home() / ".cache" / "fusedops"),
        help="folder of what is fetched and of subwords",
    )  # fmt: skip
    add("--device", type=options.device, default="cpu", help="cpu, cuda or cuda:N")


def _add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares an argument for each field of the configs, with its default."""
    for kind, title in ((ModelConfig, "the model"), (TrainingConfig, "training")):
        group = parser.add_argument_group(title)
        for field in dataclasses.fields(kind):
            name = field.name.replace("_", "-")
            group.add_argument(f"--{name}", default=field.default, **CONFIG_OPTIONS[field.name])


#: Part of a Debian package's name, or a key of a data set. The pattern excludes paths and options
#: of apt-get.
language = options.checked(
    str, re.compile(r"[A-Za-z][A-Za-z0-9_-]*").fullmatch, "a language such as de or pt-BR"
)

vocabulary = options.checked(
    int, lambda value: SPECIAL < value < 2**31, f"an integer above {SPECIAL}, the special subwords"
)

CONFIG_OPTIONS = {
    "vocabulary": {"type": vocabulary, "help": "subwords"},
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
    "seed": {"type": options.seed, "help": "of initial values, order and dropout"},
    "dtype": {"choices": ["float32", "bfloat16"], "help": "bfloat16: autocast"},
}


def config_of(kind: type[Config], args: argparse.Namespace) -> Config:
    """A config whose fields are arguments."""
    return kind(**{field.name: getattr(args, field.name) for field in dataclasses.fields(kind)})
