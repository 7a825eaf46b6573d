"""The fast path of eager calls: :func:`call_path` decides which layers have to see a call, and
:func:`direct` calls the dispatcher without a schema match.

``torch.ops`` matches the arguments of each call against the op's schema, which takes as long as
the rest of a small call. :func:`direct` knows the types beforehand. Both functions are in the
extension module ``op_call``; where it cannot be loaded, Python and ``torch.ops`` do the same, a few
microseconds slower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch._C import (
    _are_functorch_transforms_active,
    _is_tracing,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
)
from torch.autograd import forward_ad

from fusedops.ops.registration.libraries import load_op_call
from fusedops.ops.registration.schema_errors import explained

#: A call runs in one of three ways. PLAIN: only the kernel runs. RECORDED: autograd records it.
#: WATCHED: a mode, a trace, a transform, forward mode or a subclass of Tensor has to see the op.
PLAIN, RECORDED, WATCHED = range(3)

_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)

#: Functions that return whether a mode, a trace or a transform is active.
_WATCHERS = (
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
    _is_tracing,
    _are_functorch_transforms_active,
)

#: The letters by which ``op_call`` knows the types of a schema, and one that it does not know.
_KINDS = {
    "List[Tensor]": "L",
    "Tensor": "t",
    "Optional[Tensor]": "T",
    "int": "i",
    "Optional[int]": "N",
    "float": "f",
    "Optional[float]": "F",
    "bool": "b",
    "ScalarType": "d",
    "Optional[ScalarType]": "D",
    "List[int]": "I",
    "List[bool]": "B",
}


def _set_up_op_call() -> ModuleType | None:
    """Returns the extension module, or None where this Python or this torch cannot use it."""
    conversions = getattr(torch._C, "_aoti", None)
    handle_of = getattr(conversions, "unsafe_alloc_void_ptr_from_tensor", None)
    # The counterpart for a single tensor does not take ownership of its handle and would leak.
    tensors_of = getattr(conversions, "alloc_tensors_by_stealing_from_void_ptrs", None)
    op_call = load_op_call()
    if op_call is None or handle_of is None or tensors_of is None:
        return None
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    op_call.setup(*_PLAIN_TYPES, handle_of, tensors_of, dtypes, _WATCHERS, forward_ad)
    return op_call


def _call_path(*tensors: Any) -> int:
    """Returns how a call on these tensors (or None) runs: PLAIN, RECORDED or WATCHED.

    Transforms come first because a tensor that does not require grad may wrap one that does.
    """
    if any([watches() for watches in _WATCHERS]) or forward_ad._current_level >= 0:
        return WATCHED
    present = [tensor for tensor in tensors if tensor is not None]
    if any([type(tensor) not in _PLAIN_TYPES for tensor in present]):
        return WATCHED
    if not torch.is_grad_enabled():
        return PLAIN
    return RECORDED if any([tensor.requires_grad for tensor in present]) else PLAIN


_module = _set_up_op_call()
#: Whether the extension module is in use.
IS_DIRECT = _module is not None
call_path: Callable[..., int] = _call_path if _module is None else _module.state


def _kinds_of(schema: Any) -> str:
    """Returns a letter for the type of each argument, a question mark for one that is unknown."""
    return "".join(_KINDS.get(str(argument.real_type), "?") for argument in schema.arguments)


def direct(op: str) -> Callable[..., Any]:
    """Returns ``fusedops::op`` as a function of all its arguments, by position, for calls that are
    not WATCHED.

    A call whose arguments have other types than the schema's, or that fails, is passed on to
    ``torch.ops``.

    Raises:
        TypeError: an argument has a type that the schema does not take.
    """
    overload: torch._ops.OpOverload = getattr(torch.ops.fusedops, op).default
    function = op.removeprefix("_").removesuffix("_output")
    by_schema = explained(function, overload, overload._op)
    schema = overload._schema
    kinds = _kinds_of(schema)
    is_known = not set(kinds) & {"?", "L"} and {str(r.type) for r in schema.returns} == {"Tensor"}
    if _module is None or schema.is_mutable or not is_known:
        return by_schema
    bound: Callable[..., Any] = _module.bind(
        f"fusedops::{op}", kinds, len(schema.returns), by_schema
    )
    return bound


def tensors_among(op: str) -> Callable[[Sequence[Any]], list[Any]]:
    """Returns a function that finds the tensors among the arguments of ``fusedops::op``, with the
    elements of its lists. One that is None is among them."""
    kinds = _kinds_of(getattr(torch.ops.fusedops, op).default._schema)

    def tensors_of(args: Sequence[Any]) -> list[Any]:
        tensors: list[Any] = []
        for kind, arg in zip(kinds, args, strict=True):
            if kind in ("t", "T"):
                tensors.append(arg)
            elif kind == "L":
                tensors += arg
        return tensors

    return tensors_of
