"""The budget of shapes: instructions and bytes that later changes may not exceed unnoticed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .shapes import Shape
from .tables import read_csv

SHAPES = Path(__file__).parents[1] / "sass_shapes.csv"
TOLERANCE = 1.03  # the limit is the number in the file, times this


@dataclass(frozen=True)
class ShapeBudget:
    """The limits of a shape; its fields have the names that they have in Shape."""

    op: str
    dtype: str
    rows: int
    cols: int
    issue: float
    bytes_u: float


def read_shapes(path: Path = SHAPES) -> dict[tuple[str, str, int, int], ShapeBudget]:
    """Returns the budget of each shape."""
    found = read_csv(ShapeBudget, path)
    return {(row.op, row.dtype, row.rows, row.cols): row for row in found}


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
