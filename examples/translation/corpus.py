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
class Malformed:
    """The number, starting at 1, of a line without a valid pair, and the reason."""

    line: int
    reason: str


@dataclass(frozen=True)
class Corpus:
    """The pairs of a source, and the lines that were skipped."""

    pairs: list[Pair]
    malformed: list[Malformed]

    @classmethod
    def of(cls, lines: Iterable[Pair | Malformed]) -> Corpus:
        lines = list(lines)
        skipped = [line for line in lines if isinstance(line, Malformed)]
        return cls([line for line in lines if not isinstance(line, Malformed)], skipped)

    def describe(self) -> str:
        """The number of pairs, and the lines that were skipped."""
        text = f"{len(self.pairs):,} sentence pairs"
        if self.malformed:
            quoted = [f"line {line.line}: {line.reason}" for line in self.malformed[:SHOWN]]
            more = ["..."] if len(self.malformed) > SHOWN else []
            text += f"; {len(self.malformed):,} malformed lines skipped: "
            text += "; ".join(quoted + more)
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


def read_tsv(path: Path) -> Iterator[Pair | Malformed]:
    """Reads lines of source<TAB>target in UTF-8."""
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError for an invalid file name
        raise UserError(
            f"--data {path}: {getattr(error, 'strerror', None) or error}; wanted a file of lines "
            "source<TAB>target, hf:NAME, or auto"
        ) from error
    for number, line in enumerate(content.splitlines(), 1):
        yield _parse(number, line)


def _parse(number: int, line: bytes) -> Pair | Malformed:
    try:
        fields = line.decode("utf-8-sig").split("\t")
    except UnicodeDecodeError:
        return Malformed(number, "is not UTF-8")
    if len(fields) != 2:
        return Malformed(number, f"has {len(fields) - 1} tabs, wanted 1")
    return _pair(number, *fields)


def _pair(number: int, source: str, target: str) -> Pair | Malformed:
    source, target = source.strip(), target.strip()
    if not (source and target):
        return Malformed(number, f"has an empty {'target' if source else 'source'}")
    return source, target


def read_hub(name: str, languages: Sequence[str]) -> Iterator[Pair | Malformed]:
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
    for number, row in enumerate(rows, 1):
        yield _parse_row(number, row, languages)


def _parse_row(number: int, row: dict[str, Any], languages: Sequence[str]) -> Pair | Malformed:
    translation = row.get("translation")
    if not isinstance(translation, dict):
        return Malformed(number, f"has no translation, only {', '.join(row)}")
    if lacking := [name for name in languages if not isinstance(translation.get(name), str)]:
        return Malformed(
            number, f"has no {' and no '.join(lacking)}, only {', '.join(translation)}"
        )
    return _pair(number, *(translation[name] for name in languages))


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
