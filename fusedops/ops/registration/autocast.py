"""The autocast rules, which are those of torch's own softmax and norms.

Under CUDA autocast a softmax without ``dtype`` computes and returns float32; here the conversion
is part of the kernel. Norms convert their arguments to float32, except for a branch that is added
to a residual: the converted residual already makes their sum float32. CPU autocast changes neither
softmaxes nor norms.
"""

from __future__ import annotations

from typing import Any

import torch

_AUTOCAST_CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)


def register_float32_output(library: torch.library.Library, op: str) -> None:
    """Makes ``fusedops::op`` compute with ``dtype=torch.float32`` where no dtype is given and its
    first argument, the input, is a CUDA tensor of up to 32 bits."""
    overload = getattr(torch.ops.fusedops, op).default
    position = [argument.name for argument in overload._schema.arguments].index("dtype")
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
    """Makes ``fusedops::op`` convert 16-bit CUDA tensors to float32, in lists too. The input stays
    16-bit beside a residual, which makes the sum float32: kernels read 16-bit inputs."""
    overload = getattr(torch.ops.fusedops, op).default
    names = [argument.name for argument in overload._schema.arguments]
    kept = 1 if "residual" in names else 0

    def converted(arg: Any) -> Any:
        if isinstance(arg, list):
            return [converted(item) for item in arg]
        is_narrow = isinstance(arg, torch.Tensor) and arg.dtype in (torch.bfloat16, torch.float16)
        return arg.float() if is_narrow and arg.is_cuda else arg

    def rule(*args: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_CUDA):
            return overload(*args[:kept], *map(converted, args[kept:]))

    library.impl(op, rule, "AutocastCUDA")
