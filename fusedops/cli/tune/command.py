"""Measures the policy table of this machine, and writes it."""

from __future__ import annotations

import argparse
import csv
import io
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fusedops.cli.bench.command import keep_freed_memory
from fusedops.cli.env import PACKAGE, describe_machine
from fusedops.cli.errors import UsageError, UserError, describe, one_line
from fusedops.cli.files import check_writable, write_atomically
from fusedops.cli.tune.graphs import Graph, all_graphs
from fusedops.cli.tune.measurement import compile_ahead, measure
from fusedops.graph.policy import costs
from fusedops.graph.policy.machine import Machine, count_of, here

#: The part of the budget after which compiling ahead, by several processes at once, ends.
COMPILING = 0.65
#: How many milliseconds a call may take longer because several threads have to wake up.
#: `_plausible` allows for them when it decides whether a call has waited for a core.
WAKING_MS = 0.1


@dataclass
class Measured:
    """The results of a run.

    costs: compiled graph -> its measurements, one for each size.
    disturbed: the number of sizes that are left out because other programs disturbed their times.
    late: the graphs for which there was no time.
    failed: the graphs that could not be compiled or run.
    interrupted: whether an interrupt ended the timing. The graphs after it count as late.
    """

    costs: dict[Graph, list[costs.Cost]] = field(default_factory=dict)
    disturbed: int = 0
    late: list[Graph] = field(default_factory=list)
    failed: list[Graph] = field(default_factory=list)
    interrupted: bool = False


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
    measured = measure_all(graphs, start, args.budget)
    for file, those in files.items():
        if content := as_csv(measured, those):
            console.print(_write_table(file, content, measured.interrupted), soft_wrap=True)
    for line in _summary(measured):
        console.print(line, soft_wrap=True)
    if measured.interrupted:
        raise KeyboardInterrupt
    return 1 if measured.failed else 0


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
    files = {folder / f"{_slug(machine)}.csv": [machine] for machine in machines}
    for file in files:
        try:
            check_writable(file)
        except OSError as error:
            raise UserError(
                f"{file} cannot be written: {error.strerror}; set FUSEDOPS_CACHE_DIR to a folder "
                "that can, or name a file with --output"
            ) from error
    return files


def _slug(machine: Machine) -> str:
    """Returns the name of a machine's file."""
    name = f"{machine.device} {machine.processor} {machine.isa} {count_of(machine.threads)}"
    return re.sub(r"[^a-z0-9.]+", "-", f"{name} torch {machine.torch}".lower())


def measure_all(graphs: Sequence[Graph], start: float, budget: float) -> Measured:
    """Compiles graphs ahead for a part of the budget, which is in seconds. Then times the graphs in
    order until the whole budget is spent."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns, TextColumn("{task.description}"), console=Console(stderr=True), auto_refresh=False
    ) as progress:
        ahead = compile_ahead(graphs, start + COMPILING * budget)
        for _ in _shown(progress, "compiling", ahead, len(graphs)):
            pass
        return _timed(progress, graphs, start + budget)


def _shown(progress: Progress, what: str, graphs: Iterator[Graph], total: int) -> Iterator[Graph]:
    """Yields the graphs, and shows each of them and their number as progress."""
    task = progress.add_task(what, total=total)
    for graph in graphs:
        progress.update(task, advance=1, description=escape(f"{what} {graph}"), refresh=True)
        yield graph


def _timed(progress: Progress, graphs: Sequence[Graph], deadline: float) -> Measured:
    """Times graphs until the deadline, but at least one. A graph that fails is reported, and the
    others are still timed. Raises UserError if nothing was measured."""
    measured = Measured()
    for graph in _shown(progress, "timing", iter(graphs), len(graphs)):
        if measured.interrupted or (measured.costs and time.monotonic() > deadline):
            measured.late.append(graph)
            continue
        try:
            measured.costs[graph] = _plausible(graph, measure(graph), measured)
            measured.disturbed += len(graph.rows) - len(measured.costs[graph])
        except KeyboardInterrupt:
            measured.interrupted = True
            measured.late.append(graph)
        except Exception as error:
            measured.failed.append(graph)
            print(one_line(f"{graph} is left out: {describe(error)}"), file=sys.stderr)
    if not any(measured.costs.values()):
        if measured.interrupted:
            raise KeyboardInterrupt
        raise UserError("nothing was measured; other programs disturbed it, or see the lines above")
    return measured


def _plausible(graph: Graph, found: Iterable[costs.Cost], measured: Measured) -> list[costs.Cost]:
    """Returns the measurements `found`, without those in which several threads took far longer than
    one thread did in `measured`. In these a thread has waited for a core that another program
    used."""
    single = replace(graph, threads=1, rows=())
    alone = {
        (cost.rows, cost.cols): cost
        for other, those in measured.costs.items()
        if replace(other, rows=()) == single
        for cost in those
    }

    def has_waited_for_a_core(cost: costs.Cost) -> bool:
        single_threaded = alone.get((cost.rows, cost.cols), cost)
        pairs = (cost.inductor, single_threaded.inductor), (cost.ours, single_threaded.ours)
        # Threads that have a core each take at most the time of one thread, and the time to wake
        # them. Only more than twice the time of one thread counts as waiting.
        return any(several > 2 * one + WAKING_MS for several, one in pairs)

    return [cost for cost in found if not has_waited_for_a_core(cost)]


def as_csv(measured: Measured, machines: Sequence[Machine]) -> str:
    """Returns the table of these machines as CSV; empty if nothing was measured on them."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    version = (PACKAGE / "VERSION").read_text().strip()
    rows = [
        (*astuple(machine), version, *_case(graph), *_numbers(cost))
        for machine in machines
        for graph, found in measured.costs.items()
        for cost in found
        if graph.threads == machine.threads
    ]
    if not rows:
        return ""
    writer.writerows([costs.COLUMNS, *rows])
    return text.getvalue()


def _case(graph: Graph) -> tuple[str, str, str]:
    return graph.op, graph.mode, str(graph.dtype).removeprefix("torch.")


def _numbers(cost: costs.Cost) -> tuple[str | int, ...]:
    """Returns the numbers of a line of the table: the size, both times and the speed of a copy.
    Times and speed are written with four digits, which is more than their accuracy."""
    copy_gb_per_s = 1e-6 / cost.ms_per_byte
    measured = cost.inductor, cost.ours, copy_gb_per_s
    return cost.rows, cost.cols, *(f"{number:.4g}" for number in measured)


def _summary(measured: Measured) -> Iterator[str]:
    """Yields lines that say how many sizes were measured, on how many of them fusedops is faster,
    and what was left out."""
    found = [cost for each in measured.costs.values() for cost in each]
    faster = sum(cost.ours < cost.inductor for cost in found)
    yield f"{len(found)} sizes measured; fusedops is faster than Inductor on {faster} of them"
    if measured.disturbed:
        yield (
            f"left out, for other programs disturbed them: {measured.disturbed} sizes; their "
            "nearest neighbours count. Run it again when the machine is quiet"
        )
    if late := measured.late:
        yield (
            f"left out, for {'you interrupted it' if measured.interrupted else 'the time was up'}: "
            f"{len(late)} of {len(late) + len(measured.costs)} "
            f"graphs, from {late[0]} on; their nearest neighbours count. Run it again, or with a "
            "larger --budget: what is compiled is kept"
        )
