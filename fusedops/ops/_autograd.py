"""Registers the ops' derivative formulas, and keeps forward mode from being silently wrong.

``torch.library.register_autograd`` runs an op whose inputs need no gradient without its formula;
a forward-mode tangent on such an input would be lost, and the derivative come out zero. Here it
raises instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from fusedops.ops._library import LIBRARY


def _is_dual(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_is_dual, value))
    return isinstance(value, torch.Tensor) and forward_ad.unpack_dual(value).tangent is not None


class _ReverseModeLibrary:
    """The library as ``register_autograd`` sees it: what it registers refuses forward mode."""

    def impl(self, op: str, kernel: Callable, dispatch_key: str, **options: Any) -> None:
        def reverse_mode_only(*args: Any, **kwargs: Any) -> Any:
            # The level is -1 outside forward mode, where unpacking every argument would cost 1 us.
            if forward_ad._current_level >= 0 and any(map(_is_dual, args)):
                raise NotImplementedError(
                    f"{op} has no forward-mode derivative (jvp, jacfwd): use reverse mode "
                    "(torch.autograd.grad, vjp), or torch's own function for this call"
                )
            return kernel(*args, **kwargs)

        LIBRARY.impl(op.split("::")[-1], reverse_mode_only, dispatch_key, **options)


def register_autograd(op: str, backward: Callable, setup_context: Callable) -> None:
    """``torch.library.register_autograd`` for ``fusedops::op``, reverse mode only."""
    torch.library.register_autograd(
        f"fusedops::{op}", backward, setup_context=setup_context, lib=_ReverseModeLibrary()
    )


def needs_no_formula(*tensors: torch.Tensor | None) -> bool:
    """Whether a plain eager call on ``tensors`` may use an op's twin without autograd formula.

    Not where anything watches or transforms the call: a compiler, a dispatch mode, a tensor
    subclass, forward mode, or a gradient that will be asked for.
    """
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0:
        return False
    if forward_ad._current_level >= 0:
        return False
    given = [tensor for tensor in tensors if tensor is not None]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
        return False
    return all(type(tensor) in (torch.Tensor, torch.nn.Parameter) for tensor in given)
