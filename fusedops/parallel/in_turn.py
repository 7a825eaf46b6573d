"""Runs branches one after another. Branches have to run so if a tracer or a mode has to see their
calls, or if the calls depend on state of the calling thread."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad
from torch.fx._symbolic_trace import is_fx_symbolic_tracing

from fusedops.parallel.branches import Branch, call, raise_first, tensors_in


def is_traced() -> bool:
    """Whether a compiler or tracer records the calls. parallel_stack then calls the functions and
    ``torch.stack``, which the tracer can record."""
    return torch.compiler.is_compiling() or is_fx_symbolic_tracing() or torch._C._is_tracing()


def must_run_in_turn(branches: list[Branch], device: torch.device) -> bool:
    if device.type == "cpu":
        return _is_watched(branches) or _is_tied_to_this_thread()
    return device.type != "cuda" or _is_watched(branches)


def _is_watched(branches: list[Branch]) -> bool:
    """Whether a dispatch mode or torch.func transform intercepts calls, forward-mode AD is on, or
    an argument is a tensor subclass.

    In these cases results have tangents, batch dimensions or types of their own, which would be
    lost if they were copied into the stack.
    """
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.maybe_current_level() is not None
        or forward_ad._current_level >= 0
        or any(
            type(tensor) not in (torch.Tensor, torch.nn.Parameter)
            for branch in branches
            for tensor in tensors_in(branch.arguments)
        )
    )


def _is_tied_to_this_thread() -> bool:
    """Whether other threads than the caller's would compute something else, or add gradients in
    another order.

    There are three reasons. Two threads cannot enter the same function mode. Checkpointing, which
    sets hooks for saved tensors, identifies these tensors by their order. And where the gradients
    of three or more branches are added, autograd adds them in the order of the nodes' sequence
    numbers, which each thread counts for itself; deterministic algorithms forbid this.
    """
    return (
        torch._C._len_torch_function_stack() > 0
        or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        or torch.are_deterministic_algorithms_enabled()
    )


def run_in_turn(branches: list[Branch]) -> list[torch.Tensor]:
    """Returns the results of all branches. After an error the remaining branches do not run."""
    errors: dict[int, BaseException] = {}
    results = []
    for index, branch in enumerate(branches):
        try:
            results.append(call(index, branch))
        except BaseException as error:
            errors[index] = error
            break
    raise_first(errors, branches)
    return results
