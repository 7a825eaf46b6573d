"""Registers with autograd the ops that write into an argument, as torch does for its own in-place
ops. A call that is refused has not written any memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C import _are_functorch_transforms_active

from fusedops.ops.registration.autograd import requires_grad
from fusedops.ops.registration.forward_mode import has_tangent, refuse_forward_mode
from fusedops.ops.registration.libraries import LIBRARY


def register_mutation(op: str, written: int, functional: str | None = None) -> None:
    """Declares that ``fusedops::op`` writes into its argument number ``written`` and has no
    derivative.

    A call that autograd would have to record is refused; every other call increments the tensor's
    version, so that a backward pass that has saved the old values raises. In forward mode, and
    where torch.func records the call, the result of ``functional``, an op of the same arguments, is
    copied into the argument, with its derivative; without ``functional`` the call is refused.
    """
    overload = getattr(torch.ops.fusedops, op).default
    resolve = _resolving_lazy_arguments(overload, written)
    autograd = _refusing_derivatives(overload, written)
    if functional is not None:
        autograd = _copying_derivatives(functional, written, autograd)
    LIBRARY.impl(op, autograd, "Autograd", with_keyset=True)
    LIBRARY.impl(op, _bumping_version(overload, written), "ADInplaceOrView", with_keyset=True)
    LIBRARY.impl(op, resolve, "Negative")
    LIBRARY.impl(op, resolve, "ZeroTensor")


def _names(overload: Any, written: int) -> tuple[str, str]:
    """Returns the names of the op and of the argument that it writes into, for messages."""
    schema = overload._schema
    return schema.name, schema.arguments[written].name


def _copying_derivatives(
    functional: str, written: int, otherwise: Callable[..., None]
) -> Callable[..., None]:
    """Returns a kernel that copies the result of ``functional`` into the argument where forward
    mode or torch.func takes a derivative; ``otherwise`` runs in all other cases."""
    overload = getattr(torch.ops.fusedops, functional).default

    def kernel(keys: Any, *args: Any) -> None:
        is_recorded = torch.is_grad_enabled() and any(map(requires_grad, args))
        if has_tangent(args) or (is_recorded and _are_functorch_transforms_active()):
            # A derivative may save the arguments, of which one is about to be overwritten.
            copies = (arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args)
            args[written].copy_(overload(*copies))
        else:
            otherwise(keys, *args)

    return kernel


def _refusing_derivatives(overload: Any, written: int) -> Callable[..., None]:
    """Returns a kernel that refuses arguments with a derivative, and otherwise calls the next
    kernel."""
    name, target = _names(overload, written)
    names = [argument.name for argument in overload._schema.arguments]

    def kernel(keys: Any, *args: Any) -> None:
        refuse_forward_mode(name, args)
        if torch.is_grad_enabled() and any(map(requires_grad, args)):
            of = zip(names, args, strict=False)
            argument = next(name for name, value in of if requires_grad(value))
            raise RuntimeError(
                f"{name} writes into its argument {target} and has no derivative, but {argument} "
                "requires grad: call it under torch.no_grad(), or use the function without out"
            )
        with torch._C._AutoDispatchBelowAutograd():
            overload.redispatch(keys & torch._C._after_autograd_keyset, *args)

    return kernel


def _bumping_version(overload: Any, written: int) -> Callable[..., None]:
    """Returns a kernel that calls the next one, and increments the version of what it writes."""
    name, target = _names(overload, written)

    def kernel(keys: Any, *args: Any) -> None:
        tensor = args[written]
        if tensor is not None and tensor.is_inference():
            raise RuntimeError(
                f"{name}: {target} was made in inference mode and is written outside of it, "
                "which autograd would not notice; make it with .clone()"
            )
        with torch._C._AutoDispatchBelowADInplaceOrView():
            overload.redispatch(keys & torch._C._after_ADInplaceOrView_keyset, *args)
        torch.autograd.graph.increment_version(tensor)

    return kernel


def _resolving_lazy_arguments(overload: Any, written: int) -> Callable[..., None]:
    """Returns a kernel that computes the elements of arguments that are lazy views, and refuses to
    write into one."""
    name, target = _names(overload, written)

    def kernel(*args: Any) -> None:
        if _is_lazy(args[written]):
            raise RuntimeError(
                f"{name}: {target} is a lazy view (a negation, or zeros without memory) whose "
                "memory holds other values; make it with .resolve_neg().clone()"
            )
        overload(*(a.resolve_neg().clone() if _is_lazy(a) else a for a in args))

    return kernel


def _is_lazy(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_neg() or value._is_zerotensor())


def check_recordable(op: str, input: torch.Tensor) -> None:
    """Raises where autograd would refuse an in-place write to ``input``, which requires grad. torch
    does the same in ``check_inplace`` of torch/csrc/autograd/VariableTypeUtils.h, but for an
    autograd function only after the memory has been written."""
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
