"""Compares hot kernels, which are those for 16-byte vectors, with their budget in sass_budget.csv,
and the instructions and bytes of each shape with theirs in sass_shapes.csv, so that a change which
increases them is noticed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .kernels import Kernel
from .shapes import Shape
from .tables import read_csv

BUDGET = Path(__file__).parents[1] / "sass_budget.csv"
SHAPES = BUDGET.with_name("sass_shapes.csv")
TOLERANCE = 1.03  # the limit of a shape is the number in the file times this


@dataclass(frozen=True)
class Budget:
    """The budget of a hot kernel: at most as many registers and narrow accesses, and at least as
    many bytes in flight. A narrow access has less than 128 bits."""

    arch: str
    kernel: str
    registers: int
    kb_in_flight: int
    narrow_loads: int
    narrow_stores: int

    @classmethod
    def of(cls, kernel: Kernel) -> Budget:
        return cls(
            kernel.arch,
            kernel.name,
            kernel.allocated_registers,
            kernel.kb_in_flight,
            kernel.narrow_loads,
            kernel.narrow_stores,
        )


def read_budget(path: Path = BUDGET) -> dict[tuple[str, str], Budget]:
    """Returns the budget of each (architecture, kernel)."""
    return {(row.arch, row.kernel): row for row in read_csv(Budget, path)}


def local_memory_failures(kernels: Iterable[Kernel]) -> Iterator[str]:
    """Yields a message about each kernel with spills or a stack, which no kernel should have."""
    for kernel in kernels:
        if kernel.spills or kernel.stack:
            yield (
                f"sm_{kernel.arch} {kernel.name}: {kernel.spills} spills, "
                f"{kernel.stack} bytes of stack, wanted none"
            )


def budget_failures(
    kernels: Iterable[Kernel], budget: dict[tuple[str, str], Budget]
) -> Iterator[str]:
    """Yields a message about each hot kernel that is not in the budget, and about each number that
    does not keep it."""
    for kernel in kernels:
        if not kernel.is_hot:
            continue
        allowed = budget.get((kernel.arch, kernel.name))
        if allowed is None:
            yield f"sm_{kernel.arch} {kernel.name}: not in {BUDGET.name}; run --write-budget"
            continue
        now = Budget.of(kernel)
        for column in ("registers", "narrow_loads", "narrow_stores", "kb_in_flight"):
            actual, limit = getattr(now, column), getattr(allowed, column)
            relation = "at least" if column == "kb_in_flight" else "at most"
            if actual < limit if relation == "at least" else actual > limit:
                name = f"sm_{kernel.arch} {kernel.name}"
                yield f"{name}: {column} is {actual}, wanted {relation} {limit}"


# --- shapes -------------------------------------------------------------------------------------


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
