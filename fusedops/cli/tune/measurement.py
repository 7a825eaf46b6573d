"""Compiles the graphs of `tune`, several at a time, and then times them, one at a time."""

from __future__ import annotations

import functools
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.context import BaseContext
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch import Tensor

from fusedops.cli.bench.cases import gradients
from fusedops.cli.bench.measurement import OURS
from fusedops.cli.timing import Call, Clock, clock_for, interleave
from fusedops.cli.tune.graphs import Graph
from fusedops.graph.policy.costs import INFERENCE, TRAINING, Cost

INDUCTOR = "inductor"
#: A size is timed in rounds, in which each call is repeated for SLOT_MS. There are as many rounds
#: as take LONGEST_MS, but at least LEAST_ROUNDS and at most MOST_ROUNDS.
SLOT_MS, LONGEST_MS = 1.5, 80
LEAST_ROUNDS, MOST_ROUNDS = 5, 15
#: The least time of all rounds is accepted if it is at most 10 % (STEADY) below the next larger
#: one. Otherwise the size is measured again, but at most ATTEMPTS times in all.
STEADY, ATTEMPTS = 0.1, 3
#: The most processes that compile for a GPU. Each takes about half a gigabyte of its memory.
MOST_ON_GPU = 8


def compile_ahead(graphs: Sequence[Graph], deadline: float) -> Iterator[Graph]:
    """Fills Inductor's cache on disk with the code of `graphs`, which are all for one device. Uses
    one process for each core. Yields each graph when it is compiled, until the deadline."""
    workers = os.cpu_count() or 1
    if graphs[0].device == "cpu":
        # Forked workers need not import the modules again. A forked process lacks the threads of
        # its parent, but no threads run yet.
        context: BaseContext = multiprocessing.get_context("fork")
    else:
        context = multiprocessing.get_context("spawn")  # CUDA does not work in a forked process
        workers = min(workers, MOST_ON_GPU)
    # The workers ignore Ctrl-C. The main process gets it too, and ends them.
    with context.Pool(workers, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        done = pool.imap_unordered(_compile_ahead, graphs)
        for _ in graphs:
            try:
                yield done.next(timeout=max(0.0, deadline - time.monotonic()))
            except multiprocessing.TimeoutError:
                return


def _compile_ahead(graph: Graph) -> Graph:
    with suppress(Exception):  # the main process will get the same error and report it
        prepare(graph)
    return graph


def prepare(graph: Graph) -> Callable[[int], dict[str, Call]]:
    """Compiles a graph. Returns a function that takes a number of rows, and returns the calls to
    time for it, by the names INDUCTOR and OURS."""
    torch.set_num_threads(graph.threads)
    torch.compiler.reset()  # without this, many graphs would reach Dynamo's recompilation limit
    operator = graph.operator
    functions = {
        INDUCTOR: torch.compile(operator.eager, backend="inductor", fullgraph=True),
        OURS: torch.compile(operator.fused, backend="fusedops", fullgraph=True),
    }

    def calls(rows: int) -> dict[str, Call]:
        inputs = _inputs(graph, rows)
        step = _infer if graph.mode == INFERENCE else _train
        leaves = inputs[: graph.operator.differentiated]
        return {
            name: functools.partial(step, function, leaves, inputs[len(leaves) :])
            for name, function in functions.items()
        }

    with _settings():
        for call in calls(graph.rows[-1]).values():
            call()
    return calls


@contextmanager
def _settings() -> Iterator[None]:
    """Makes Inductor compile in this process, and makes the number of threads a part of the key of
    its cache, since its code for a CPU depends on that number."""
    tag = f"{torch.get_num_threads()} threads"
    with (
        inductor_config.patch(compile_threads=1),
        torch.compiler.config.patch(cache_key_tag=tag),  # type: ignore[attr-defined]  # set at run time
    ):
        yield


def _inputs(graph: Graph, rows: int) -> tuple[Tensor, ...]:
    """Returns the inputs for a number of rows. In training they require gradients. If the graph is
    for several numbers of rows, Dynamo is told to make this number a symbol."""
    case = graph.case(rows)
    inputs = graph.operator.split(*case.inputs())
    for tensor in inputs[: graph.operator.differentiated]:
        tensor.requires_grad_(graph.mode == TRAINING)
    if len(graph.rows) > 1:
        for tensor in inputs:
            if tensor.dim() > 1 and tensor.shape[0] == case.shape[0]:
                torch._dynamo.mark_dynamic(tensor, 0)
    return inputs


@torch.no_grad()
def _infer(function: Callable[..., Any], leaves: Sequence[Tensor], others: Sequence[Tensor]) -> Any:
    return function(*leaves, *others)


def _train(function: Callable[..., Any], leaves: Sequence[Tensor], others: Sequence[Tensor]) -> Any:
    """Returns the gradients of `leaves`. The first output also serves as the incoming gradient."""
    outputs = function(*leaves, *others)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    differentiable = tuple(output for output in outputs if output.requires_grad)
    return gradients(differentiable, leaves, differentiable[0].detach())


def measure(graph: Graph) -> Iterator[Cost]:
    """Yields the cost of each number of rows, except those whose times other programs disturbed."""
    calls = prepare(graph)
    clock = clock_for(graph.device)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in graph.rows:
            if times := least_times(calls(rows), clock):
                bytes = rows * graph.cols * graph.dtype.itemsize
                copy = _copy_ms_per_byte(bytes, graph.device, graph.threads)
                yield Cost(times[INDUCTOR], times[OURS], copy, rows, graph.cols)


def least_times(calls: dict[str, Call], clock: Clock) -> dict[str, float] | None:
    """Returns the least time of each call over many short bursts, in which the calls take turns.
    The least time is the best estimate, because other programs can only increase a time. Returns
    None if the least time of a call was not nearly reached a second time (STEADY)."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ATTEMPTS):
        for name, more in _bursts(calls, clock).items():
            times[name] = sorted(times[name] + more)
        if all(least >= (1 - STEADY) * following for least, following, *_ in times.values()):
            return {name: each[0] for name, each in times.items()}
    return None


def _bursts(calls: dict[str, Call], clock: Clock) -> dict[str, list[float]]:
    """Times the calls in rounds for about LONGEST_MS, but for at least LEAST_ROUNDS and at most
    MOST_ROUNDS rounds. Returns the milliseconds of each call in each round."""
    slowest = max(clock(call, 1) + clock.overhead_ms for call in calls.values())
    # The calls of a slot that WallClock does not time take a third as long as those that it times.
    a_round = len(calls) * 4 / 3 * max(SLOT_MS, slowest)
    rounds = min(MOST_ROUNDS, max(LEAST_ROUNDS, math.ceil(LONGEST_MS / a_round)))
    return interleave(calls, clock, rounds, SLOT_MS)


@functools.cache
def _copy_ms_per_byte(bytes: int, device: str, threads: int) -> float:
    """Returns how many milliseconds a copy of a tensor of `bytes` bytes takes for each byte that it
    reads or writes. The copy uses torch's current number of threads, which has to be `threads`, so
    that it is part of this function's cache key."""
    source = torch.zeros(bytes, dtype=torch.uint8, device=device)
    copy = {"copy": functools.partial(torch.empty_like(source).copy_, source)}
    return min(interleave(copy, clock_for(device), rounds=5, slot_ms=SLOT_MS)["copy"]) / (2 * bytes)
