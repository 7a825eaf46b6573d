"""The time of a case on a GPU, from the demands of its launches.

A multiprocessor gives each resource to one block after the other; the busiest resource sets the
pace, or the lives of the blocks that are resident do: a block waits for its loads, then computes.
A launch takes whole waves of resident blocks at that pace, and a tail for the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .chips import LATENCY, MUFU_LANES, SCHEDULERS, WARP_LANES, Chip
from .demand import Demand
from .kernels import Usage
from .launches import Region

#: Assumptions, not in a datasheet; microbenchmarks of Hopper give values near them.
LAUNCH_GAP = 1.5e-6  # from the end of a launch to the first load of the next
CLUSTER_WAIT = 0.5e-6  # for values of the other blocks of a cluster
L2_BANDWIDTH = 5.5e12
L2_KEEPS = 24 * 2**20  # a launch that moves no more leaves it in L2 for the next; half of an H200's


#: Two resources that are both busy slow each other down: times add up as in a norm of this order.
#: Order 4 gives the rule of thumb that 97 % of a copy's speed leaves 60 % of the issue slots used.
OVERLAP = 4


@dataclass(frozen=True)
class Cost:
    """Seconds of a multiprocessor for one block, by resource, and a block's life."""

    busy: dict[str, float]
    life: float
    resident: int  # blocks of a multiprocessor

    @property
    def pace(self) -> float:
        """Seconds of a multiprocessor from one block to the next."""
        return max(self.busy_time, self.life / self.resident)

    @property
    def busy_time(self) -> float:
        """Seconds of the memory and the busiest other resource, which slow each other down."""
        others = max(time for name, time in self.busy.items() if name != "memory")
        return (self.busy["memory"] ** OVERLAP + others**OVERLAP) ** (1 / OVERLAP)

    @property
    def limiter(self) -> str:
        if self.life / self.resident > max(self.busy.values()):
            return "latency"
        return max(self.busy, key=self.busy.__getitem__)


def moved_bytes(demand: Demand, regions: dict[int, Region]) -> tuple[float, float]:
    """Bytes loaded and stored, without accesses to null."""
    loaded = {key: count for key, count in demand.loaded.items() if key}
    stored = {key: count for key, count in demand.stored.items() if key}
    return (
        sum(counted_loads(regions.get(key), count) for key, count in loaded.items()),
        sum(counted_stores(regions.get(key), count) for key, count in stored.items()),
    )


def counted_loads(region: Region | None, count: float) -> float:
    """The bytes from memory: none where caches hold what all rows read, and all partials once."""
    if region is None or region.kind == "rows":
        return count
    return min(count, region.bytes) if region.kind == "partials" else 0.0


def counted_stores(region: Region | None, count: float) -> float:
    return count if region is None or region.kind == "rows" else min(count, region.bytes)


def cost_of(
    demand: Demand, usage: Usage, regions: dict[int, Region], chip: Chip, from_l2: float = 0
) -> Cost:
    """The cost of a block. `from_l2` is the share of its loaded bytes that are in L2."""
    loaded, stored = (part / demand.blocks for part in moved_bytes(demand, regions))
    resident = max(1, usage.blocks(chip, demand.threads))
    memory = max(
        (loaded * (1 - from_l2) + stored) / chip.bandwidth,
        (loaded + stored) / (L2_BANDWIDTH / chip.multiprocessors),
    )
    clock = chip.boost_clock
    issue = demand.instructions / demand.blocks / SCHEDULERS / clock
    busy = {
        "memory": memory,
        "issue": issue,
        "alu": demand.alu / demand.blocks * 2 / SCHEDULERS / clock,
        "mufu": demand.mufu / demand.blocks * WARP_LANES / MUFU_LANES / clock,
        "shuffle": demand.shuffles / demand.blocks / clock,
    }
    of_warp = loaded / demand.warps_a_block
    phases = max(1.0, of_warp / demand.in_flight) if demand.in_flight else 0.0
    waits = phases * LATENCY + demand.cluster_waits * CLUSTER_WAIT
    return Cost(busy, waits + loaded / chip.bandwidth + issue, resident)


def seconds(demand: Demand, cost: Cost, chip: Chip) -> float:
    """The time of a launch: full waves at the pace of the blocks, then a tail."""
    slots = cost.resident * chip.multiprocessors
    waves, rest = divmod(demand.blocks, slots)
    if rest == 0:
        return waves * cost.resident * cost.pace
    tail = max(rest / chip.multiprocessors * cost.busy_time, cost.life)
    return waves * cost.resident * cost.pace + tail


@dataclass(frozen=True)
class Prediction:
    """The report's row for a case."""

    op: str
    dtype: str
    rows: int
    cols: int
    kernels: str
    launches: int
    threads: int  # of a block, of the launch that takes longest, as are the next four
    cluster: int
    resident: int
    waves: float
    kb_in_flight: float  # of a multiprocessor
    bytes_u: float  # moved, in units of one tensor
    instructions: float  # of warps, for 1024 elements
    issue: float  # demand at the speed of a copy, as a share of the capacity; so are the next three
    alu: float
    mufu: float
    shuffle: float
    limiter: str
    guesses: float  # jumps of a warp that depend on data
    us: float
    share: float  # of the speed of a copy


def copy_seconds(regions: dict[int, Region], chip: Chip) -> float:
    """The time of a copy that moves every tensor once."""
    essential = sum(region.bytes for region in regions.values() if region.kind == "rows")
    return essential / chip.bandwidth / chip.multiprocessors


def l2_shares(demands: Sequence[tuple[Demand, int]], regions: dict[int, Region]) -> list[float]:
    """The share of what each launch loads that the launch before has left in L2."""
    shares = [0.0]
    for (before, _), (demand, _) in zip(demands, demands[1:], strict=False):
        fits = sum(moved_bytes(before, regions)) <= L2_KEEPS
        same = sum(
            min(count, before.loaded.get(key, 0) + before.stored.get(key, 0))
            for key, count in demand.loaded.items()
            if counted_loads(regions.get(key), count)
        )
        loaded = moved_bytes(demand, regions)[0]
        shares.append(min(1.0, same / loaded) if fits and loaded else 0.0)
    return shares
