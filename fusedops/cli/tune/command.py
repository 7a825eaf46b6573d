"""Measures the policy table of this machine, and writes it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, replace
from pathlib import Path

import pandas as pd
import torch
from rich.console import Console

from fusedops._installation import version
from fusedops.cli.bench.command import Measured, Say, announced, keep_freed_memory, measure_each
from fusedops.cli.env import describe_machine
from fusedops.cli.errors import UsageError, UserError
from fusedops.cli.files import check_writable, write_atomically
from fusedops.cli.tune.graphs import Graph, all_graphs
from fusedops.cli.tune.measurement import compile_ahead, measure
from fusedops.graph.policy import costs
from fusedops.graph.policy.machine import Machine, here

#: The part of the budget after which compiling ahead, by several processes at once, ends.
COMPILING = 0.65
#: How many milliseconds a call may take longer because several threads have to wake up.
#: `_plausible` allows for them when it decides whether a call has waited for a core.
WAKING_MS = 0.1

#: Compiled graph -> its measurements, one for each size that no other program disturbed.
Found = dict[Graph, list[costs.Cost]]


def run(args: argparse.Namespace) -> int:
    """Measures, and writes the tables; returns 1 if a graph could not be measured. If an interrupt
    has ended the timing, writes what was measured, and then raises KeyboardInterrupt."""
    start = time.monotonic()
    machines = _machines(args)
    files = _files(args.output, machines)
    if args.device.type == "cpu":
        keep_freed_memory()
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    console.print(f"{describe_machine()}, device {args.device}")
    graphs = all_graphs(str(args.device), [machine.threads for machine in machines])
    found, measured = measure_all(graphs, start, args.budget)
    for file, those in files.items():
        if content := as_csv(found, those):
            console.print(_write_table(file, content, measured.interrupted), soft_wrap=True)
    for line in _summary(graphs, found, measured):
        console.print(line, soft_wrap=True)
    if measured.interrupted:
        raise KeyboardInterrupt
    return 1 if measured.left_out else 0


def _write_table(file: Path, content: str, interrupted: bool) -> str:
    """Writes a table, and returns what to print about it. After an interrupt, a file that already
    has more lines is not overwritten."""
    if interrupted and file.exists():
        lines = content.count("\n")
        before = file.read_bytes().count(b"\n")
        if before > lines:
            return f"{file} stays as it is: it has {before} lines, these are {lines}"
    write_atomically(file, content.encode())
    return f"written to {file}"


def _machines(args: argparse.Namespace) -> list[Machine]:
    """Returns this machine's description, once for each number of threads to measure with."""
    if args.device.type != "cpu":
        if args.threads:
            raise UsageError("--threads: only with --device cpu; a GPU has its own")
        return [here(args.device)]
    counts = dict.fromkeys(args.threads or [1, torch.get_num_threads()])
    return [replace(here(args.device), threads=count) for count in counts]


def _files(output: Path | None, machines: Sequence[Machine]) -> dict[Path, list[Machine]]:
    """Returns the files to write, each with the machines whose times it gets. Raises UserError if
    the user's cache folder cannot be written."""
    if output:
        return {output: [*machines]}
    folder = costs.user_folder()
    if folder is None:
        raise UserError("you have no home folder for a cache; set FUSEDOPS_CACHE_DIR, or --output")
    files = {folder / f"{machine.slug}.csv": [machine] for machine in machines}
    for file in files:
        try:
            check_writable(file)
        except OSError as error:
            raise UserError(
                f"{file} cannot be written: {error.strerror}; set FUSEDOPS_CACHE_DIR to a folder "
                "that can, or name a file with --output"
            ) from error
    return files


def measure_all(graphs: Sequence[Graph], start: float, budget: float) -> tuple[Found, Measured]:
    """Compiles graphs ahead for a part of the budget, which is in seconds. Then times the graphs in
    order until the whole budget is spent, but at least one. Raises UserError if nothing was
    measured."""
    found: Found = {}
    # No thread shows progress, because compiling ahead forks this process.
    ahead = compile_ahead(graphs, start + COMPILING * budget)
    for graph, say in announced(ahead, len(graphs), auto_refresh=False):
        say(f"compiling {graph}")

    def time_one(graph: Graph, say: Say) -> list[costs.Cost]:
        if found and time.monotonic() > start + budget:
            return []
        say(f"timing {graph}")
        found[graph] = _plausible(graph, measure(graph), found)
        return found[graph]

    why_nothing = "other programs disturbed it, or see the lines above"
    return found, measure_each(graphs, time_one, why_nothing, auto_refresh=False)


def _plausible(graph: Graph, measured: Iterable[costs.Cost], found: Found) -> list[costs.Cost]:
    """Returns the measurements `measured`, without those in which several threads took far longer
    than one thread did in `found`. In these a thread has waited for a core that another program
    used."""
    single = replace(graph, threads=1, rows=())
    alone = {
        (cost.rows, cost.cols): cost
        for other, those in found.items()
        if replace(other, rows=()) == single
        for cost in those
    }

    def has_waited_for_a_core(cost: costs.Cost) -> bool:
        single_threaded = alone.get((cost.rows, cost.cols), cost)
        pairs = (cost.inductor, single_threaded.inductor), (cost.ours, single_threaded.ours)
        # Threads that have a core each take at most the time of one thread, and the time to wake
        # them. Only more than twice the time of one thread counts as waiting.
        return any(several > 2 * one + WAKING_MS for several, one in pairs)

    return [cost for cost in measured if not has_waited_for_a_core(cost)]


def as_csv(found: Found, machines: Sequence[Machine]) -> str:
    """Returns the table of these machines as CSV; empty if nothing was measured on them. Times and
    speed are written with four digits, which is more than their accuracy."""
    ours = version()
    rows = [
        (*astuple(machine), ours, graph.op, graph.mode, str(graph.dtype).removeprefix("torch."))
        + (cost.rows, cost.cols, cost.inductor, cost.ours, 1e-6 / cost.ms_per_byte)
        for machine in machines
        for graph, costs_of_sizes in found.items()
        for cost in costs_of_sizes
        if graph.threads == machine.threads
    ]
    if not rows:
        return ""
    table = pd.DataFrame(rows, columns=costs.COLUMNS)
    text: str = table.to_csv(index=False, float_format="%.4g", lineterminator="\n")
    return text


def _summary(graphs: Sequence[Graph], found: Found, measured: Measured) -> Iterator[str]:
    """Yields lines that say how many sizes were measured, on how many of them fusedops is faster,
    and what was left out."""
    faster = sum(cost.ours < cost.inductor for cost in measured.rows)
    sizes = len(measured.rows)
    yield f"{sizes} sizes measured; fusedops is faster than Inductor on {faster} of them"
    if disturbed := sum(len(graph.rows) for graph in found) - sizes:
        yield (
            f"left out, for other programs disturbed them: {disturbed} sizes; their "
            "nearest neighbours count. Run it again when the machine is quiet"
        )
    if late := [graph for graph in graphs if graph not in (*found, *measured.left_out)]:
        yield (
            f"left out, for {'you interrupted it' if measured.interrupted else 'the time was up'}: "
            f"{len(late)} of {len(late) + len(found)} "
            f"graphs, from {late[0]} on; their nearest neighbours count. Run it again, or with a "
            "larger --budget: what is compiled is kept"
        )
