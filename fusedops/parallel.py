"""Independent functions at the same time, each result written into its slot of one stack.

:func:`parallel_stack` chooses between three ways to run them: on threads (CPU), on streams (CUDA),
and in turn, where something watches the calls or is tied to the calling thread.
"""

from __future__ import annotations

import contextvars
import ctypes
import functools
import itertools
import os
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad
from torch.fx import _symbolic_trace

Function = Callable[..., torch.Tensor]
Input = torch.Tensor | tuple[Any, ...]


def parallel_stack(
    functions: Function | Sequence[Function], inputs: Sequence[Input], dim: int = 0
) -> torch.Tensor:
    r"""Stacks what independent functions return, and runs them at the same time.

    ``torch.stack([f(x) for f, x in zip(functions, inputs)], dim)`` in values, gradients, dtype,
    strides and errors. Every branch (a function and its input) copies its result into its slot of
    the output as soon as it is there; nothing is copied again when all are.

    On the CPU the branches share the calling thread and a pool of others, at most one a core
    together, and torch's intra-op threads are divided among them; grad mode, inference mode,
    autocast and context variables are the caller's, and what a branch sets of the grad mode and of
    the variables is its own. Where there are no other threads to be had the caller does all. With
    CUDA inputs each branch has a stream of its own, is launched by the calling thread in order, and
    the current stream waits for all. Branches run in turn, to the same result, under torch.compile,
    torch.export, FX and JIT tracing, torch.func, forward-mode AD, dispatch modes and tensor
    subclasses; on the CPU under function modes (``torch.set_default_device``), hooks for saved
    tensors (checkpointing) and :func:`torch.use_deterministic_algorithms` too.

    Args:
        functions: callables or modules that return a tensor each, of one shape; or one callable,
            for all inputs. They must be independent: none writes to what another one uses. On the
            CPU they draw random numbers in no fixed order.
        inputs: one a function: a tensor, or the tuple of its positional arguments.
        dim: where the new dimension comes in the result, as in :func:`torch.stack`.

    Returns:
        The stack, of the results' dtype (promoted where they differ).

    Raises:
        ValueError: no functions, or not as many as inputs.
        TypeError: a function that is not callable or does not return a tensor, an input that is
            neither tensor nor tuple, ``functions`` or ``inputs`` that are no iterable, a ``dim``
            that is no int.
        IndexError: a ``dim`` out of range.
        RuntimeError: results whose shapes or devices differ, inputs on different devices, a result
            whose memory has been freed.
        Whatever a branch raises, with a note that names the branch: of several the first one's,
            the others in notes. Nothing is left running then, nor after a KeyboardInterrupt.

    Source: :func:`torch.stack`.
    """
    branches = _branches(functions, inputs)
    if _is_traced():
        return torch.stack([function(*arguments) for function, arguments in branches], dim)
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f"parallel_stack: dim is {dim!r}, a {type(dim).__name__}, wanted an int")
    device = _common_device(branches)
    if _must_run_in_turn(branches, device):
        results = _run_in_turn(branches)
        return torch.stack(results, _checked_dim(results, dim))
    if device.type == "cuda":
        return run_on_streams(branches, dim, CudaStreams(device))
    return _run_on_threads(branches, dim)


class Branch(NamedTuple):
    function: Function
    arguments: tuple[Any, ...]


def _branches(functions: Function | Sequence[Function], inputs: Sequence[Input]) -> list[Branch]:
    if isinstance(inputs, torch.Tensor):
        raise TypeError(
            "parallel_stack: inputs is one tensor, wanted one entry a function; "
            "pass inputs.unbind() for its slices"
        )
    inputs = _as_list("inputs", inputs)
    # A ModuleList is callable as every module is, but cannot be called.
    if callable(functions) and not isinstance(functions, torch.nn.ModuleList):
        functions = [functions] * len(inputs)
    functions = _as_list("functions", functions)
    if not functions:
        raise ValueError("parallel_stack: there are no functions, wanted at least one")
    if len(functions) != len(inputs):
        raise ValueError(
            f"parallel_stack: {len(functions)} functions and {len(inputs)} inputs, "
            "wanted one input a function"
        )
    pairs = enumerate(zip(functions, inputs, strict=True))
    return [_branch(index, function, entry) for index, (function, entry) in pairs]


