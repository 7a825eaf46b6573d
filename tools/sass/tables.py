"""Reads and writes CSV files whose columns are the fields of a dataclass."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from .errors import ReportError

Row = TypeVar("Row")


def read_csv(kind: type[Row], path: Path) -> list[Row]:
    """Returns the rows of a file that write_csv() wrote, as instances of `kind`. Raises ReportError
    if the file is missing or damaged."""
    convert = get_type_hints(kind)
    try:
        with path.open(newline="") as file:
            rows = csv.DictReader(file)
            return [kind(**{key: convert[key](row[key]) for key in row}) for row in rows]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ReportError(
            f"{path} cannot be read: {type(error).__name__}: {error}; run --write-budget"
        ) from error


def write_csv(kind: type, rows: Sequence[Any], path: Path) -> None:
    """Writes a line with the fields of `kind` for each row. The rows may be of another class that
    has these fields too."""
    text = io.StringIO()
    names = [field.name for field in fields(kind)]
    writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {key: f"{v:.4g}" if isinstance(v, float) else v for key, v in vars(row).items()}
        for row in rows
    )
    path.write_text(text.getvalue())
