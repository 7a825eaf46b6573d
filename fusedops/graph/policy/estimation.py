"""Estimates the policy table of a CPU that no table is for: an unknown processor, or a known one
with another number of threads.

The estimate takes the times of the processor's family from the tables that ship, or else the mean
of all families, and scales them by how fast this CPU runs fusedops' softmax, with its caches,
memory and threads, at sizes from a core's L2 cache to memory. The traffic around an op counts at
the speed of this CPU's copies. Measuring takes about half a second. It happens once, when a graph
is compiled for the first time, and the table is kept in the user's cache folder.

Tried on the four tables that ship: what a site saves is predicted within a factor of 1.11 to 1.27
(the median of 220 sizes) for two threads from the family's times of one, and of 1.20 to 1.41 for a
processor from the other three. By another processor's table as it is, it was within 1.24 to 1.96.
What was decided took 0 to 1.0 % longer than with the measured table; by another processor's table
0.1 to 1.4 %.
"""

from __future__ import annotations

import csv
import functools
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch

from fusedops._installation import version
from fusedops.graph.policy import costs
from fusedops.graph.policy.costs import INFERENCE, Cost, Size, Table
from fusedops.graph.policy.machine import Machine

#: The rows and columns of the sizes that are measured, in each dtype. The last exceeds most caches.
_SHAPES = ((2048, 128), (512, 768), (4096, 768), (16384, 768))
_DTYPES = (torch.float32, torch.bfloat16)
#: A call is timed in slots of at least SLOT_SECONDS, until the two least times differ by at most
#: STEADY, which means that other programs left the CPU alone. If they differ after MOST_SLOTS, the
#: CPU is too busy.
_SLOT_SECONDS = 1e-3
_LEAST_SLOTS, _MOST_SLOTS = 5, 40
_STEADY = 0.1

#: Measured size -> the milliseconds of a softmax, and those of a copy for each byte that it reads
#: or writes.
_Speed = dict[Size, tuple[float, float]]


def ensure_table(machine: Machine) -> None:
    """Measures this CPU and keeps an estimated table for it, if it has no table yet.

    Nothing is kept if the CPU is too busy or the user's cache folder cannot be written. The nearest
    table then decides, and another process tries again.
    """
    folder = costs.user_folder()
    if machine.device == "cpu" and folder is not None:
        _ensure_table(machine, folder / costs.ESTIMATED)


@functools.cache
def _ensure_table(machine: Machine, folder: Path) -> None:
    if any(table.is_for(machine) for table in costs.tables_for(machine)):
        return
    base = _comparable(machine)
    if not base or not _is_writable(folder):
        return
    # A thread of its own has none of the modes, such as fake tensors, under which graphs are
    # compiled.
    with ThreadPoolExecutor(max_workers=1) as thread:
        speed = thread.submit(_measure).result()
    if speed is not None:
        rows = [(*astuple(machine), version(), *case) for case in _estimates(base, speed)]
        _keep(folder / f"{machine.slug}-fusedops-{version()}.csv", [costs.COLUMNS, *rows])


def _comparable(machine: Machine) -> list[Table]:
    """Returns the shipped tables, of one thread or of several as the machine has, of its family, or
    of all families if its own has none. Returns [] if the user has lowered the instruction set:
    that slows our ops alone, and says nothing about Inductor's code."""
    several = machine.threads > 1
    tables = [table for table in costs.tables_for(machine) if table.origin == costs.SHIPPED]
    tables = [table for table in tables if (table.machine.threads > 1) == several]
    family = [table for table in tables if table.machine.family == machine.family]
    if any(table.machine.isa != machine.isa for table in family):
        return []
    return family or tables


def _estimates(base: Sequence[Table], speed: _Speed) -> Iterator[tuple[Any, ...]]:
    """Yields the estimated lines of a table, from the column "op" on: the geometric mean of what
    the tables in `base` measured, in which the kernels' times, but not those of calls, are scaled
    to this machine's speed at the nearest measured size. Attention is left out unless all of them
    have it: a softmax does not tell how fast matrix products are."""
    slowness = {
        size: _mean([ms / _kernel_ms(table, size) for table in base])
        for size, (ms, _) in speed.items()
    }
    for op, mode, dtype in dict.fromkeys(key for table in base for key in table.costs):
        those = {table: table.costs.get((op, mode, dtype), {}) for table in base}
        if op == costs.ATTENTION and not all(those.values()):
            continue
        for shape in dict.fromkeys(shape for sizes in those.values() for shape in sizes):
            at = _nearest(Size(*shape, getattr(torch, dtype)), speed)
            scaled = [
                _scaled(sizes[shape], table.calls[mode], slowness[at])
                for table, sizes in those.items()
                if shape in sizes
            ]
            inductor, ours = map(_mean, zip(*scaled, strict=True))
            yield op, mode, dtype, *shape, inductor, ours, 1e-6 / speed[at][1]


def _scaled(cost: Cost, calls: tuple[float, float], slowness: float) -> tuple[float, float]:
    """Returns the times of Inductor's code and of our op with kernels that are `slowness` times as
    slow, while a call takes as long as it did."""
    inductor, ours = calls
    return (
        inductor + slowness * (cost.inductor - inductor),
        ours + slowness * (cost.ours - ours),
    )


def _kernel_ms(table: Table, size: Size) -> float:
    """Returns how long our softmax took on a table's machine, without the call."""
    measured = table.cost("softmax", INFERENCE, size)
    assert measured is not None
    return measured.ours + measured.call - table.calls[INFERENCE][1]


def _nearest(size: Size, speed: _Speed) -> Size:
    """Returns the measured size of the same dtype whose number of elements is the nearest."""
    alike = [each for each in speed if each.dtype == size.dtype]
    return min(alike, key=lambda each: abs(math.log(each.elements / size.elements)))


def _mean(values: Sequence[float]) -> float:
    """Returns the geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def _measure() -> _Speed | None:
    """Returns this CPU's speed with torch's number of threads, or None if it is too busy."""
    speed = {}
    for (rows, cols), dtype in ((shape, dtype) for dtype in _DTYPES for shape in _SHAPES):
        input = torch.ones(rows, cols, dtype=dtype, device="cpu")
        result = torch.empty_like(input)
        softmax = functools.partial(torch.ops.fusedops.softmax_out, input, -1, out=result)
        softmax_ms, copy_ms = map(_least_ms, (softmax, functools.partial(result.copy_, input)))
        if softmax_ms is None or copy_ms is None:
            return None
        speed[Size(rows, cols, dtype)] = softmax_ms, copy_ms / (2 * input.nbytes)
    return speed


def _least_ms(call: Callable[[], Any]) -> float | None:
    """Returns the least time of a call in milliseconds, or None if it was not reached twice."""
    call()
    repeats = max(1, math.ceil(_SLOT_SECONDS / _seconds(call, 1)))
    times: list[float] = []
    for _ in range(_MOST_SLOTS):
        times = sorted([*times, _seconds(call, repeats)])
        if len(times) >= _LEAST_SLOTS and times[0] >= (1 - _STEADY) * times[1]:
            return times[0] * 1e3
    return None


def _seconds(call: Callable[[], Any], repeats: int) -> float:
    """Returns the mean time of a call over `repeats` calls."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _keep(file: Path, rows: Sequence[Sequence[Any]]) -> None:
    """Writes a table, unless another process has written it in the meantime: all processes of a
    machine then decide alike."""
    with suppress(OSError), tempfile.NamedTemporaryFile("w", dir=file.parent, newline="") as new:
        csv.writer(new).writerows(rows)
        new.flush()
        os.link(new.name, file)
