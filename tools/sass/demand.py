"""Computes what a launch asks of a GPU: instructions on the path taken, bytes that move, blocks.

A few warps stand for all: the first warp of one block, and the middle warp of two blocks, or of
sixteen if these two differ, as with causal rows. Blocks that walk over rows are followed over two
small numbers of rows, and the rest is extrapolated: their work is linear in that number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .launches import Case, Launch, Plan, Region
from .machine import Trace, follow
from .registers import WarpContext
from .toolchain import Code

GOLDEN = 0.6180339887
FEW_BLOCKS, MANY_BLOCKS = 2, 16
ALIKE = 0.01  # blocks whose instructions and bytes differ by at most this share count as alike
# Blocks that walk over rows are followed for two numbers of rows: 2 and 4 times as many as fill the
# grid.
FILLED = (2, 4)


@dataclass(frozen=True)
class Demand:
    """The resources that a whole launch needs; instructions are those of warps."""

    symbol: str
    blocks: float
    cluster: int
    threads: int  # of a block
    instructions: float
    loaded: dict[int, float]  # bytes by region
    stored: dict[int, float]
    guesses: float  # jumps and accesses whose target is not known, in the mean warp


def mean_trace(code: Code, launch: Launch, regions: dict[int, Region], least_blocks: int) -> Trace:
    """Returns the trace of a whole block. The mean of the middle warps of some blocks stands for
    all its warps except the first, which is followed in one block."""
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
    """Returns the numbers of `wanted` of `count` blocks, or of all. They are chosen by the golden
    ratio, so that a period in the rows does not select blocks of one kind."""
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
    """Returns the demand of each launch of a case, and how often it is launched. Launches of the
    same kernel on the same grid count as the same."""

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
    # Where rows do not divide evenly among blocks, some walk over one row more than others. Many
    # blocks are followed, because two would have the mean of all only by chance.
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
    """Returns for each launch whether its grid is full, so that more rows make its blocks walk
    further and do not add blocks. A grid that is as large for one row does not depend on rows, and
    is not full."""
    one, half = plans([case.with_rows(1), case.with_rows(max(1, case.rows // 2))])
    if case.rows < 2 or not (alike(plan, half) and alike(plan, one)):
        return [False] * len(plan.launches)
    launches = zip(plan.launches, half.launches, one.launches, strict=True)
    return [all_rows.blocks == some.blocks != least.blocks for all_rows, some, least in launches]


def alike(a: Plan, b: Plan) -> bool:
    """Returns whether both plans launch the same kernels in the same order."""
    return [one.symbol for one in a.launches] == [one.symbol for one in b.launches]


def filling_rows(case: Case, plan: Plan, plans: Plans) -> int:
    """Returns the fewest rows, a power of two, with which every full grid of `plan` is full, or the
    rows of the case if it has no full grid."""
    sizes = [1 << i for i in range(case.rows.bit_length())]
    full = full_grids(case, plan, plans)
    if not any(full):
        return case.rows
    for rows, each in zip(sizes, plans([case.with_rows(rows) for rows in sizes]), strict=True):
        pairs = zip(plan.launches, each.launches, full, strict=False)
        if alike(plan, each) and all(a.blocks == b.blocks for a, b, is_full in pairs if is_full):
            return rows
    return case.rows
