"""Computes what a launch of a kernel asks of a GPU: how many instructions its warps execute, how
many bytes they move, and how many blocks it has.

Only a few warps are followed, instruction by instruction, and stand for all others: the first warp
of one block, and the middle warp of two blocks, or of sixteen if these two differ, as with causal
rows. Blocks that walk over rows are followed for two small numbers of rows, and their work for all
rows is extrapolated, since it is linear in the number of rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .launches import Case, Launch, Plan, Region
from .machine import Trace, follow
from .registers import WarpContext
from .toolchain import Code

GOLDEN = 0.6180339887  # the golden ratio minus 1
FEW_BLOCKS, MANY_BLOCKS = 2, 16  # how many blocks are followed (see the top of this file)
ALIKE = 0.01  # blocks count as alike if their instructions and bytes differ by at most 1 %
# Blocks that walk over rows are followed for 2 and for 4 times as many rows as fill the grid.
FILLED = (2, 4)


@dataclass(frozen=True)
class Demand:
    """The resources that a whole launch needs. An instruction of a warp counts once."""

    symbol: str
    blocks: float
    cluster: int
    threads: int  # the threads of a block
    instructions: float
    loaded: dict[int, float]  # number of an array -> the bytes that are loaded from it
    stored: dict[int, float]
    guesses: float  # how many jumps and accesses with unknown targets a warp has, on average


def mean_trace(code: Code, launch: Launch, regions: dict[int, Region], least_blocks: int) -> Trace:
    """Returns the trace of an average block, which is the sum over its warps. The first warp is
    followed in one block. For every other warp, the mean over the middle warps of some blocks is
    taken."""
    constants = launch.constants(code.parameters_at)
    masks = frozenset(key for key, region in regions.items() if region.name == "mask")

    def trace(block: int, warp: int) -> Trace:
        context = WarpContext(
            block, warp, launch.threads, launch.blocks, launch.cluster, constants, masks
        )
        return follow(code.body, context)

    middle = launch.warps // 2
    blocks = sampled_blocks(launch.blocks, least_blocks)
    traces = {block: trace(block, middle) for block in blocks}
    if differ([one.instructions for one in traces.values()]) or differ(
        [one.bytes for one in traces.values()]
    ):
        blocks = sampled_blocks(launch.blocks, MANY_BLOCKS)
        traces |= {block: trace(block, middle) for block in blocks if block not in traces}
    total = Trace()
    for block in blocks:
        total.add(traces[block], max(1, launch.warps - 1) / len(blocks))
    if launch.warps > 1:
        total.add(trace(blocks[0], 0), 1)
    return total


def differ(counts: Sequence[float]) -> bool:
    return max(counts) - min(counts) > ALIKE * max(counts)


def sampled_blocks(count: int, wanted: int) -> list[int]:
    """Returns the indices of `wanted` among `count` blocks, or of all if there are fewer. They are
    spread by multiples of the golden ratio, so that they are not all of one kind if blocks differ
    periodically."""
    if count <= wanted:
        return list(range(count))
    return sorted({int((0.5 + i * GOLDEN) % 1 * count) for i in range(wanted)})


def demand_of(
    code: Code, launch: Launch, regions: dict[int, Region], least_blocks: int = FEW_BLOCKS
) -> Demand:
    """Returns what a launch needs, as computed from at least `least_blocks` of its blocks."""
    trace = mean_trace(code, launch, regions, least_blocks)
    blocks = launch.blocks
    return Demand(
        symbol=launch.symbol,
        blocks=blocks,
        cluster=launch.cluster,
        threads=launch.threads[0] * launch.threads[1],
        instructions=blocks * trace.instructions,
        loaded={region: blocks * count for region, count in trace.loaded.items()},
        stored={region: blocks * count for region, count in trace.stored.items()},
        guesses=trace.guesses / launch.warps,
    )


def extrapolated(few: Demand, more: Demand, factor: float) -> Demand:
    """Returns `few` plus `factor` times the difference between `more` and `few`."""

    def line(a: float, b: float) -> float:
        return a + (b - a) * factor

    def lines(a: dict[int, float], b: dict[int, float]) -> dict[int, float]:
        return {key: line(a.get(key, 0), value) for key, value in b.items()}

    return replace(
        more,
        blocks=line(few.blocks, more.blocks),
        instructions=line(few.instructions, more.instructions),
        loaded=lines(few.loaded, more.loaded),
        stored=lines(few.stored, more.stored),
    )


Plans = Callable[[Sequence[Case]], list[Plan]]


def demands_of(case: Case, codes: dict[str, Code], plans: Plans) -> list[tuple[Demand, int]]:
    """Returns the demand of each distinct launch of a case, and how often this launch is made.
    Launches of the same kernel on the same grid count as one."""

    def followed(plan: Plan, least_blocks: int = FEW_BLOCKS) -> list[tuple[Demand, int]]:
        return [
            (demand_of(codes[launch.symbol], launch, plan.regions, least_blocks), count)
            for launch, count in distinct(plan.launches)
        ]

    (plan,) = plans([case])
    filling = filling_rows(case, plan, plans)
    few, more = (factor * filling for factor in FILLED)
    if case.rows <= more:
        return followed(plan)
    # If the rows do not divide evenly among the blocks, some walk over one row more than others.
    # Two blocks would have the mean work of all blocks only by chance, so that many are followed.
    at_few, at_more = (
        followed(of_rows, MANY_BLOCKS)
        for of_rows in plans([case.with_rows(few), case.with_rows(more)])
    )
    factor = (case.rows - few) / (more - few)
    return [
        (extrapolated(a, b, factor), count)
        for (a, count), (b, _) in zip(at_few, at_more, strict=True)
    ]


def distinct(launches: Sequence[Launch]) -> list[tuple[Launch, int]]:
    """Returns the launches that differ in kernel or grid, and how often each is made."""
    first: dict[tuple, Launch] = {}
    counts: Counter[tuple] = Counter()
    for launch in launches:
        key = (launch.symbol, launch.blocks, launch.threads)
        first.setdefault(key, launch)
        counts[key] += 1
    return [(first[key], count) for key, count in counts.items()]


def full_grids(case: Case, plan: Plan, plans: Plans) -> list[bool]:
    """Returns for each launch whether its grid is full: with more rows its blocks would walk over
    more rows, and there would not be more blocks. A grid that is as large for a single row does not
    depend on the number of rows, and does not count as full."""
    one, half = plans([case.with_rows(1), case.with_rows(max(1, case.rows // 2))])
    if case.rows < 2 or not (alike(plan, half) and alike(plan, one)):
        return [False] * len(plan.launches)
    launches = zip(plan.launches, half.launches, one.launches, strict=True)
    return [all_rows.blocks == some.blocks != least.blocks for all_rows, some, least in launches]


def alike(a: Plan, b: Plan) -> bool:
    """Returns whether both plans launch the same kernels in the same order."""
    return [one.symbol for one in a.launches] == [one.symbol for one in b.launches]


def filling_rows(case: Case, plan: Plan, plans: Plans) -> int:
    """Returns the smallest power of two as the number of rows with which all grids are full that
    are full in `plan`. Returns the case's number of rows if no grid in `plan` is full."""
    sizes = [1 << i for i in range(case.rows.bit_length())]
    full = full_grids(case, plan, plans)
    if not any(full):
        return case.rows
    for rows, each in zip(sizes, plans([case.with_rows(rows) for rows in sizes]), strict=True):
        pairs = zip(plan.launches, each.launches, full, strict=False)
        if alike(plan, each) and all(a.blocks == b.blocks for a, b, is_full in pairs if is_full):
            return rows
    return case.rows
