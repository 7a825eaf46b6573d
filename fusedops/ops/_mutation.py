"""What an op that writes into an argument owes to autograd, as torch's own in-place ops do it; and
what is refused before memory is touched."""

from __future__ import annotations

from typing import Any

import torch

from fusedops.ops._autograd import refuse_forward_mode
from fusedops.ops._library import LIBRARY


def _is_lazy(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_neg() or value._is_zerotensor())


def register_mutation(op: str, written: int) -> None:
    """``fusedops::op`` writes into its argument number ``written`` and has no derivative.

    A call that autograd would have to record is refused; every other call raises the tensor's
    version, so that a backward pass that has saved the old values notices.
    """
    overload = getattr(torch.ops.fusedops, op).default
    name, names = f"fusedops::{op}", [a.name for a in overload._schema.arguments]
    target = names[written]

    def refuse_gradient(argument: str) -> None:
        raise RuntimeError(
            f"{name} writes into its argument {target} and has no derivative, but {argument} "
            "requires grad: call it under torch.no_grad(), or use the function without out"
        )

    def refuse_derivatives(keys: Any, *args: Any) -> None:
        refuse_forward_mode(name, args)
        if torch.is_grad_enabled():
            for index, value in enumerate(args):
                if isinstance(value, torch.Tensor) and value.requires_grad:
                    refuse_gradient(names[index])
        with torch._C._AutoDispatchBelowAutograd():
            overload.redispatch(keys & torch._C._after_autograd_keyset, *args)

    def bump_version(keys: Any, *args: Any) -> None:
        tensor = args[written]
        if tensor is not None and tensor.is_inference():
            raise RuntimeError(
                f"{name}: {target} was made in inference mode and is written outside of it, "
                "which autograd would not notice; make it with .clone()"
            )
        with torch._C._AutoDispatchBelowADInplaceOrView():
            overload.redispatch(keys & torch._C._after_ADInplaceOrView_keyset, *args)
        torch.autograd.graph.increment_version(tensor)

    def resolve(*args: Any) -> None:
        if args[written].is_neg() or args[written]._is_zerotensor():
            raise RuntimeError(
                f"{name}: {target} is a lazy view (a negation, or zeros without memory) whose "
                "memory holds other values; make it with .resolve_neg().clone()"
            )
        overload(*(a.resolve_neg().clone() if _is_lazy(a) else a for a in args))

    LIBRARY.impl(op, refuse_derivatives, "Autograd", with_keyset=True)
    LIBRARY.impl(op, bump_version, "ADInplaceOrView", with_keyset=True)
    LIBRARY.impl(op, resolve, "Negative")
    LIBRARY.impl(op, resolve, "ZeroTensor")


def check_recordable(op: str, input: torch.Tensor) -> None:
    """Refuses what autograd would refuse once memory is written, of an ``input`` that requires grad
    and is written in place. As ``check_inplace`` of torch/csrc/autograd/VariableTypeUtils.h."""
    refuse_forward_mode(op, (input,))
    if input.is_leaf:
        what = "a leaf that requires grad"
    elif not input._is_view() or input._base is None:
        return
    elif input._base.is_leaf:
        what = "a view of a leaf that requires grad"
    elif torch._C._autograd._get_creation_meta(input) != torch._C._autograd.CreationMeta.DEFAULT:
        what = "one of several views that one function returned (unbind, split, chunk)"
    else:
        return
    raise RuntimeError(
        f"{op}: input is {what}, whose value autograd needs as it is; use softmax, or call {op} "
        "under torch.no_grad()"
    )
