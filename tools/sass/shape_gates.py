"""The budget of shapes: instructions and bytes that later changes may not exceed unnoticed."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import ReportError
from .shapes import Shape

SHAPES = Path(__file__).parents[1] / "sass_shapes.csv"
TOLERANCE = 1.03  # times the number in the file is the limit


@dataclass(frozen=True)
class ShapeBudget:
    """The limits of a shape."""

    op: str
    dtype: str
    rows: int
    cols: int
    issue: float
    bytes_u: float

    @classmethod
    def of(cls, row: Shape) -> ShapeBudget:
        return cls(row.op, row.dtype, row.rows, row.cols, row.issue, row.bytes_u)


def read_shapes(path: Path = SHAPES) -> dict[tuple[str, str, int, int], ShapeBudget]:
    """Returns the budget of each shape. Raises ReportError if the file is missing or damaged."""
    try:
        with path.open(newline="") as file:
            rows = [
                ShapeBudget(
                    row["op"], row["dtype"], int(row["rows"]), int(row["cols"]),
                    float(row["issue"]), float(row["bytes_u"]),
                )
                for row in csv.DictReader(file)
            ]  # fmt: skip
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ReportError(
            f"{path} cannot be read: {type(error).__name__}: {error}; run --write-budget"
        ) from error
    return {(row.op, row.dtype, row.rows, row.cols): row for row in rows}


def shape_failures(
    rows: Iterable[Shape], budget: dict[tuple[str, str, int, int], ShapeBudget]
) -> Iterator[str]:
    """Yields messages about shapes that are not in the budget, or exceed it."""
    for row in rows:
        name = f"{row.op} {row.dtype} {row.rows} x {row.cols}"
        allowed = budget.get((row.op, row.dtype, row.rows, row.cols))
        if allowed is None:
            yield f"{name}: not in {SHAPES.name}; run --write-budget"
            continue
        for column in ("issue", "bytes_u"):
            now, limit = getattr(row, column), getattr(allowed, column) * TOLERANCE
            if now > limit:
                yield f"{name}: {column} is {now:.3f}, wanted at most {limit:.3f}"
