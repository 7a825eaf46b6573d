#!/usr/bin/env python3
"""Train a small transformer to translate, with or without the fused kernels, and score it.

    python tools/train_translation.py --use-fused-kernel false
    python tools/train_translation.py --use-fused-kernel true
    python tools/train_translation.py --use-fused-kernel compile

The data are German-English pairs from LibreOffice's help, unless --data names others. Curves,
checkpoints and scores land in --output; a run that was interrupted goes on with --resume. See
docs/translation.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

try:
    from rich.console import Console
    from translation import UserError, corpus, decoding, reporting, subwords
    from translation.checkpoints import Checkpoints
    from translation.files import write_atomically
    from translation.model import FUSED_KERNEL, ModelConfig, build_model, training_loss
    from translation.training import Trainer, TrainingConfig, autocast
except ModuleNotFoundError as error:
    if error.name in (None, "translation"):
        raise
    sys.exit(
        f"train_translation needs the package {error.name!r}, which is not installed; "
        "run: pip install --no-build-isolation -e '.[translation]'"
    )

SAMPLES = 5  # translations that are printed

Config = TypeVar("Config", ModelConfig, TrainingConfig)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_arguments(argv)
    try:
        run(args)
    except UserError as error:
        sys.exit(f"train_translation: {error}")


def run(args: argparse.Namespace) -> None:
    """Load, train, score."""
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    checkpoints = Checkpoints(args.output)
    if checkpoints.exist() and not args.resume:
        raise UserError(
            f"--output {args.output} holds a checkpoint; pass --resume to go on, or another folder"
        )
    pairs = corpus.load_corpus(args.data, args.languages, args.cache)
    console.print(f"{args.data}: {pairs.describe()}", markup=False)
    split = corpus.split_by_target(pairs.pairs)
    pieces, data_hash = subwords.load_subwords(split.train, args.vocabulary, args.cache)
    parts = [
        subwords.encode(part, pieces, args.positions)
        for part in (split.train, split.valid, split.test)
    ]
    for name, part in zip(("training", "validation", "test"), parts, strict=True):
        console.print(
            f"  {name}: {len(part):,} pairs; {part.too_long:,} longer than "
            f"{args.positions} tokens left out"
        )
    trainer = build_trainer(args, *parts[:2], data_hash)
    if args.resume:
        resume(trainer, checkpoints, console)
    steps = trainer.run(args.epochs, checkpoints, args.checkpoint_every)
    reporting.follow(steps, trainer, args.epochs, args.output, console)
    score(trainer, pieces, parts[2], args, console)


def build_trainer(
    args: argparse.Namespace,
    train: subwords.Sequences,
    valid: subwords.Sequences,
    data_hash: str,
) -> Trainer:
    """Model and optimizer as the seed makes them."""
    torch.manual_seed(args.seed)
    model = build_model(config_of(ModelConfig, args), args.use_fused_kernel).to(args.device)
    return Trainer(
        model,
        training_loss(model, args.use_fused_kernel),
        subwords.to_tensors(train, args.positions),
        subwords.to_tensors(valid, args.positions),
        config_of(TrainingConfig, args),
        data_hash,
    )


def config_of(kind: type[Config], args: argparse.Namespace) -> Config:
    """A config whose fields are arguments."""
    return kind(**{field.name: getattr(args, field.name) for field in dataclasses.fields(kind)})


def resume(trainer: Trainer, checkpoints: Checkpoints, console: Console) -> None:
    """Go on from the newest checkpoint, or begin where there is none yet."""
    if not checkpoints.exist():
        console.print("no checkpoint yet: training begins")
        return
    trainer.load(checkpoints.load())
    for warning in checkpoints.warnings:
        console.print(f"warning: {warning}", markup=False)
    console.print(f"training goes on after step {len(trainer.records)}")


def score(
    trainer: Trainer,
    pieces: subwords.SentencePieceProcessor,
    test: subwords.Sequences,
    args: argparse.Namespace,
    console: Console,
) -> None:
    """Translate held-out pairs; print and write BLEU and some translations."""
    pairs, prompts = test.pairs[: args.bleu_pairs], test.prompts[: args.bleu_pairs]
    if not pairs:
        console.print("no held-out pairs: no BLEU")
        return
    sources, references = zip(*pairs, strict=True)
    with autocast(trainer.device, args.dtype), console.status("translating"):
        found = {
            "greedy": decoding.translate(trainer.model, pieces, prompts, 1),
            f"beam of {args.beam}": decoding.translate(trainer.model, pieces, prompts, args.beam),
        }
    scores = {name: decoding.bleu(texts, references) for name, texts in found.items()}
    scores["the source, copied"] = decoding.bleu(sources, references)
    reporting.print_samples(
        list(zip(sources, references, found[f"beam of {args.beam}"], strict=True))[:SAMPLES],
        console,
    )
    reporting.print_scores(scores, len(pairs), console)
    result = {
        "arguments": vars(args),
        "torch": torch.__version__,
        "epochs": [epoch._asdict() for epoch in trainer.epochs],
        "bleu_pairs": len(pairs),
        "bleu": scores,
    }
    write_atomically(
        args.output / "result.json", json.dumps(result, indent=2, default=str).encode() + b"\n"
    )


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_run_arguments(parser)
    _add_data_arguments(parser)
    _add_config_arguments(parser)
    args = parser.parse_args(argv)
    if args.embedding % args.heads:
        parser.error(f"--embedding {args.embedding} is no multiple of --heads {args.heads}")
    if args.device.type == "cuda" and not torch.cuda.is_available():
        parser.error(f"--device {args.device}: this torch sees no GPU; python -m fusedops env")
    return args


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--use-fused-kernel", type=str.lower, choices=FUSED_KERNEL, default="compile",
        help="false: plain PyTorch; true: the model calls fusedops' operators; compile: the plain "
        'model through torch.compile(backend="fusedops")',
    )  # fmt: skip
    add("--device", type=_device, default="cpu", help="cpu, cuda or cuda:N")
    add("--epochs", type=_positive, default=1, help="until there were as many altogether")
    add("--resume", action="store_true", help="go on from --output's newest checkpoint")
    add("--checkpoint-every", type=_positive, default=100, metavar="STEPS", help="and each epoch")
    add("--output", type=Path, default=Path("runs/translation"), help="folder of the results")
    add("--bleu-pairs", type=_positive, default=500, help="test pairs that are translated, at most")
    add("--beam", type=_positive, default=4, help="width of the beam search")


def _add_data_arguments(parser: argparse.ArgumentParser) -> None:
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


_positive = _checked(int, lambda value: value > 0, "an integer above 0")
_probability = _checked(float, lambda value: 0 <= value < 1, "a number from 0 to below 1")
_rate = _checked(float, lambda value: 0 < value < math.inf, "a number above 0")
_device = _checked(torch.device, lambda value: value.type in ("cpu", "cuda"), "cpu, cuda or cuda:N")

CONFIG_OPTIONS = {
    "vocabulary": {"type": _positive, "help": "subwords"},
    "embedding": {"type": _positive, "help": "features of a token"},
    "heads": {"type": _positive, "help": "of attention"},
    "layers": {"type": _positive, "help": "each of attention and feed-forward network"},
    "feed_forward": {"type": _positive, "help": "features inside the feed-forward network"},
    "positions": {"type": _positive, "help": "tokens that the model sees, source and target"},
    "dropout": {"type": _probability, "help": "probability of a zero"},
    "batch_size": {"type": _positive, "help": "pairs"},
    "samples_per_epoch": {"type": _positive, "help": "pairs, at most"},
    "learning_rate": {"type": _rate, "help": "the highest, after warm-up"},
    "warm_up_steps": {"type": _positive, "help": "until then it rises, then falls with the root"},
    "seed": {"type": int, "help": "of initial values, order and dropout"},
    "dtype": {"choices": ["float32", "bfloat16"], "help": "bfloat16: autocast"},
}


if __name__ == "__main__":
    main()
