"""Runs branches, which are functions with their arguments, on CPU threads."""

from __future__ import annotations

import contextvars
import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from fusedops.parallel.branches import Branch, call, raise_first
from fusedops.parallel.slots import Slots


def run_on_threads(branches: list[Branch], dim: int) -> torch.Tensor:
    """Runs the branches on this thread and on idle threads of the pool, and returns the stack of
    their results."""
    run = _Run(branches, Slots(len(branches), dim))
    threads = min(len(branches), most_threads())
    share = max(1, torch.get_num_threads() // threads)
    state = _CallersState()
    try:
        for _ in range(threads - 1):
            if not _try_submit(run.work, share, state.run_elsewhere):
                break
        run.work(share, state.run_here)
    except BaseException as error:  # this may be a KeyboardInterrupt between two branches
        run.stop(error)
    finally:
        run.close()
    return run.stacked()


def _try_submit(work: Callable[..., None], *arguments: Any) -> bool:
    """Submits ``work`` to the pool; returns whether the pool accepted it.

    The pool refuses work when Python is about to exit, or when the system has no more threads. The
    threads that already work on the branches then run all of them.
    """
    try:
        _pool().submit(work, *arguments)
    except RuntimeError:
        return False
    return True


class _Run:
    """A queue of branches. Each thread takes the next branch, in order, until none is left or one
    has failed.

    The calling thread takes branches too, and at the end waits only for threads that have begun to
    work. A nested call therefore makes progress even if all threads of the pool are busy.
    """

    def __init__(self, branches: list[Branch], slots: Slots) -> None:
        self._branches = branches
        self._slots = slots
        self._changed = threading.Condition(threading.Lock())
        self._next = 0
        self._working = 0
        self._closed = False
        self._errors: dict[int, BaseException] = {}
        self._stopped_by: list[BaseException] = []

    def work(self, share: int, run: Callable[..., None]) -> None:
        """Runs branches on this thread until none is left, with ``share`` intra-op threads of
        torch. Each branch is run by ``run(function, index)``, which sets the caller's state around
        it. Does nothing if the run is closed."""
        with self._changed:
            if self._closed:
                return
            self._working += 1
        try:
            with _intra_op_threads(share):
                while (index := self._take()) is not None:
                    run(self._finish, index)
        except BaseException as error:
            self.stop(error)
        finally:
            with self._changed:
                self._working -= 1
                self._changed.notify_all()

    def _take(self) -> int | None:
        """Returns the index of the next branch, or None if all are taken, one has failed, or the
        run was stopped."""
        with self._changed:
            if self._errors or self._stopped_by or self._next == len(self._branches):
                return None
            self._next += 1
            return self._next - 1

    def _finish(self, index: int) -> None:
        # Errors are caught here because `run` in `work` enters context managers, and some of these
        # change an error that passes through them.
        try:
            self._slots.put(index, call(index, self._branches[index]))
        except BaseException as error:
            self._errors[index] = error

    def stop(self, error: BaseException) -> None:
        self._stopped_by.append(error)

    def close(self) -> None:
        """Waits, despite interrupts, until no thread works, and lets no further thread begin."""
        while True:
            try:
                with self._changed:
                    self._closed = True
                    self._changed.wait_for(lambda: self._working == 0)
                    return
            except BaseException as interrupt:
                self.stop(interrupt)

    def stacked(self) -> torch.Tensor:
        branches, slots = self._branches, self._slots
        del self._branches, self._slots  # the pool's queue may keep this run alive for a while
        if self._stopped_by:
            raise self._stopped_by[0]
        raise_first(self._errors, branches)
        return slots.stacked()


def most_threads() -> int:
    """Returns how many threads may run branches, the caller's included: one for each core that the
    process may use, but at least two."""
    return max(2, len(os.sched_getaffinity(0)))


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(most_threads() - 1, thread_name_prefix="parallel_stack")


# A forked process inherits the pool object without its threads, so that it has to make a new pool.
os.register_at_fork(after_in_child=_pool.cache_clear)


@contextmanager
def _intra_op_threads(count: int) -> Iterator[None]:
    """Sets the number of torch's intra-op threads for this thread alone.

    :func:`torch.set_num_threads` would also change the default of threads that start later. OpenMP
    and MKL each have a number for each thread, and MKL's takes precedence where torch has set it. A
    torch without OpenMP has one pool for all threads, which cannot be divided.
    """
    # A thread's first call of this function sets its numbers for OpenMP and MKL to the defaults.
    before = torch.get_num_threads()
    libraries = _torch_libraries()
    if count == before or not hasattr(libraries, "omp_set_num_threads"):
        yield
        return
    set_mkl = getattr(libraries, "MKL_Set_Num_Threads_Local", lambda count: 0)
    libraries.omp_set_num_threads(count)
    mkl_before = set_mkl(count)
    try:
        yield
    finally:
        libraries.omp_set_num_threads(before)
        set_mkl(mkl_before)


@functools.cache
def _torch_libraries() -> ctypes.PyDLL:
    """Returns an object with the functions of all libraries to which torch is linked."""
    return ctypes.PyDLL(torch._C.__file__)


class _CallersState:
    """Holds the state of the calling thread, which every branch gets, on whatever thread it runs.

    Context variables and the grad mode are restored after each branch, so that a branch does not
    change what the next one on its thread sees. It is arbitrary which branches share a thread.
    """

    def __init__(self) -> None:
        self._inference = torch.is_inference_mode_enabled()
        self._grad = torch.is_grad_enabled()
        self._autocast = _Autocast.of_this_thread()
        self._stream = torch.cuda.current_stream() if torch.cuda.is_initialized() else None
        self._context = contextvars.copy_context()

    def run_here(self, function: Callable[..., None], *arguments: Any) -> None:
        self._context.copy().run(function, *arguments)
        if torch.is_grad_enabled() != self._grad:
            torch.set_grad_enabled(self._grad)

    def run_elsewhere(self, function: Callable[..., None], *arguments: Any) -> None:
        with (
            torch.inference_mode(self._inference),
            torch.set_grad_enabled(self._grad),
            torch.cuda.stream(self._stream),
            self._autocast.applied(),
        ):
            self._context.copy().run(function, *arguments)


class _Autocast(NamedTuple):
    """Holds a thread's autocast state.

    devices: device type -> whether autocast is enabled, and its dtype.
    cache: whether autocast's cache of converted weights is enabled.
    nested: whether the thread is inside an autocast context.
    """

    devices: dict[str, tuple[bool, torch.dtype]]
    cache: bool
    nested: bool

    @classmethod
    def of_this_thread(cls) -> _Autocast:
        devices = {
            device: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in ("cpu", "cuda")
        }
        nested = torch.autocast_increment_nesting() > 1
        torch.autocast_decrement_nesting()
        return cls(devices, torch.is_autocast_cache_enabled(), nested)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Sets this state on the current thread for a block, and then restores the thread's own."""
        # A thread that leaves its outermost autocast context clears the cache of all threads. If
        # the caller is inside of such a context, the nesting is incremented here too, so that a
        # branch that enters and leaves autocast does not clear the cache.
        before = _Autocast.of_this_thread()
        if self.nested:
            torch.autocast_increment_nesting()
        self._set()
        try:
            yield
        finally:
            before._set()
            if self.nested:
                torch.autocast_decrement_nesting()

    def _set(self) -> None:
        for device, (enabled, dtype) in self.devices.items():
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(self.cache)
