"""Makes the table of shapes, which has the instructions and bytes of every operator, dtype and row
length."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .chips import CHIPS, SCHEDULERS, Chip
from .demand import Demand, demands_of
from .launches import Case, LaunchProgram, Region
from .toolchain import Code, demangle

COUNTED_ARCH = "90"
CHIP = CHIPS[COUNTED_ARCH]
OPS = [
    f"{op}{direction}"
    for op in (
        *("softmax", "layer_norm", "rms_norm", "add_rms_norm"),
        *("masked_softmax", "masked_softmax_causal", "masked_softmax_bool"),
        "cross_entropy",
    )
    for direction in ("", "_backward")
]
#: float16 is left out, because its kernels differ from those of bfloat16 only in conversions.
DTYPES = ("bfloat16", "float32")
POWERS = [1 << i for i in range(10, 16)]
COLS = (49, 197, 577, 1023, *POWERS, 50257, 65536, 131072, 262144)
TENSOR_BYTES = (64 << 20, 1 << 30)


def table_cases() -> list[Case]:
    """Returns a case for each operator, dtype, row length and size of tensors."""
    cases = []
    for op in OPS:
        for dtype in DTYPES:
            for cols in COLS:
                for size in TENSOR_BYTES:
                    rows = max(1, size // Case(op, dtype, 1, cols).tensor_bytes)
                    cases.append(Case(op, dtype, rows, cols))
    return cases


@dataclass(frozen=True)
class Shape:
    """The report's row about a case. Numbers are sums over all of its launches, except that
    `threads`, the threads of a block, and `cluster` are those of the launch with the most
    instructions."""

    op: str
    dtype: str
    rows: int
    cols: int
    kernels: str
    launches: int
    threads: int
    cluster: int
    bytes_u: float  # the bytes moved, in units of one tensor
    instructions: float  # how many instructions warps execute for each 1024 elements
    issue: float  # instructions as a fraction of what the GPU can issue while a copy runs
    guesses: float  # how many jumps and accesses with unknown targets a warp has, on average


def moved_bytes(demand: Demand, regions: dict[int, Region]) -> float:
    """Returns the bytes that are loaded from memory and stored to it. Accesses to null do not
    count."""
    loaded = {key: count for key, count in demand.loaded.items() if key}
    stored = {key: count for key, count in demand.stored.items() if key}
    return sum(counted_loads(regions.get(key), count) for key, count in loaded.items()) + sum(
        counted_stores(regions.get(key), count) for key, count in stored.items()
    )


def counted_loads(region: Region | None, count: float) -> float:
    """Returns how many of the `count` bytes that are loaded from a region come from memory. All
    bytes of rows do. A region of partials comes from memory at most once. What all rows read counts
    as 0, because caches hold it."""
    if region is None or region.kind == "rows":
        return count
    return min(count, region.bytes) if region.kind == "partials" else 0.0


def counted_stores(region: Region | None, count: float) -> float:
    """Returns how many of the `count` bytes that are stored to a region go to memory. All bytes of
    rows do. A region of partials, or of what all rows add to, goes to memory at most once."""
    return count if region is None or region.kind == "rows" else min(count, region.bytes)


def issue_share(instructions: float, regions: dict[int, Region], chip: Chip) -> float:
    """Returns warp instructions as a fraction of those that the chip can issue in the time in which
    a copy moves every tensor once."""
    essential = sum(region.bytes for region in regions.values() if region.kind == "rows")
    copy_seconds = essential / chip.bandwidth / chip.multiprocessors
    return instructions / (SCHEDULERS * chip.boost_clock * chip.multiprocessors * copy_seconds)


@dataclass(frozen=True)
class Counter:
    """Counts the instructions and bytes of cases. Each process gets one, with what it needs."""

    codes: dict[str, Code]  # the kernels' code by symbol; `names` has their names by symbol
    names: dict[str, str]
    program: LaunchProgram

    def count(self, case: Case) -> Shape:
        """Returns the report's row about a case."""
        (plan,) = self.program.plans([case])
        demands = demands_of(case, self.codes, self.program.plans)
        instructions = sum(each.instructions * count for each, count in demands)
        longest, _ = max(demands, key=lambda one: one[0].instructions * one[1])
        return Shape(
            **vars(case),
            kernels=" + ".join(dict.fromkeys(self.names[each.symbol] for each, _ in demands)),
            launches=sum(count for _, count in demands),
            threads=longest.threads,
            cluster=longest.cluster,
            bytes_u=sum(moved_bytes(each, plan.regions) * count for each, count in demands)
            / case.tensor_bytes,
            instructions=instructions * 1024 / (case.rows * case.cols),
            issue=issue_share(instructions, plan.regions, CHIP),
            guesses=sum(each.guesses for each, _ in demands),
        )


_counter: Counter | None = None


def _start(counter: Counter) -> None:
    """Stores the counter in a new process of shapes_of(), for the calls of _count() there."""
    global _counter
    _counter = counter


def _count(case: Case) -> Shape:
    assert _counter is not None
    return _counter.count(case)


def shapes_of(codes: dict[str, Code], cases: Sequence[Case]) -> list[Shape]:
    """Returns the report's rows about all cases. Uses as many processes as there are CPUs."""
    with tempfile.TemporaryDirectory() as folder:
        counter = Counter(codes, demangle(list(codes)), LaunchProgram(Path(folder)))
        with ProcessPoolExecutor(os.cpu_count(), initializer=_start, initargs=(counter,)) as pool:
            return list(pool.map(_count, cases, chunksize=4))