def _as_list(name: str, given: Any) -> list[Any]:
    if not isinstance(given, Iterable):
        raise TypeError(
            f"parallel_stack: {name} is a {type(given).__name__}, wanted a list or another iterable"
        )
    return list(given)


def _branch(index: int, function: Function, entry: Input) -> Branch:
    if not callable(function):
        raise TypeError(
            f"parallel_stack: functions[{index}] is a {type(function).__name__}, wanted a callable"
        )
    if isinstance(entry, tuple):
        return Branch(function, entry)
    if isinstance(entry, (torch.Tensor, torch.fx.Proxy)):
        return Branch(function, (entry,))
    raise TypeError(
        f"parallel_stack: inputs[{index}] is a {type(entry).__name__}, wanted a tensor or a tuple "
        "of positional arguments"
    )


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in an argument, in tuples, lists and dicts too."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _common_device(branches: list[Branch]) -> torch.device:
    """The device of all branches; numbers that a branch keeps on the CPU do not count."""
    first: tuple[int, torch.device] | None = None
    for index, branch in enumerate(branches):
        devices = {tensor.device for tensor in _tensors(branch.arguments)}
        for device in sorted(devices - {_CPU} or devices, key=str):
            first = first or (index, device)
            if device != first[1]:
                raise RuntimeError(
                    f"parallel_stack: branch {index} has inputs on {device}, wanted {first[1]} as "
                    f"branch {first[0]} has; move them with .to()"
                )
    return first[1] if first else _CPU


_CPU = torch.device("cpu")


# In turn


def _is_traced() -> bool:
    """Whether a compiler or tracer reads this code: it gets the plain form, in its own terms."""
    return (
        torch.compiler.is_compiling()
        or _symbolic_trace._is_fx_tracing_flag
        or torch.jit.is_tracing()
    )


def _must_run_in_turn(branches: list[Branch], device: torch.device) -> bool:
    if device.type == "cpu":
        return _is_watched(branches) or _is_tied_to_this_thread()
    return device.type != "cuda" or _is_watched(branches)


def _is_watched(branches: list[Branch]) -> bool:
    """Whether something looks at each call, or a tensor is more than its values.

    A copy into a slot is not what they ask for: it would lose tangents, batch dimensions, types.
    """
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.maybe_current_level() is not None
        or forward_ad._current_level >= 0
        or any(
            type(tensor) not in (torch.Tensor, torch.nn.Parameter)
            for branch in branches
            for tensor in _tensors(branch.arguments)
        )
    )


def _is_tied_to_this_thread() -> bool:
    """Whether other threads would compute something else, or the same in another order.

    Modes cannot be entered by two threads. Checkpointing tells saved tensors by their order. And
    where gradients of three or more branches meet, autograd adds them in the order of the nodes,
    which every thread numbers for itself.
    """
    return (
        torch._C._len_torch_function_stack() > 0
        or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        or torch.are_deterministic_algorithms_enabled()
    )


def _run_in_turn(branches: list[Branch]) -> list[torch.Tensor]:
    errors: dict[int, BaseException] = {}
    results = []
    for index, branch in enumerate(branches):
        try:
            results.append(_call(index, branch))
        except BaseException as error:
            errors[index] = error
            break
    _raise_first(errors, branches)
    return results


def _call(index: int, branch: Branch) -> torch.Tensor:
    result = branch.function(*branch.arguments)
    if not isinstance(result, torch.Tensor):
        raise TypeError(
            f"parallel_stack: branch {index} returned a {type(result).__name__}, wanted a tensor"
        )
    return result


