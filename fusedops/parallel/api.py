"""Defines `parallel_stack`, which runs functions concurrently and stacks their results. It runs
them on threads (CPU), on streams (CUDA), or one after another."""

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
    r"""Runs independent functions concurrently and stacks their results.

    The result equals ``torch.stack([f(x) for f, x in zip(functions, inputs)], dim)`` in values,
    gradients, dtype, strides and errors. Every branch (a function and its input) copies its result
    into its slot of the stack when it finishes, so that there is no further copy at the end.

    CPU: the branches run on the calling thread and a pool of threads, together at most one thread a
    core (two on a single core), among which torch's intra-op threads are divided. Every branch runs
    in the caller's grad mode, inference mode, autocast state and context variables; changes that it
    makes to the grad mode and the variables do not leave the branch. If no other threads are
    available, the caller runs all branches.

    CUDA: the calling thread launches the branches in order, each on a stream of its own, and the
    current stream waits for all of them.

    Branches run one after another, with the same result, under torch.compile, torch.export, FX and
    JIT tracing, torch.func, forward-mode AD, dispatch modes and tensor subclasses; on the CPU also
    under function modes (``torch.set_default_device``), hooks for saved tensors (checkpointing) and
    :func:`torch.use_deterministic_algorithms`.

    Args:
        functions: callables or modules that each return a tensor, all of one shape; or one callable
            for all inputs. They must be independent: none writes to what another one uses. On the
            CPU the order in which they draw random numbers is not fixed.
        inputs: one for each function: a tensor, or the tuple of its positional arguments.
        dim: the position of the new dimension in the result, as in :func:`torch.stack`.

    Returns:
        The stack, of the results' dtype (promoted where they differ).

    Raises:
        ValueError: no functions, or different numbers of functions and inputs.
        TypeError: a function that is not callable or does not return a tensor, an input that is
            neither tensor nor tuple, ``functions`` or ``inputs`` that are not iterable, a ``dim``
            that is not an int.
        IndexError: a ``dim`` out of range.
        RuntimeError: results whose shapes or devices differ, inputs on different devices, a result
            whose memory has been freed.
        Exception: any error of a branch, with a note that names the branch. If several branches
            fail, the first one's error is raised, and the others are added as notes. No branch is
            running any more when an error or a KeyboardInterrupt is raised.

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
