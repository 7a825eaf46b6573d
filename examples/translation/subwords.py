"""Subword tokens, and the conversion of pairs to the sequences that the model trains on."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from torch import Tensor

from fusedops.cli.errors import UserError
from fusedops.cli.files import write_atomically
from translation import Pair
from translation.corpus import fingerprint
from translation.model import IGNORED, PAD

UNKNOWN, SEPARATOR, END = 1, 2, 3  # PAD is 0


def load_subwords(
    pairs: Sequence[Pair], vocabulary: int, cache: Path
) -> tuple[SentencePieceProcessor, str]:
    """A shared byte-pair encoding of both languages, trained on `pairs` or taken from `cache`.

    Returns it with the hash of pairs and vocabulary. Raises UserError if `pairs` have too few
    distinct pieces for `vocabulary`, or if the file in `cache` is damaged.

    Source: Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units" (2016).
    """
    if not pairs:
        raise UserError("--data: no pair is left to train with, wanted hundreds at least")
    key = fingerprint(pairs, "bpe", vocabulary)
    path = cache / f"subwords-{key}.model"
    if not path.exists():
        write_atomically(path, _train(pairs, vocabulary))
    return _load(path, vocabulary), key


def _load(path: Path, vocabulary: int) -> SentencePieceProcessor:
    problem = None
    try:
        pieces = SentencePieceProcessor(model_proto=path.read_bytes())
        if len(pieces) != vocabulary:
            problem = f"it has {len(pieces)} subwords, wanted {vocabulary}"
    except RuntimeError as error:
        problem = error
    if problem:
        raise UserError(f"--cache: {path} is damaged: {problem}; remove it to create it again")
    return pieces


def _train(pairs: Sequence[Pair], vocabulary: int) -> bytes:
    model = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=(sentence for pair in pairs for sentence in pair),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocabulary,
            character_coverage=1.0,
            pad_id=PAD,
            unk_id=UNKNOWN,
            bos_id=SEPARATOR,
            eos_id=END,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise UserError(
            f"--vocabulary {vocabulary} does not fit {len(pairs)} training pairs: "
            f"{str(error).rpartition('] ')[2]}"
        ) from error
    return model.getvalue()


@dataclass(frozen=True)
class Sequences:
    """Pairs as tokens: prompt (source and separator) and target with its end."""

    pairs: list[Pair]
    prompts: list[list[int]]
    targets: list[list[int]]
    too_long: int  # pairs that were left out

    def __len__(self) -> int:
        return len(self.pairs)


def encode(pairs: Sequence[Pair], subwords: SentencePieceProcessor, positions: int) -> Sequences:
    """The pairs that fit into the model's positions. The last token is only predicted, so that a
    pair may have one token more."""
    prompts = [[*ids, SEPARATOR] for ids in subwords.encode([source for source, _ in pairs])]
    targets = [[*ids, END] for ids in subwords.encode([target for _, target in pairs])]
    together = zip(pairs, prompts, targets, strict=True)
    fitting = [row for row in together if len(row[1]) + len(row[2]) <= positions + 1]
    columns = [list(column) for column in zip(*fitting, strict=True)] or [[], [], []]
    return Sequences(*columns, too_long=len(pairs) - len(fitting))


def to_tensors(sequences: Sequences, positions: int) -> tuple[Tensor, Tensor]:
    """Inputs and labels, ``[pairs, positions]``. The label is the next token if that belongs to the
    target, else ``IGNORED``."""
    tokens = torch.full((len(sequences), positions + 1), PAD)
    labels = torch.full((len(sequences), positions + 1), IGNORED)
    rows = zip(sequences.prompts, sequences.targets, strict=True)
    for row, (prompt, target) in enumerate(rows):
        end = len(prompt) + len(target)
        tokens[row, :end] = torch.tensor(prompt + target)
        labels[row, len(prompt) : end] = torch.tensor(target)
    return tokens[:, :-1].contiguous(), labels[:, 1:].contiguous()
