"""The autocast rule of the softmax family: what torch does with its own softmax.

Under CUDA autocast a softmax without ``dtype`` computes and returns float32. Here the conversion
happens inside the kernel. CPU autocast leaves softmax alone.
"""

from __future__ import annotations

from typing import Any

import torch

_AUTOCAST_CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)


def register_float32_output(library: torch.library.Library, op: str) -> None:
    """``fusedops::op`` gets ``dtype=torch.float32`` where it has none and its first argument, the
    input, is a CUDA tensor of up to 32 bits."""
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
