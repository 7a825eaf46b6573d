"""Registers the ops' derivative formulas, and keeps forward mode from being silently wrong.

``torch.library.register_autograd`` runs an op whose inputs need no gradient without its formula;
a forward-mode tangent on such an input would be lost, and the derivative come out zero. Here it
raises instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.autograd import forward_ad

from fusedops.ops._library import LIBRARY


def _is_dual(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and forward_ad.unpack_dual(value).tangent is not None


def refuse_forward_mode(op: str, args: Iterable[Any]) -> None:
    """Raises where an argument carries a tangent, which would be lost."""
    # The level is -1 outside forward mode, where unpacking every argument would cost 1 us.
    if forward_ad._current_level >= 0 and any(map(_is_dual, args)):
        raise NotImplementedError(
            f"{op} has no forward-mode derivative (jvp, jacfwd): use reverse mode "
            "(torch.autograd.grad, vjp), or torch's own function for this call"
        )


class _ReverseModeLibrary:
    """The library as ``register_autograd`` sees it: what it registers refuses forward mode."""

    def impl(self, op: str, kernel: Callable, dispatch_key: str, **options: Any) -> None:
        def reverse_mode_only(*args: Any, **kwargs: Any) -> Any:
            refuse_forward_mode(op, args)
            return kernel(*args, **kwargs)

        LIBRARY.impl(op.split("::")[-1], reverse_mode_only, dispatch_key, **options)


def register_autograd(op: str, backward: Callable, setup_context: Callable) -> None:
    """``torch.library.register_autograd`` for ``fusedops::op``, reverse mode only."""
    torch.library.register_autograd(
        f"fusedops::{op}", backward, setup_context=setup_context, lib=_ReverseModeLibrary()
    )


def register_autograd_of_lists(op: str, backward: Callable, setup_context: Callable) -> None:
    """The same for an op that takes lists of tensors, and has no arguments with defaults.

    ``backward`` returns the gradients of all tensors, one after the other as the lists are in the
    arguments; ``ctx.needs_input_grad`` has two entries, then one for each of them. Where
    ``torch.library.register_autograd`` takes lists apart it costs 100 us for 16 tensors.
    """
    overload = getattr(torch.ops.fusedops, op).default

    class Formula(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, keyset: Any, args: tuple, *_: torch.Tensor) -> Any:
            result = run(keyset, args)
            setup_context(ctx, args, result)
            return result

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple:
            return None, None, *backward(ctx, *grads)

    def run(keyset: Any, args: tuple) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return overload.redispatch(keyset & torch._C._after_autograd_keyset, *args)

    def kernel(keyset: Any, *args: Any) -> Any:
        lists = (arg if isinstance(arg, list) else [arg] for arg in args)
        tensors = [t for given in lists for t in given if isinstance(t, torch.Tensor)]
        refuse_forward_mode(f"fusedops::{op}", tensors)
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            return Formula.apply(keyset, args, *tensors)
        return run(keyset, args)

    LIBRARY.impl(op, kernel, "Autograd", with_keyset=True)


def gradient(op: str, *args: Any) -> Any:
    """``fusedops::op`` for a formula: its twin where no second derivative is asked for."""
    is_last = not torch.is_grad_enabled() and needs_no_formula()
    return getattr(torch.ops.fusedops, f"_{op}" if is_last else op).default(*args)


def needs_no_formula(*tensors: torch.Tensor | None) -> bool:
    """Whether a plain eager call on ``tensors`` may use an op's twin without autograd formula.

    Not where anything watches or transforms the call: a compiler, a dispatch mode, a tensor
    subclass, forward mode, or a gradient that will be asked for. Nor of what is no tensor: the op
    says so.
    """
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0:
        return False
    if forward_ad._current_level >= 0:
        return False
    given = [tensor for tensor in tensors if tensor is not None]
    try:
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
            return False
    except AttributeError:
        return False
    return all(type(tensor) in (torch.Tensor, torch.nn.Parameter) for tensor in given)
