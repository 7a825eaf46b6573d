"""Prints the report's tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from .chips import CHIPS, SUSTAINED
from .kernels import Kernel
from .shapes import Shape

COLUMNS: dict[str, Callable[[Kernel], object]] = {
    "kernel": lambda k: k.name,
    "regs": lambda k: k.registers,
    "spill": lambda k: k.spills,
    "stack": lambda k: k.stack,
    "threads": lambda k: k.threads,
    "warps": lambda k: k.warps,
    "ld128": lambda k: f"{k.loads - k.narrow_loads}/{k.loads}",
    "st128": lambda k: f"{k.stores - k.narrow_stores}/{k.stores}",
    "KB": lambda k: k.kb_in_flight,
}
SHAPE_FIELDS = ("op", "dtype", "rows", "cols", "launches", "threads", "cluster")
SHAPE_COLUMNS: dict[str, Callable[[Shape], object]] = {
    **{name: attrgetter(name) for name in SHAPE_FIELDS},
    "bytes u": lambda shape: f"{shape.bytes_u:.2f}",
    "instructions": lambda shape: f"{shape.instructions:.0f}",
    "issue": lambda shape: f"{shape.issue:.2f}",
}


def print_tables(kernels: Sequence[Kernel]) -> None:
    for arch in dict.fromkeys(kernel.arch for kernel in kernels):
        chip = CHIPS[arch]
        print(
            f"\nsm_{arch} as on a {chip.name}: {chip.needed_in_flight / 1024:.0f} KB in flight a "
            f"multiprocessor keep {SUSTAINED * chip.peak_bandwidth / 1e12:.1f} TB/s busy"
        )
        print_table(COLUMNS, [kernel for kernel in kernels if kernel.arch == arch])


def print_table(columns: dict[str, Callable[[Any], object]], items: Sequence[Any]) -> None:
    rows = [[str(cell(item)) for cell in columns.values()] for item in items]
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for first, *rest in [list(columns), *rows]:
        cells = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        print(first.ljust(widths[0]), *cells, sep="  ")
