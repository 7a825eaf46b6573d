"""Runs branches, which are functions with their arguments, on CUDA streams."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from fusedops.parallel.branches import Branch, call, raise_first, tensors_in
from fusedops.parallel.slots import Slots


class CudaStreams:
    """Calls the functions of torch.cuda that are used here. Tests replace it by a class that
    records the order of the calls."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def current(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._device)

    @contextmanager
    def borrowed(self, count: int) -> Iterator[list[torch.cuda.Stream]]:
        """Yields ``count`` streams for one call of parallel_stack. Nested calls, and calls on other
        threads, get other streams."""
        idle = vars(_idle_streams).setdefault(str(self._device), [])
        taken = [idle.pop() if idle else torch.cuda.Stream(self._device) for _ in range(count)]
        try:
            yield taken
        finally:
            idle.extend(reversed(taken))

    def using(self, stream: torch.cuda.Stream) -> AbstractContextManager[object]:
        return torch.cuda.stream(stream)

    def record_use(self, tensor: torch.Tensor, stream: torch.cuda.Stream) -> None:
        """Keeps the allocator from reusing a tensor's memory before ``stream`` has finished the
        work that it has been given so far."""
        if tensor.is_cuda:
            tensor.record_stream(stream)


_idle_streams = threading.local()

#: torch.cuda.Stream takes streams in turn from a pool of 32 per device, so that the 33rd would be
#: the first again.
_MOST_STREAMS = 32


def run_on_streams(branches: list[Branch], dim: int, streams: CudaStreams) -> torch.Tensor:
    """Launches every branch, in order, on a stream of its own, and returns the stack.

    Events fork the streams from the current stream and join them to it, so that CUDA graphs can
    capture the call. The stack is allocated on the current stream, which waits for all writers
    before it runs anything else. The stack therefore needs no `record_stream`.
    """
    current = streams.current()
    slots = Slots(len(branches), dim, lambda: streams.using(current))
    begin = current.record_event()
    errors: dict[int, BaseException] = {}
    with streams.borrowed(min(len(branches), _MOST_STREAMS)) as sides:
        used = []
        try:
            for index, (branch, side) in enumerate(zip(branches, itertools.cycle(sides))):
                side.wait_event(begin)
                used.append(side)
                try:
                    _launch(index, branch, slots, side, current, streams)
                except BaseException as error:
                    errors[index] = error
                    break
        finally:
            for side in dict.fromkeys(used):
                current.wait_event(side.record_event())
    raise_first(errors, branches)
    return slots.stacked()


def _launch(
    index: int,
    branch: Branch,
    slots: Slots,
    side: torch.cuda.Stream,
    current: torch.cuda.Stream,
    streams: CudaStreams,
) -> None:
    """Runs a branch on the stream ``side``, puts its result into its slot, and tells the allocator
    which streams use its tensors."""
    for tensor in tensors_in(branch.arguments):
        streams.record_use(tensor, side)
    with streams.using(side):
        result = call(index, branch)
        slots.put(index, result)
    streams.record_use(result, current)
