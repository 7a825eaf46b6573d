"""Sentence pairs from LibreOffice's help pages (MPL-2.0), as Debian and Ubuntu package them.

Pages have the same name, and paragraphs the same id, in every language.
"""

from __future__ import annotations

import html
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from fusedops.cli.errors import UserError
from fusedops.cli.files import write_atomically
from translation import Pair

PARAGRAPH = re.compile(r'<(p|h[1-6])\b[^>]*\bid="((?:par|hd)_[^"]*)"[^>]*>(.*?)</\1>', re.S)
SENTENCE_END = re.compile(r'(?<=[a-zß-ÿ\d)"”“»][.!?]) +(?=[A-ZÀ-Ý"„“«])')
TAG, SPACE = re.compile(r"<[^>]+>"), re.compile(r"\s+")
WORDS = range(3, 41)
MAX_LENGTH_RATIO = 2.5  # beyond it, few pairs are translations of each other


def fetch(languages: Sequence[str], cache: Path) -> Path:
    """A file with lines of source<TAB>target; created once, then taken from `cache`.

    It needs no root rights, because the packages are downloaded and unpacked, not installed. Raises
    UserError if they are not available.
    """
    path = cache / f"libreoffice-help-{'-'.join(languages)}.tsv"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            pairs = _download(languages, Path(folder))
        write_atomically(path, "".join(f"{s}\t{t}\n" for s, t in pairs).encode())
    return path


def _download(languages: Sequence[str], folder: Path) -> list[Pair]:
    source, target = ("en-US" if name == "en" else name for name in languages)
    packages = [f"libreoffice-help-{name.lower()}" for name in (source, target)]
    _run(["apt-get", "download", *packages], folder, packages)
    for package in folder.glob("*.deb"):
        _run(["dpkg-deb", "-x", package.name, "."], folder, packages)
    pairs = list(aligned(folder / "usr/share/libreoffice/help", source, target))
    if not pairs:
        raise UserError(
            f"--data auto: {' and '.join(packages)} have no pages in the known format; "
            "pass --data FILE.tsv, lines of source<TAB>target"
        )
    return pairs


def _run(command: list[str], folder: Path, packages: Sequence[str]) -> None:
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        output = getattr(error, "stderr", None) or str(error)
        raise UserError(
            f"--data auto takes {' and '.join(packages)} from Debian's or Ubuntu's archive, but "
            f"{command[0]} failed: {output.strip().splitlines()[-1]}\n"
            "Run `apt-get update` as root where there is a network, or pass --data FILE.tsv, "
            "lines of source<TAB>target"
        ) from error


def aligned(folder: Path, source: str, target: str) -> Iterator[Pair]:
    """The pairs from pages in two languages, one for each distinct target, in a fixed order."""
    seen = set()
    for page in sorted((folder / source / "text").rglob("*.html")):
        other = folder / target / page.relative_to(folder / source)
        if not other.exists():
            continue
        translations = dict(paragraphs(other))
        for key, text in paragraphs(page):
            for pair in _sentences(text, translations.get(key, "")):
                if _is_usable(*pair) and pair[1] not in seen:
                    seen.add(pair[1])
                    yield pair


def paragraphs(page: Path) -> Iterator[Pair]:
    """Id and plain text of each paragraph and heading of a page."""
    body = page.read_text(encoding="utf-8").partition('id="DisplayArea"')[2]
    for _, key, content in PARAGRAPH.findall(body):
        yield key, SPACE.sub(" ", html.unescape(TAG.sub("", content))).strip()


def _sentences(source: str, target: str) -> list[Pair]:
    """The pairs of sentences if both paragraphs have as many, else the pair of paragraphs."""
    sources, targets = SENTENCE_END.split(source), SENTENCE_END.split(target)
    if len(sources) != len(targets):
        return [(source, target)]
    return list(zip(sources, targets, strict=True))


def _is_usable(source: str, target: str) -> bool:
    lengths = len(source.split()), len(target.split())
    has_length = all(length in WORDS for length in lengths)
    return source != target and has_length and max(lengths) <= MAX_LENGTH_RATIO * min(lengths)
