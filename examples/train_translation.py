#!/usr/bin/env python3
"""Train a small transformer to translate, with or without the fused kernels, and score it.

    python examples/train_translation.py --use-fused-kernel false
    python examples/train_translation.py --use-fused-kernel true
    python examples/train_translation.py --use-fused-kernel compile

The data are German-English pairs from LibreOffice's help, unless --data names others. Curves,
checkpoints and scores are written to --output. An interrupted run is continued with --resume. See
docs/translation.md.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence

import torch
from translation import arguments, decoding, reporting
from translation.checkpoints import Checkpoints
from translation.model import FUSED_KERNEL
from translation.setup import Data, build_trainer, load_data
from translation.training import Trainer, autocast

from fusedops.cli import options
from fusedops.cli.errors import UserError, end_in_one_line
from fusedops.cli.files import write_atomically

SAMPLES = 8  # the maximum of printed translations, evenly spread over the test pairs


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code. An error is one line on standard error."""
    return end_in_one_line("train_translation", lambda: run(parse_arguments(argv)))


def run(args: argparse.Namespace) -> int:
    """Loads the data, trains and scores."""
    console = reporting.make_console()
    checkpoints = Checkpoints(args.output)
    if checkpoints.exist() and not args.resume:
        raise UserError(
            f"--output {args.output} has a checkpoint; pass --resume to continue, or another folder"
        )
    data = load_data(args, console)
    trainer = build_trainer(args, args.use_fused_kernel, data)
    if args.resume:
        resume(trainer, checkpoints, console)
    steps = trainer.run(args.epochs, checkpoints, args.checkpoint_every)
    reporting.follow(steps, trainer, args.epochs, args.output, console)
    score(trainer, data, args, console)
    return 0


def resume(trainer: Trainer, checkpoints: Checkpoints, console: reporting.Console) -> None:
    """Continues from the newest checkpoint, or starts if there is none."""
    if not checkpoints.exist():
        console.print("no checkpoint yet: training begins")
        return
    trainer.load(checkpoints.load())
    for warning in checkpoints.warnings:
        console.print(f"warning: {warning}", markup=False)
    console.print(f"training goes on after step {len(trainer.records)}")


def score(
    trainer: Trainer, data: Data, args: argparse.Namespace, console: reporting.Console
) -> None:
    """Translates held-out pairs; prints and writes BLEU and some translations."""
    pairs, prompts = (rows[: args.bleu_pairs] for rows in (data.test.pairs, data.test.prompts))
    if not pairs:
        console.print("no held-out pairs: no BLEU")
        return
    sources, references = zip(*pairs, strict=True)
    with autocast(trainer.device, args.dtype), console.status("translating"):
        found = {
            "greedy": decoding.translate(trainer.model, data.pieces, prompts, 1),
            f"beam of {args.beam}": decoding.translate(
                trainer.model, data.pieces, prompts, args.beam
            ),
        }
    scores = {name: decoding.bleu(texts, references) for name, texts in found.items()}
    scores["the source, copied"] = decoding.bleu(sources, references)
    rows = list(zip(sources, references, found[f"beam of {args.beam}"], strict=True))
    reporting.print_samples(rows[:: math.ceil(len(rows) / SAMPLES)], console)
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
    parser = arguments.make_parser(__doc__, "runs/translation", "folder of the results")
    _add_run_arguments(parser)
    args = arguments.parse(parser, argv)
    if args.beam > args.vocabulary:
        parser.error(f"--beam {args.beam} is wider than --vocabulary {args.vocabulary}")
    return args


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--use-fused-kernel", type=str.lower, choices=FUSED_KERNEL, default="compile",
        help="false: plain PyTorch; true: the model calls fusedops' operators; compile: the plain "
        'model through torch.compile(backend="fusedops")',
    )  # fmt: skip
    add("--epochs", type=options.positive, default=1, help="in total, with those before --resume")
    add("--resume", action="store_true", help="continue from --output's newest checkpoint")
    add(
        "--checkpoint-every",
        type=options.positive,
        default=100,
        metavar="STEPS",
        help="and each epoch",
    )
    add(
        "--bleu-pairs",
        type=options.positive,
        default=500,
        help="test pairs that are translated, at most",
    )
    add("--beam", type=options.positive, default=4, help="width of the beam search")


if __name__ == "__main__":
    sys.exit(main())
