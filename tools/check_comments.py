"""`python tools/check_comments.py`: comments and docstrings that begin with a bare "Of ...".

Such a sentence has no subject. Prints each with its file and line, and exits with 1 if there is
one.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUFFIXES = {".py", ".h", ".cpp", ".cu"}
#: The first line of a comment or docstring. A line after another comment line continues a sentence.
BARE_OF = re.compile(r'(//|#:?|""") ?Of ')
COMMENT = re.compile(r"\s*(//|#)")


def source_files() -> list[Path]:
    """The sources and headers of the project, without build outputs."""
    folders = [ROOT / name for name in ("csrc", "examples", "fusedops", "tests", "tools")]
    found = [path for folder in folders for path in sorted(folder.rglob("*"))]
    return [path for path in [*found, ROOT / "setup.py"] if path.suffix in SUFFIXES]


def bare_lines(text: str) -> list[int]:
    """The numbers, starting at 1, of the lines with a comment that begins with "Of"."""
    lines = ["", *text.splitlines()]
    return [
        number
        for number in range(1, len(lines))
        if BARE_OF.search(lines[number]) and not COMMENT.match(lines[number - 1])
    ]


def main() -> int:
    found = [
        f"{path.relative_to(ROOT)}:{number}: begins with a bare 'Of', wanted a sentence"
        for path in source_files()
        for number in bare_lines(path.read_text())
    ]
    print("\n".join(found), end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
