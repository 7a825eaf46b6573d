"""Measures several calls side by side, with a clock for each kind of device.

Other programs slow a machine down for a while. The calls therefore take turns. In a round each call
has one slot, all slots take about equally long, and only times of the same round are compared,
since a disturbance affects all of them. A call is also slower after a call that fills the caches
with other data, by up to 20% for matrices about as large as the last-level cache. Each call
therefore follows each other call equally often.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice
from typing import Any, Protocol

import torch

Call = Callable[[], Any]


class Clock(Protocol):
    """Returns how many milliseconds a call takes, as the mean over `repeats` calls.

    overhead_ms: how long the clock itself takes for each call, which the result does not include.
    """

    overhead_ms: float

    def __call__(self, call: Call, repeats: int) -> float: ...


class WallClock:
    """Measures on a CPU. Before the timed calls, a third as many run without being timed, to fill
    the caches."""

    overhead_ms = 0.0

    def __call__(self, call: Call, repeats: int) -> float:
        for _ in range(math.ceil(repeats / 3)):
            call()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - start) * 1e3 / repeats


class CudaClock:
    """Measures on a GPU by events around each call. Before each call the L2 cache is overwritten.

    The GPU overwrites the cache for twice as long as the host takes to launch the call. The call's
    kernels are therefore queued before the GPU reaches the first event, and the time between the
    events is that of the kernels alone.
    """

    def __init__(self, device: str) -> None:
        l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        self._flush = torch.empty(16 * l2_bytes, dtype=torch.int8, device=device)
        self._flush.zero_()
        self.overhead_ms = self._flush_ms = _elapsed_ms(self._flush.zero_)

    def __call__(self, call: Call, repeats: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        host_ms = (time.perf_counter() - start) * 1e3
        flushes = math.ceil(2 * host_ms / self._flush_ms)
        starts = [torch.cuda.Event(enable_timing=True) for _ in range(repeats)]
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(repeats)]
        for start_event, end_event in zip(starts, ends, strict=True):
            for _ in range(flushes):
                self._flush.zero_()
            start_event.record()
            call()
            end_event.record()
        torch.cuda.synchronize()
        times: list[float] = list(map(torch.cuda.Event.elapsed_time, starts, ends))
        return statistics.mean(times)


def _elapsed_ms(call: Call) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def clock_for(device: str) -> Clock:
    """Returns the clock that measures work on `device`."""
    return CudaClock(device) if device.startswith("cuda") else WallClock()


def interleave(
    calls: Mapping[str, Call], clock: Clock, rounds: int, slot_ms: float
) -> dict[str, list[float]]:
    """Times the calls in turns. Returns for each call the milliseconds that it took in each round.
    Each number is the mean over a slot, in which the call is repeated for about `slot_ms`."""
    repeats = {
        name: math.ceil(slot_ms / (clock(call, 1) + clock.overhead_ms))
        for name, call in calls.items()
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for order in islice(cycle(balanced_orders(list(calls))), rounds):
        for name in order:
            times[name].append(clock(calls[name], repeats[name]))
    return times


def balanced_orders(names: Sequence[str]) -> list[list[str]]:
    """Returns orders in which every name comes directly after every other one equally often.

    The orders are a Williams square. They are the zigzag 0, 1, n-1, 2, n-2, ..., its shifts modulo
    n, and the mirror images of these, which are needed if n is odd.
    """
    n = len(names)
    zigzag = [(k + 1) // 2 if k % 2 else -(k // 2) for k in range(n)]
    orders = [[names[(shift + step) % n] for step in zigzag] for shift in range(n)]
    return orders + [order[::-1] for order in orders]


def relative_spread(times: Sequence[float]) -> float:
    """Returns the interquartile range of times as a fraction of their median; 0 for a single
    time."""
    if len(times) < 2:
        return 0.0
    first, median, third = statistics.quantiles(times, n=4, method="inclusive")
    return (third - first) / median


def median_ratio(times: Sequence[float], other: Sequence[float]) -> float:
    """Returns how many times as fast `other` is: the median over the rounds of times / other."""
    return statistics.median(mine / its for mine, its in zip(times, other, strict=True))