def _raise_first(errors: dict[int, BaseException], branches: list[Branch]) -> None:
    """Raises the error of the first branch that has one, an interrupt before any other."""
    if not errors:
        return
    order = sorted(errors, key=lambda index: (isinstance(errors[index], Exception), index))
    first, others = errors[order[0]], order[1:]
    _add_note(first, f"parallel_stack: raised by {_describe(order[0], branches)}")
    for index in others:
        (*_, text) = traceback.format_exception_only(errors[index])
        _add_note(first, f"parallel_stack: {_describe(index, branches)} raised {text.rstrip()}")
    try:
        raise first
    finally:
        # The traceback holds this frame: without these lines error and tensors would be a cycle.
        errors.clear()
        del first


def _describe(index: int, branches: list[Branch]) -> str:
    function = branches[index].function
    try:
        name = function.__qualname__
    except Exception:  # most objects that can be called have none
        name = type(function).__name__
    return f"branch {index} ({name})"


def _add_note(error: BaseException, text: str) -> None:
    # BaseException.add_note, which is of Python 3.11. 3.10 keeps the note and does not print it.
    notes = [*getattr(error, "__notes__", ()), text]
    BaseException.__setattr__(error, "__notes__", notes)  # also where a class forbids it


# The results


def _checked_dim(results: list[torch.Tensor], dim: int) -> int:
    """``dim``, counted from the front, of results that can be stacked."""
    first = results[0]
    for index, result in enumerate(results):
        if result.shape != first.shape:
            raise RuntimeError(
                f"parallel_stack: branch {index} returned shape {list(result.shape)}, wanted "
                f"{list(first.shape)} as branch 0 returned"
            )
        if result.device != first.device:
            raise RuntimeError(
                f"parallel_stack: branch {index} returned a tensor on {result.device}, wanted "
                f"{first.device} as branch 0 returned"
            )
    return _wrapped_dim(dim, first)


def _wrapped_dim(dim: int, result: torch.Tensor) -> int:
    bound = result.dim() + 1
    if not -bound <= dim < bound:
        raise IndexError(
            f"parallel_stack: dim is {dim}, wanted a value in [{-bound}, {bound - 1}] "
            f"for results of shape {list(result.shape)}"
        )
    return dim % bound


class _Slots:
    """The output, allocated when the first result is known, and what has been written into it."""

    def __init__(
        self,
        count: int,
        dim: int,
        allocating: Callable[[], AbstractContextManager] = nullcontext,
    ) -> None:
        self._results: list[Any] = [None] * count
        self._dim = dim
        self._allocating = allocating
        self._lock = threading.Lock()
        self._buffer: torch.Tensor | None = None
        self._form: tuple[Any, ...] = ()
        self._complete = True

    def put(self, index: int, result: torch.Tensor) -> None:
        """Copies a result into its slot, and lets go of it if no gradient goes through it."""
        bound = result.dim() + 1
        fits = _is_plain(result) and -bound <= self._dim < bound
        if fits and result.numel() and not result.untyped_storage().nbytes():
            raise RuntimeError(
                f"parallel_stack: branch {index} returned a tensor of shape {list(result.shape)} "
                "whose memory has been freed; return a clone that is made before"
            )
        with self._lock:
            if self._buffer is None and fits:
                self._allocate(result)
        if not fits or self._form != _form(result):
            self._complete = False
            self._results[index] = result
            return
        with torch.no_grad():
            slot = self._buffer.select(self._dim, index)
            slot.copy_(result)
        self._results[index] = result if result.requires_grad else slot

    def _allocate(self, result: torch.Tensor) -> None:
        dim = self._dim % (result.dim() + 1)
        shape, strides = _stack_layout(result, len(self._results), dim)
        with self._allocating():
            self._buffer = torch.empty_strided(
                shape, strides, dtype=result.dtype, device=result.device
            )
        self._form = _form(result)

    def stacked(self) -> torch.Tensor:
        dim = _checked_dim(self._results, self._dim)
        if not self._complete:  # of several dtypes, or sparse: torch.stack knows what to make of it
            return torch.stack(self._results, dim)
        if torch.is_grad_enabled() and any(result.requires_grad for result in self._results):
            return _Stacked.apply([self._buffer], dim, *self._results)
        return self._buffer


