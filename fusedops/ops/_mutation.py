"""What an op that writes into an argument owes to autograd, as torch's own in-place ops do it."""

from __future__ import annotations

from typing import Any

import torch

from fusedops.ops._library import LIBRARY


def register_mutation(op: str, written: int) -> None:
    """``fusedops::op`` writes into its argument number ``written`` and has no derivative.

    A call that autograd would have to record is refused; every other call raises the tensor's
    version, so that a backward pass that has saved the old values notices.
    """
    overload = getattr(torch.ops.fusedops, op).default

    def refuse_gradients(keys: Any, *args: Any) -> None:
        given = [value for value in args if isinstance(value, torch.Tensor)]
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
            raise RuntimeError(
                f"fusedops::{op} writes into its argument and has no derivative, but an argument "
                "requires grad: call it under torch.no_grad(), or use the function without out="
            )
        with torch._C._AutoDispatchBelowAutograd():
            overload.redispatch(keys & torch._C._after_autograd_keyset, *args)

    def bump_version(keys: Any, *args: Any) -> None:
        torch.autograd.graph.increment_version(args[written])
        with torch._C._AutoDispatchBelowADInplaceOrView():
            overload.redispatch(keys & torch._C._after_ADInplaceOrView_keyset, *args)

    LIBRARY.impl(op, refuse_gradients, "Autograd", with_keyset=True)
    LIBRARY.impl(op, bump_version, "ADInplaceOrView", with_keyset=True)
