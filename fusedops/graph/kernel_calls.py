"""Lets the Python code that Inductor generates for a CPU call the kernels of our ops directly.

Inductor calls custom ops by `torch.ops`, and the kernels of its own as C functions. A model pays
for the difference at each site and in each pass, and more than a benchmark of one op shows: a
matrix product before the site has replaced the code of `torch.ops` in the caches, and it is read
again from memory. On a Zen 4 that takes 100 to 150 us, which for Swin Transformer with its 15 sites
was 1 % of a training step in bfloat16.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor.virtualized import V

_MODULE, _ALIAS = "fusedops.ops.registration.compiled", "fusedops_kernels"


@functools.cache
def call_kernels(is_ours: Callable[[], bool]) -> None:
    """Replaces the methods that generate calls of custom ops. The new methods change only calls of
    our ops, and only in graphs that are compiled while `is_ours()` returns True. A second call with
    the same function does nothing."""
    from torch._inductor.ir import FallbackKernel

    codegen: Callable[[Any, Any], None] = FallbackKernel.codegen
    codegen_args: Callable[[Any], list[str]] = FallbackKernel.codegen_args

    @functools.wraps(codegen)
    def codegen_of_kernel(self: Any, wrapper: Any) -> None:
        if _calls_cpu_kernel(self) and is_ours():
            _root(wrapper).add_import_once(f"import {_MODULE} as {_ALIAS}")
            self.python_kernel_name = f"{_ALIAS}.{self.op_overload._schema.name.split('::')[1]}"
        codegen(self, wrapper)

    @functools.wraps(codegen_args)
    def codegen_all_args(self: Any) -> list[str]:
        args = codegen_args(self)
        return _all_args(self, args) if _is_named_ours(self) else args

    FallbackKernel.codegen = codegen_of_kernel  # type: ignore[method-assign]
    FallbackKernel.codegen_args = codegen_all_args  # type: ignore[method-assign]


def _calls_cpu_kernel(call: Any) -> bool:
    """Returns whether a call in Inductor's graph is one of our ops on a CPU, in a graph for which
    Python code is generated."""
    op = call.op_overload
    if not isinstance(op, torch._ops.OpOverload) or op.namespace != "fusedops":
        return False
    if V.graph.cpp_wrapper or getattr(V.graph, "fx_wrapper", False):
        return False
    return all(input.get_device().type == "cpu" for input in call.inputs)


def _is_named_ours(call: Any) -> bool:
    return (call.python_kernel_name or "").startswith(f"{_ALIAS}.")


def _root(wrapper: Any) -> Any:
    """Returns the generator of the whole module; those of subgraphs write no imports."""
    while parent := getattr(wrapper, "parent_wrapper", None):
        wrapper = parent
    return wrapper


def _all_args(call: Any, args: list[str]) -> list[str]:
    """Returns the code of all arguments in order, as kernels take them. Inductor has the first ones
    in `args`, and may have others as keyword arguments."""
    others = call.op_overload._schema.arguments[len(args) :]
    values = (call.kwargs.pop(other.name, other.default_value) for other in others)
    return [*args, *map(V.graph.wrapper_code.val_to_arg_str, values)]
