"""The gates of the machine code. Hot kernels, which are those for 16-byte vectors, are compared
with their budget in sass_budget.csv, so that a change which makes them cost more is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from fusedops.cli.errors import UserError

BUDGET = Path(__file__).parents[1] / "sass_budget.csv"
KEY = ["arch", "kernel"]
#: Column of the budget -> how many times its number a kernel may have. In most of them one
#: instruction more for each element of a thread is above 1 %.
AT_MOST = {
    "registers": 1.0,
    "instructions": 1.01,
    "loads": 1.0,
    "narrow_loads": 1.0,
    "stores": 1.0,
    "narrow_stores": 1.0,
}
COLUMNS = [*KEY, *AT_MOST, "kb_in_flight"]


def read_budget(path: Path = BUDGET) -> pd.DataFrame:
    """Returns the file of budgets. Raises UserError if it is missing or damaged."""
    try:
        return pd.read_csv(path, dtype=dict.fromkeys(COLUMNS, int) | {"kernel": str})[COLUMNS]
    except (OSError, KeyError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}; run --write-budget") from error


def failures(kernels: pd.DataFrame, budget: pd.DataFrame) -> Iterator[str]:
    """Yields a message about each kernel of the report that breaks a gate: one with spills or a
    stack, one of clusters with fences, and a hot one that does not keep its budget."""
    limits = budget.set_index(KEY).to_dict("index")
    for _, kernel in kernels.iterrows():
        name = f"sm_{kernel.arch} {kernel.kernel}"
        if kernel.spills or kernel.stack:
            yield f"{name}: {kernel.spills} spills, {kernel.stack} bytes of stack, wanted none"
        if "_cluster" in kernel.kernel and (kernel.fences or not kernel.sends):
            yield f"{name}: {kernel.fences} fences, wanted none, and {kernel.sends} sends"
        if kernel.is_hot:
            found = over_budget(kernel, limits.get((kernel.arch, kernel.kernel)))
            yield from (f"{name}: {what}" for what in found)


def over_budget(kernel: pd.Series, limit: dict[str, int] | None) -> Iterator[str]:
    """Yields what a hot kernel has more of than its budget allows, or less of bytes in flight."""
    if limit is None:
        yield f"not in {BUDGET.name}; run --write-budget"
        return
    for column, factor in AT_MOST.items():
        if kernel[column] > (most := int(limit[column] * factor)):
            yield f"{column} is {kernel[column]}, wanted at most {most}"
    if kernel.kb_in_flight < (least := limit["kb_in_flight"]):
        yield f"kb_in_flight is {kernel.kb_in_flight}, wanted at least {least}"
