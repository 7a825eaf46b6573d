"""`parallel_stack`, which chooses between three ways to run its branches: on threads (CPU), on
streams (CUDA), and in turn."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fusedops.parallel.branches import Function, Input, as_branches, common_device
from fusedops.parallel.in_turn import is_traced, must_run_in_turn, run_in_turn
from fusedops.parallel.slots import checked_dim
from fusedops.parallel.streams import CudaStreams, run_on_streams
from fusedops.parallel.threads import run_on_threads


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
    branches = as_branches(functions, inputs)
    if is_traced():
        return torch.stack([function(*arguments) for function, arguments in branches], dim)
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f"parallel_stack: dim is {dim!r}, a {type(dim).__name__}, wanted an int")
    device = common_device(branches)
    if must_run_in_turn(branches, device):
        results = run_in_turn(branches)
        return torch.stack(results, checked_dim(results, dim))
    if device.type == "cuda":
        return run_on_streams(branches, dim, CudaStreams(device))
    return run_on_threads(branches, dim)