def _is_plain(result: torch.Tensor) -> bool:
    """Whether a result is no more than elements in memory."""
    return (
        type(result) in (torch.Tensor, torch.nn.Parameter)
        and result.layout == torch.strided
        and not result.is_quantized
    )


def _form(result: torch.Tensor) -> tuple[Any, ...]:
    """What results must have in common to be copied into one buffer as they are."""
    strides = result.stride() if _may_be_channels_last(result) else None
    return result.shape, result.dtype, result.device, strides


def _may_be_channels_last(result: torch.Tensor) -> bool:
    """Whether torch.stack may give other strides than a contiguous tensor's.

    It keeps channels_last, which sizes of 1 may leave a tensor that is contiguous as well.
    """
    return (
        _is_plain(result)
        and 3 <= result.dim() <= 5
        and result.stride() != _contiguous_strides(result.shape)
    )


def _contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides = itertools.accumulate(reversed(shape[1:]), lambda n, size: n * max(size, 1), initial=1)
    return tuple(strides)[::-1] if shape else ()


def _stack_layout(
    result: torch.Tensor, count: int, dim: int
) -> tuple[Sequence[int], Sequence[int]]:
    """Shape and strides of a stack of ``count`` tensors like ``result``."""
    if _may_be_channels_last(result):
        like = torch.empty_strided(result.shape, result.stride(), device="meta")
        stack = torch.stack([like] * count, dim)  # 0.1 ms
        return stack.shape, stack.stride()
    shape = (*result.shape[:dim], count, *result.shape[dim:])
    return shape, _contiguous_strides(shape)


class _Stacked(torch.autograd.Function):
    """A buffer that holds the results already, as the stack of them."""

    @staticmethod
    def forward(
        ctx: Any, buffer: list[torch.Tensor], dim: int, *results: torch.Tensor
    ) -> torch.Tensor:
        ctx.dim = dim
        return buffer[0]  # it came in a list: of a tensor argument, autograd would make a view

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return None, None, *grad.unbind(ctx.dim)


# On threads


def _run_on_threads(branches: list[Branch], dim: int) -> torch.Tensor:
    run = _Run(branches, _Slots(len(branches), dim))
    threads = min(len(branches), _most_threads())
    share = max(1, torch.get_num_threads() // threads)
    state = _CallersState()
    try:
        for _ in range(threads - 1):
            if not _has_begun(run.work, share, state.run_elsewhere):
                break
        run.work(share, state.run_here)
    except BaseException as error:  # an interrupt between two branches
        run.stop(error)
    finally:
        run.close()
    return run.stacked()


def _has_begun(work: Callable[..., None], *arguments: Any) -> bool:
    """Whether a thread of the pool will work too.

    None does when Python is about to exit or the system gives no more threads: then the caller does
    all of it.
    """
    try:
        _pool().submit(work, *arguments)
    except RuntimeError:
        return False
    return True


class _Run:
    """Branches that threads take one after another, in order, until one fails.

    Whoever calls takes branches too, and waits only for threads that have taken one: a call inside
    a branch goes on by itself when all others are busy.
    """

    def __init__(self, branches: list[Branch], slots: _Slots) -> None:
        self._branches = branches
        self._slots = slots
        self._changed = threading.Condition(threading.Lock())
        self._next = 0
        self._working = 0
        self._closed = False
        self._errors: dict[int, BaseException] = {}
        self._stopped_by: list[BaseException] = []

    def work(self, share: int, run: Callable[..., None]) -> None:
        """Takes branches while there are any; nothing when the run is over."""
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
        with self._changed:
            if self._errors or self._stopped_by or self._next == len(self._branches):
                return None
            self._next += 1
            return self._next - 1

    def _finish(self, index: int) -> None:
        # Caught here: contexts between this and the loop would change some errors on their way.
        try:
            self._slots.put(index, _call(index, self._branches[index]))
        except BaseException as error:
            self._errors[index] = error

    def stop(self, error: BaseException) -> None:
        self._stopped_by.append(error)

    def close(self) -> None:
        """Returns when no thread works, and none will begin; an interrupt waits as well."""
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
        del self._branches, self._slots  # the pool's queue may hold this run for a while
        if self._stopped_by:
            raise self._stopped_by[0]
        _raise_first(self._errors, branches)
        return slots.stacked()


def _most_threads() -> int:
    """The caller and the pool together: one a core, but two at least."""
    return max(2, len(os.sched_getaffinity(0)))


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_most_threads() - 1, thread_name_prefix="parallel_stack")


