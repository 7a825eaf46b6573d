"""Compares the instructions and bytes of each shape with their budget in sass_shapes.csv, so that a
change which increases them is noticed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .shapes import Shape
from .tables import read_csv

SHAPES = Path(__file__).parents[1] / "sass_shapes.csv"
TOLERANCE = 1.03  # the limit is the number in the file times this


@dataclass(frozen=True)
class ShapeBudget:
    """The budget of a shape. The fields have the same names and meanings as in `Shape`."""

    op: str
    dtype: str
    rows: int
    cols: int
    issue: float
    bytes_u: float


def read_shapes(path: Path = SHAPES) -> dict[tuple[str, str, int, int], ShapeBudget]:
    """Returns the budget of each shape, by operator, dtype, rows and columns."""
    found = read_csv(ShapeBudget, path)
    return {(row.op, row.dtype, row.rows, row.cols): row for row in found}


def shape_failures(
    rows: Iterable[Shape], budget: dict[tuple[str, str, int, int], ShapeBudget]
) -> Iterator[str]:
    """Yields a message about each shape that is not in the budget, and about each number that
    exceeds it."""
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
