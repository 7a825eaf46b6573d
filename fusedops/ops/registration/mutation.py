"""Registers with autograd the ops that write into an argument, as torch does for its own in-place
ops. A call that is refused has not written any memory."""

from __future__ import annotations

from typing import Any

import torch
from torch._C import _are_functorch_transforms_active

from fusedops.ops.registration.autograd import requires_grad
from fusedops.ops.registration.forward_mode import has_tangent
from fusedops.ops.registration.libraries import LIBRARY, argument_names, written_arguments


def register_mutation(op: str, functional: str | None = None) -> None:
    """Declares that ``fusedops::op``, which writes into an argument, has no derivative.

    A call that autograd would have to record is refused; every other call increments the tensor's
    version, so that a backward pass that has saved the old values raises. In forward mode, and
    where torch.func records the call, the result of ``functional``, an op of the same arguments, is
    copied into the argument, with its derivative; without ``functional`` the call is refused.
    """
    kernels = _Kernels(op, functional)
    LIBRARY.impl(op, kernels.autograd, "Autograd", with_keyset=True)
    LIBRARY.impl(op, kernels.bump_version, "ADInplaceOrView", with_keyset=True)
    LIBRARY.impl(op, kernels.resolve_lazy_arguments, "Negative")
    LIBRARY.impl(op, kernels.resolve_lazy_arguments, "ZeroTensor")


class _Kernels:
    """The kernels of an op that writes into an argument. Each calls the next one."""

    def __init__(self, op: str, functional: str | None) -> None:
        self._overload = getattr(torch.ops.fusedops, op).default
        self._functional = functional and getattr(torch.ops.fusedops, functional).default
        self._name = self._overload._schema.name
        self._names, (self._target,) = argument_names(op), written_arguments(op)
        self._written = self._names.index(self._target)

    def autograd(self, keys: Any, *args: Any) -> None:
        is_recorded = torch.is_grad_enabled() and any(map(requires_grad, args))
        is_dual = has_tangent(args)
        if self._functional and (is_dual or (is_recorded and _are_functorch_transforms_active())):
            # A derivative may save the arguments, of which one is about to be overwritten.
            copies = (arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args)
            args[self._written].copy_(self._functional(*copies))
            return
        if is_dual:
            raise NotImplementedError(
                f"{self._name} has no forward-mode derivative (jvp, jacfwd), because it writes "
                "into an argument: use the function without out"
            )
        if is_recorded:
            of = zip(self._names, args, strict=False)
            argument = next(name for name, value in of if requires_grad(value))
            raise RuntimeError(
                f"{self._name} writes into its argument {self._target} and has no derivative, but "
                f"{argument} requires grad: call it under torch.no_grad(), or use the function "
                "without out"
            )
        with torch._C._AutoDispatchBelowAutograd():
            self._overload.redispatch(keys & torch._C._after_autograd_keyset, *args)

    def bump_version(self, keys: Any, *args: Any) -> None:
        """Increments the version of what is written."""
        tensor = args[self._written]
        if tensor is not None and tensor.is_inference():
            raise RuntimeError(
                f"{self._name}: {self._target} was made in inference mode and is written outside "
                "of it, which autograd would not notice; make it with .clone()"
            )
        with torch._C._AutoDispatchBelowADInplaceOrView():
            self._overload.redispatch(keys & torch._C._after_ADInplaceOrView_keyset, *args)
        torch.autograd.graph.increment_version(tensor)

    def resolve_lazy_arguments(self, *args: Any) -> None:
        """Computes the elements of arguments that are lazy views, and refuses to write into one."""
        if _is_lazy(args[self._written]):
            raise RuntimeError(
                f"{self._name}: {self._target} is a lazy view (a negation, or zeros without "
                "memory) whose memory holds other values; make it with .resolve_neg().clone()"
            )
        self._overload(*(a.resolve_neg().clone() if _is_lazy(a) else a for a in args))


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