# A forked process has the pool, and none of its threads.
os.register_at_fork(after_in_child=_pool.cache_clear)


@contextmanager
def _intra_op_threads(count: int) -> Iterator[None]:
    """``count`` of torch's threads for what this thread calls, and no other number for others.

    :func:`torch.set_num_threads` also sets what threads that start later begin with. OpenMP and MKL
    each keep a number a thread, and MKL's own wins where torch has set it. A torch without OpenMP
    has one pool for all threads, and nothing to divide.
    """
    before = torch.get_num_threads()  # a thread's first call sets its numbers
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
    """Everything that torch is linked to."""
    return ctypes.PyDLL(torch._C.__file__)


class _CallersState:
    """What belongs to the thread that calls, as every branch finds it, on whichever thread.

    Context variables and the grad mode that a branch sets are its own: which branches run on one
    thread, after one another, is a matter of chance.
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
    """A thread's autocast: by device, whether and to which dtype; its cache; inside autocast?"""

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
        # Whoever leaves the outermost autocast of a thread clears the cache of all threads. Counted
        # as nested, a branch leaves it to the caller, as in the caller's thread.
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


# On streams


class CudaStreams:
    """What this needs of torch.cuda. The tests have another one, which records the order."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def current(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._device)

    @contextmanager
    def borrowed(self, count: int) -> Iterator[list[torch.cuda.Stream]]:
        """Streams for one call; a call inside a branch gets others. Each thread has its own."""
        idle = vars(_idle_streams).setdefault(self._device, [])
        taken = [idle.pop() if idle else torch.cuda.Stream(self._device) for _ in range(count)]
        try:
            yield taken
        finally:
            idle.extend(reversed(taken))

    def using(self, stream: torch.cuda.Stream) -> AbstractContextManager:
        return torch.cuda.stream(stream)

    def crosses(self, tensor: torch.Tensor, stream: torch.cuda.Stream) -> None:
        """Keeps the allocator from handing the memory out before ``stream`` has done with it."""
        if tensor.is_cuda:
            tensor.record_stream(stream)


_idle_streams = threading.local()

#: torch.cuda.Stream has 32 streams a device, and starts over with the first.
_MOST_STREAMS = 32


def run_on_streams(branches: list[Branch], dim: int, streams: CudaStreams) -> torch.Tensor:
    """Launches every branch, in order, on a stream of its own between two of the current stream.

    Events fork and join, so that a CUDA graph captures it. The output belongs to the current
    stream, which waits for all who write into it before anything can follow: it needs no record.
    """
    current = streams.current()
    slots = _Slots(len(branches), dim, lambda: streams.using(current))
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
    _raise_first(errors, branches)
    return slots.stacked()


def _launch(
    index: int,
    branch: Branch,
    slots: _Slots,
    side: torch.cuda.Stream,
    current: torch.cuda.Stream,
    streams: CudaStreams,
) -> None:
    for tensor in _tensors(branch.arguments):
        streams.crosses(tensor, side)
    with streams.using(side):
        result = _call(index, branch)
        slots.put(index, result)
    streams.crosses(result, current)
