"""Sentence pairs: from a file, from Debian's LibreOffice help, or from the Hugging Face hub."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusedops.cli.errors import UserError
from translation import Pair, libreoffice

HUB = "hf:"
SHOWN = 3  # the number of malformed lines that a message lists


@dataclass(frozen=True)
class Corpus:
    """The pairs of a source, and why lines were skipped, by their numbers, which start at 1."""

    pairs: list[Pair]
    malformed: dict[int, str]

    @classmethod
    def of(cls, lines: Iterable[Pair | str]) -> Corpus:
        """The corpus of lines, each of which is a pair or the reason why it has none."""
        numbered = dict(enumerate(lines, 1))
        malformed = {number: line for number, line in numbered.items() if isinstance(line, str)}
        return cls([line for line in numbered.values() if not isinstance(line, str)], malformed)

    def describe(self) -> str:
        """The number of pairs, and the lines that were skipped."""
        text = f"{len(self.pairs):,} sentence pairs"
        if self.malformed:
            quoted = [f"line {number}: {reason}" for number, reason in self.malformed.items()]
            more = ["..."] if len(quoted) > SHOWN else []
            text += f"; {len(quoted):,} malformed lines skipped: "
            text += "; ".join(quoted[:SHOWN] + more)
        return text


@dataclass(frozen=True)
class Split:
    """Pairs for training, validation and test."""

    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]


def load_corpus(data: str, languages: Sequence[str], cache: Path) -> Corpus:
    """The pairs that `--data` selects: "auto", "hf:NAME" or a file.

    Raises UserError with the fix if there are none.
    """
    if data == "auto":
        lines = read_tsv(libreoffice.fetch(languages, cache))
    elif data.startswith(HUB):
        lines = read_hub(data.removeprefix(HUB), languages)
    else:
        lines = read_tsv(Path(data))
    corpus = Corpus.of(lines)
    if not corpus.pairs:
        raise UserError(f"--data {data}: {corpus.describe()}; wanted lines of source<TAB>target")
    return corpus


def read_tsv(path: Path) -> Iterator[Pair | str]:
    """Reads lines of source<TAB>target in UTF-8."""
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError for an invalid file name
        raise UserError(
            f"--data {path}: {getattr(error, 'strerror', None) or error}; wanted a file of lines "
            "source<TAB>target, hf:NAME, or auto"
        ) from error
    return map(_parse, content.splitlines())


def _parse(line: bytes) -> Pair | str:
    """The pair of a line, or why it has none."""
    try:
        fields = line.decode("utf-8-sig").split("\t")
    except UnicodeDecodeError:
        return "is not UTF-8"
    if len(fields) != 2:
        return f"has {len(fields) - 1} tabs, wanted 1"
    return _pair(*fields)


def _pair(source: str, target: str) -> Pair | str:
    source, target = source.strip(), target.strip()
    if not (source and target):
        return f"has an empty {'target' if source else 'source'}"
    return source, target


def read_hub(name: str, languages: Sequence[str]) -> Iterator[Pair | str]:
    """Reads the split "train" of a data set of the Hugging Face hub with a column `translation`."""
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise UserError(f"--data {HUB}{name} needs `pip install datasets`") from error
    try:
        rows = datasets.load_dataset(name, split="train")
    except (OSError, ValueError) as error:  # no network, no such data set, no such split
        raise UserError(
            f"--data {HUB}{name}: {error}; without a network pass --data FILE.tsv or auto"
        ) from error
    return (_parse_row(row, languages) for row in rows)


def _parse_row(row: dict[str, Any], languages: Sequence[str]) -> Pair | str:
    translation = row.get("translation")
    if not isinstance(translation, dict):
        return f"has no translation, only {', '.join(row)}"
    if lacking := [name for name in languages if not isinstance(translation.get(name), str)]:
        return f"has no {' and no '.join(lacking)}, only {', '.join(translation)}"
    return _pair(*(translation[name] for name in languages))


def split_by_target(pairs: Iterable[Pair]) -> Split:
    """Takes a fiftieth each for validation and test, by a hash of the target: the split is the same
    on every machine, and pairs with the same target are in the same part.
    """
    split = Split([], [], [])
    for pair in pairs:
        digest = hashlib.md5(pair[1].encode(), usedforsecurity=False).digest()
        part = {0: split.valid, 1: split.test}.get(int.from_bytes(digest, "big") % 50, split.train)
        part.append(pair)
    return split


def fingerprint(pairs: Iterable[Pair], *settings: object) -> str:
    """A hash of the pairs, in their order, and of the settings."""
    digest = hashlib.sha256(repr(settings).encode())
    for source, target in pairs:
        digest.update(f"{source}\t{target}\n".encode())
    return digest.hexdigest()[:16]
