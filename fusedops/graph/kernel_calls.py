"""Lets the code that Inductor generates for a CPU call the kernels of our ops directly.

Inductor calls custom ops through `torch.ops`, in C++ code through a proxy of the dispatcher, and
the kernels of its own as C functions. A model pays for the difference at each site and in each
pass, and more than a benchmark of one op shows: a matrix product before the site has replaced the
code of the dispatcher in the caches, and it is read again from memory. On a Zen 4 that takes 100 to
150 us, which for Swin Transformer with its 15 sites was 1 % of a training step in bfloat16.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch._inductor.virtualized import V

_MODULE, _ALIAS = "fusedops.ops.registration.compiled", "fusedops_kernels"

#: The types of C shims for the arguments of a schema. A list has its length as a second argument.
_C_TYPES = {
    "Tensor": "AtenTensorHandle",
    "int": "int64_t",
    "float": "double",
    "bool": "int32_t",
    "ScalarType": "int32_t",
}


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
        if not (_calls_cpu_kernel(self) and is_ours()):
            codegen(self, wrapper)
        elif V.graph.cpp_wrapper:
            _codegen_cpp(self, wrapper, codegen)
        else:
            _root(wrapper).add_import_once(f"import {_MODULE} as {_ALIAS}")
            self.python_kernel_name = f"{_ALIAS}.{_name(self.op_overload)}"
            codegen(self, wrapper)

    @functools.wraps(codegen_args)
    def codegen_all_args(self: Any) -> list[str]:
        args = codegen_args(self)
        return _all_args(self, args) if _is_named_ours(self) else args

    FallbackKernel.codegen = codegen_of_kernel  # type: ignore[method-assign]
    FallbackKernel.codegen_args = codegen_all_args  # type: ignore[method-assign]


def _calls_cpu_kernel(call: Any) -> bool:
    """Returns whether a call in Inductor's graph is one of our ops on a CPU."""
    op = call.op_overload
    if not isinstance(op, torch._ops.OpOverload) or op.namespace != "fusedops":
        return False
    if getattr(V.graph, "fx_wrapper", False):
        return False
    return all(input.get_device().type == "cpu" for input in call.inputs)


def _name(op: torch._ops.OpOverload) -> str:
    return op._schema.name.removeprefix("fusedops::")


def _codegen_cpp(call: Any, wrapper: Any, codegen: Callable[[Any, Any], None]) -> None:
    """Generates a call of a C shim, which is added to the code before the first call of its op."""
    op, root = call.op_overload, _root(wrapper)
    call.cpp_kernel_name = f"aoti_torch_fusedops_{_name(op)}"
    shims = root.__dict__.setdefault("fusedops_shims", set())
    if not shims:
        root.header.splice(Path(__file__).with_suffix(".h").read_text())
    if op not in shims:
        shims.add(op)
        root.header.splice(_shim(call.cpp_kernel_name, op))
    with inductor_config.patch({"aot_inductor.custom_ops_to_c_shims": {op: []}}):
        codegen(call, wrapper)


def _shim(function: str, op: torch._ops.OpOverload) -> str:
    """Returns the definition of a C shim, a function that calls the kernel of `op`. Its arguments
    are those of the op, and a pointer for each result."""
    parameters, values = [], []
    for argument in op._schema.arguments:
        name, type_ = argument.name, str(argument.real_type)
        c_type = _C_TYPES[type_.rpartition("[")[2].rstrip("]")]
        parameters.append(f"const {c_type}* {name}" if "[" in type_ else f"{c_type} {name}")
        if type_.startswith("List"):
            parameters.append(f"int64_t {name}_count")
            name += f", {name}_count"
        values.append(f"fusedops_kernels::value({name})")
    results = [f"result_{i}" for i in range(len(op._schema.returns))]
    parameters += [f"AtenTensorHandle* {result}" for result in results]
    if not results:  # Inductor passes a null pointer then
        parameters.append("AtenTensorHandle* /*no_result*/")
    gives = [f"fusedops_kernels::give(stack[{i}], {r});" for i, r in enumerate(results)]
    return f"""
        #ifndef {function}_
        #define {function}_
        inline AOTITorchError {function}({", ".join(parameters)}) {{
            const fusedops_kernels::Record record("fusedops::{_name(op)}", nullptr);
            static auto* const kernel = fusedops_kernels::find("{_name(op)}");
            StableIValue stack[] = {{{", ".join(values)}}};
            kernel(stack, {len(values)}, {len(results)});
            {" ".join(gives)}
            return AOTI_TORCH_SUCCESS;
        }}
        #endif
    """


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
