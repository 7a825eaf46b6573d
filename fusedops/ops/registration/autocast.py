"""The autocast rules, which are those of torch's own softmax and norms.

Under CUDA autocast a softmax without ``dtype`` computes and returns float32; here the conversion
is part of the kernel. Norms convert their arguments to float32, except for an input that is added
to a residual: the converted residual already makes their sum float32. CPU autocast changes neither
softmaxes nor norms. linear_cross_entropy, which has a linear layer, computes in autocast's dtype on
both devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from fusedops.ops.registration.libraries import LIBRARY, argument_names, with_variant

#: The type of functions that take the arguments of a call, and return those to call the op with.
Convert = Callable[[tuple[Any, ...]], Sequence[Any]]


def _register(op: str, device: str, convert: Convert) -> None:
    """Makes ``fusedops::op`` and its no-autograd variant convert their arguments under autocast for
    ``device``."""
    key = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}[device]
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def rule(overload: Any, *args: Any) -> Any:
        arguments = convert(args)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return overload(*arguments)

    for name in with_variant(op):
        LIBRARY.impl(name, partial(rule, getattr(torch.ops.fusedops, name).default), key)


def register_float32_output(op: str) -> None:
    """Makes ``fusedops::op`` compute with ``dtype=torch.float32`` where no dtype is given and its
    first argument, the input, is a floating CUDA tensor of up to 32 bits."""
    schema = getattr(torch.ops.fusedops, op).default._schema
    position = argument_names(op).index("dtype")
    defaults = [argument.default_value for argument in schema.arguments]

    def convert(args: tuple[Any, ...]) -> list[Any]:
        arguments = [*args, *defaults[len(args) :]]
        input = arguments[0]
        eligible = input.is_cuda and input.is_floating_point() and input.dtype != torch.float64
        if eligible and arguments[position] is None:
            arguments[position] = torch.float32
        return arguments

    _register(op, "cuda", convert)


def register_float32_inputs(op: str) -> None:
    """Makes ``fusedops::op`` convert 16-bit CUDA tensors to float32, in lists too. An input that is
    added to a residual stays 16-bit, as kernels read it: the residual makes the sum float32."""
    kept = 1 if "residual" in argument_names(op) else 0

    def converted(arg: Any) -> Any:
        if isinstance(arg, list):
            return [converted(item) for item in arg]
        is_narrow = isinstance(arg, torch.Tensor) and arg.dtype in (torch.bfloat16, torch.float16)
        return arg.float() if is_narrow and arg.is_cuda else arg

    _register(op, "cuda", lambda args: [*args[:kept], *map(converted, args[kept:])])


def register_lower_precision(op: str, converted: Sequence[str]) -> None:
    """Makes ``fusedops::op`` convert the named arguments to autocast's dtype, as torch's linear
    does: those that are floating and not float64."""
    names = argument_names(op)

    def convert(device: str, args: tuple[Any, ...]) -> list[Any]:
        named = zip(names, args, strict=False)
        return [_lowered(arg, device) if name in converted else arg for name, arg in named]

    for device in ("cpu", "cuda"):
        _register(op, device, partial(convert, device))


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
