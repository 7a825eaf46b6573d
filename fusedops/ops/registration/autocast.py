"""The autocast rules, which are those of torch's own softmax and norms.

Under CUDA autocast a softmax without ``dtype`` computes and returns float32; here the conversion
is part of the kernel. Norms convert their arguments to float32, except for an input that is added
to a residual: the converted residual already makes their sum float32. CPU autocast changes neither
softmaxes nor norms. linear_cross_entropy, which has a linear layer, computes in autocast's dtype on
both devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fusedops.ops.registration.libraries import argument_names

_AUTOCAST_CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
_AUTOCAST_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)


def register_float32_output(library: torch.library.Library, op: str) -> None:
    """Makes ``fusedops::op`` compute with ``dtype=torch.float32`` where no dtype is given and its
    first argument, the input, is a floating CUDA tensor of up to 32 bits."""
    overload = getattr(torch.ops.fusedops, op).default
    position = argument_names(op).index("dtype")
    defaults = [argument.default_value for argument in overload._schema.arguments]

    def rule(*args: Any) -> Any:
        arguments = [*args, *defaults[len(args) :]]
        input = arguments[0]
        eligible = input.is_cuda and input.is_floating_point() and input.dtype != torch.float64
        if eligible and arguments[position] is None:
            arguments[position] = torch.float32
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_CUDA):
            return overload(*arguments)

    library.impl(op, rule, "AutocastCUDA")


def register_float32_inputs(library: torch.library.Library, op: str) -> None:
    """Makes ``fusedops::op`` convert 16-bit CUDA tensors to float32, in lists too. An input that is
    added to a residual stays 16-bit, as kernels read it: the residual makes the sum float32."""
    overload = getattr(torch.ops.fusedops, op).default
    kept = 1 if "residual" in argument_names(op) else 0

    def converted(arg: Any) -> Any:
        if isinstance(arg, list):
            return [converted(item) for item in arg]
        is_narrow = isinstance(arg, torch.Tensor) and arg.dtype in (torch.bfloat16, torch.float16)
        return arg.float() if is_narrow and arg.is_cuda else arg

    def rule(*args: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_CUDA):
            return overload(*args[:kept], *map(converted, args[kept:]))

    library.impl(op, rule, "AutocastCUDA")


def register_lower_precision(
    library: torch.library.Library, op: str, converted: Sequence[str]
) -> None:
    """Makes ``fusedops::op`` convert the named arguments to autocast's dtype, as torch's linear
    does: those that are floating and not float64."""
    overload, names = getattr(torch.ops.fusedops, op).default, argument_names(op)

    def register(device: str, key: str, keys: Any) -> None:
        def rule(*args: Any) -> Any:
            named = zip(names, args, strict=False)
            arguments = [_lowered(arg, device) if name in converted else arg for name, arg in named]
            with torch._C._ExcludeDispatchKeyGuard(keys):
                return overload(*arguments)

        library.impl(op, rule, key)

    register("cpu", "AutocastCPU", _AUTOCAST_CPU)
    register("cuda", "AutocastCUDA", _AUTOCAST_CUDA)


def _lowered(arg: Any, device: str) -> Any:
    """Returns a floating tensor of up to 32 bits on ``device`` in autocast's dtype, and anything
    else unchanged."""
    is_eligible = isinstance(arg, torch.Tensor) and arg.device.type == device
    if is_eligible and arg.is_floating_point() and arg.dtype != torch.float64:
        return arg.to(torch.get_autocast_dtype(device))
    return arg


def in_autocast_dtype(tensor: torch.Tensor) -> torch.Tensor:
    """Returns what an op that :func:`register_lower_precision` is called for would convert the
    tensor to. Several calls with the result convert it once."""
    device = tensor.device.type
    is_on = device in ("cpu", "cuda") and torch.is_autocast_enabled(device)
    return _lowered(tensor, device) if is_on else tensor
