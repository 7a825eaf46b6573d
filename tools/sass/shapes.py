"""The table of shapes: the instructions and bytes of every operator, dtype and row length."""

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
#: float16 takes the same kernels as bfloat16 with other conversions.
DTYPES = ("bfloat16", "float32")
POWERS = [1 << i for i in range(10, 16)]
COLS = (49, 197, 577, 1023, *POWERS, 50257, 65536, 131072, 262144)
TENSOR_BYTES = (64 << 20, 1 << 30)


def table_cases() -> list[Case]:
    """Returns each operator with each dtype, length of rows and size of tensors."""
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
    """The report's row for a case: the sums over all of its launches."""

    op: str
    dtype: str
    rows: int
    cols: int
    kernels: str
    launches: int
    threads: int  # of a block, of the launch with most instructions, as is the next
    cluster: int
    bytes_u: float  # moved, in units of one tensor
    instructions: float  # of warps, for 1024 elements
    issue: float  # instructions, as a share of those that the GPU can issue in the time of a copy
    guesses: float  # jumps and accesses whose target is not known, in the mean warp


def moved_bytes(demand: Demand, regions: dict[int, Region]) -> float:
    """Returns the bytes loaded and stored, without accesses to null."""
    loaded = {key: count for key, count in demand.loaded.items() if key}
    stored = {key: count for key, count in demand.stored.items() if key}
    return sum(counted_loads(regions.get(key), count) for key, count in loaded.items()) + sum(
        counted_stores(regions.get(key), count) for key, count in stored.items()
    )


def counted_loads(region: Region | None, count: float) -> float:
    """Returns the bytes that come from memory: those of rows, those of partials at most once, and
    none of what all rows read, which caches hold."""
    if region is None or region.kind == "rows":
        return count
    return min(count, region.bytes) if region.kind == "partials" else 0.0


def counted_stores(region: Region | None, count: float) -> float:
    """Returns the bytes that go to memory: those of rows, and at most once those of partials and
    of what all rows add to."""
    return count if region is None or region.kind == "rows" else min(count, region.bytes)


def issue_share(instructions: float, regions: dict[int, Region], chip: Chip) -> float:
    """Returns warp instructions as a share of those that the chip issues while a copy moves every
    tensor once."""
    essential = sum(region.bytes for region in regions.values() if region.kind == "rows")
    copy_seconds = essential / chip.bandwidth / chip.multiprocessors
    return instructions / (SCHEDULERS * chip.boost_clock * chip.multiprocessors * copy_seconds)


@dataclass(frozen=True)
class Counter:
    """What is needed to count a case; each process gets it once."""

    codes: dict[str, Code]  # by symbol, as are the names
    names: dict[str, str]
    program: LaunchProgram

    def count(self, case: Case) -> Shape:
        """Returns the report's row for a case."""
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
    """Keeps the counter in a new process of shapes_of(), for the calls of _count() there."""
    global _counter
    _counter = counter


def _count(case: Case) -> Shape:
    assert _counter is not None
    return _counter.count(case)


def shapes_of(codes: dict[str, Code], cases: Sequence[Case]) -> list[Shape]:
    """Returns the shapes of all cases, in as many processes as there are CPUs."""
    with tempfile.TemporaryDirectory() as folder:
        counter = Counter(codes, demangle(list(codes)), LaunchProgram(Path(folder)))
        with ProcessPoolExecutor(os.cpu_count(), initializer=_start, initargs=(counter,)) as pool:
            return list(pool.map(_count, cases, chunksize=4))
