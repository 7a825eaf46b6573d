"""The set-up of a run: pairs as subwords, the model and its optimizer."""

from __future__ import annotations

import argparse
from typing import NamedTuple

import torch
from rich.console import Console
from sentencepiece import SentencePieceProcessor

from translation import corpus, subwords
from translation.arguments import config_of
from translation.model import FusedKernel, ModelConfig, build_model, training_loss
from translation.training import Batch, Trainer, TrainingConfig


class Data(NamedTuple):
    """Pairs as subwords; `hash` identifies the training pairs and the vocabulary."""

    pieces: SentencePieceProcessor
    hash: str
    train: Batch
    valid: Batch
    test: subwords.Sequences


def load_data(args: argparse.Namespace, console: Console) -> Data:
    """The pairs that `args` select. Raises UserError if there are none."""
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
    train, valid, test = parts
    train, valid = (subwords.to_tensors(part, args.positions) for part in (train, valid))
    return Data(pieces, data_hash, train, valid, test)


def build_trainer(args: argparse.Namespace, fused_kernel: FusedKernel, data: Data) -> Trainer:
    """The trainer with model and optimizer, initialised from the seed."""
    torch.manual_seed(args.seed)
    model = build_model(config_of(ModelConfig, args), fused_kernel).to(args.device)
    return Trainer(
        model,
        training_loss(model, fused_kernel),
        data.train,
        data.valid,
        config_of(TrainingConfig, args),
        data.hash,
    )
