"""What ops cost on a device, by the table that `python -m fusedops bench --policy` measures there.

A row is one provider ("inductor", "fusedops" or "copy") on one op, direction, dtype and size. Sizes
in between take the nearest row's time an element.
"""

from __future__ import annotations

import csv
import functools
import math
from dataclasses import dataclass
from pathlib import Path

import torch

FOLDER = Path(__file__).parent / "tables"
COLUMNS = ("op", "direction", "dtype", "rows", "cols", "provider", "median_ms", "bytes")

INDUCTOR, OURS, COPY = "inductor", "fusedops", "copy"


@dataclass(frozen=True)
class Cost:
    """Milliseconds of one op in one direction; `ms_per_byte` is a copy's, read and written."""

    inductor: float
    ours: float
    ms_per_byte: float


@dataclass(frozen=True)
class Size:
    """rows of cols elements each, of one dtype."""

    rows: int
    cols: int
    dtype: torch.dtype

    @property
    def elements(self) -> int:
        return self.rows * self.cols


def table_file(device: torch.device) -> Path:
    """Where the table of a device lies: one for all CPUs, one for each capability of GPUs."""
    if device.type != "cuda":
        return FOLDER / f"{device.type}.csv"
    major, minor = torch.cuda.get_device_capability(device)
    return FOLDER / f"cuda-sm{major}{minor}.csv"


def has_table(device: torch.device) -> bool:
    return bool(_table(table_file(device)))


def cost(device: torch.device, op: str, direction: str, size: Size) -> Cost | None:
    """What `op` costs, from the nearest size that was measured; None where none was."""
    table = _table(table_file(device))
    dtype = str(size.dtype).removeprefix("torch.")
    # 16-bit dtypes move the same bytes; what was not measured at all goes by float32.
    names = {"float16": ("float16", "bfloat16")}.get(dtype, (dtype, "float32"))
    sizes = next((table[op, direction, n] for n in names if (op, direction, n) in table), None)
    if not sizes:
        return None
    (rows, cols), found = min(sizes.items(), key=lambda item: _distance(size, *item[0]))
    share = size.elements / (rows * cols)
    return Cost(found.inductor * share, found.ours * share, found.ms_per_byte)


def _distance(size: Size, rows: int, cols: int) -> float:
    return abs(math.log(max(size.rows, 1) / rows)) + abs(math.log(max(size.cols, 1) / cols))


_Key = tuple[str, str, str]


@functools.cache
def _table(file: Path) -> dict[_Key, dict[tuple[int, int], Cost]]:
    """By op, direction and dtype: the cost of each size. Of a device that has no table nothing."""
    if not file.exists():
        return {}
    try:
        table = {
            key: {size: Cost(t[INDUCTOR], t[OURS], t["ms_per_byte"]) for size, t in sizes.items()}
            for key, sizes in _times(file).items()
        }
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise ValueError(f"{_damaged(file)}: {error!r}") from error
    if not table:
        raise ValueError(f"{_damaged(file)}: it is empty")
    return table


def _damaged(file: Path) -> str:
    return (
        f"fusedops: {file} is damaged; reinstall fusedops, or measure the table again with "
        "`python -m fusedops bench --policy`"
    )


def _times(file: Path) -> dict[_Key, dict[tuple[int, int], dict[str, float]]]:
    """By op, direction and dtype: for each size the milliseconds of each provider."""
    ms: dict[_Key, dict[tuple[int, int], dict[str, float]]] = {}
    with file.open(newline="") as lines:
        for row in csv.DictReader(lines):
            key = (row["op"].partition("[")[0], row["direction"], row["dtype"])
            size = (int(row["rows"]), int(row["cols"]))
            times = ms.setdefault(key, {}).setdefault(size, {})
            times[row["provider"]] = float(row["median_ms"])
            if row["provider"] == COPY:
                times["ms_per_byte"] = float(row["median_ms"]) / int(row["bytes"])
    return ms
