"""What an eager call of an op does before its kernel: who is to see it, and the way there.

``torch.ops`` matches the arguments of each call against the op's schema, which takes as long as
the rest of a small call. The types are known beforehand, and :func:`direct` goes to the dispatcher
with them. The extension module ``op_call`` does both; where it cannot be loaded, Python and
``torch.ops`` do the same, a few microseconds slower.
"""

from __future__ import annotations

from collections.abc import Callable
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

from fusedops.ops._library import load_op_call

#: How a call runs. PLAIN: nothing but the dispatcher sees it. RECORDED: autograd too. WATCHED: a
#: mode, a trace, a transform, forward mode or a subclass of Tensor is to see the op.
PLAIN, RECORDED, WATCHED = range(3)

_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)

#: Each tells whether something of its kind is active.
_WATCHERS = (
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
    _is_tracing,
    _are_functorch_transforms_active,
)

#: The letter that ``op_call`` has for a type, by the type's name in a schema.
_KINDS = {
    "Tensor": "t",
    "Optional[Tensor]": "T",
    "int": "i",
    "float": "f",
    "Optional[float]": "F",
    "bool": "b",
    "ScalarType": "d",
    "Optional[ScalarType]": "D",
    "List[int]": "I",
    "List[bool]": "B",
}


def _loaded() -> ModuleType | None:
    """The extension module; None where this Python or this torch has no use for it."""
    conversions = getattr(torch._C, "_aoti", None)
    handle_of = getattr(conversions, "unsafe_alloc_void_ptr_from_tensor", None)
    # The function of one tensor does not take its handle over: the tensor would never be freed.
    tensors_of = getattr(conversions, "alloc_tensors_by_stealing_from_void_ptrs", None)
    op_call = load_op_call()
    if op_call is None or handle_of is None or tensors_of is None:
        return None
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    op_call.setup(*_PLAIN_TYPES, handle_of, tensors_of, dtypes, _WATCHERS, forward_ad)
    return op_call


def _state(*tensors: Any) -> int:
    """How a call on these tensors, or None, runs: PLAIN, RECORDED or WATCHED.

    Under a transform a tensor that does not require grad may hold one that does.
    """
    if any([watches() for watches in _WATCHERS]) or forward_ad._current_level >= 0:
        return WATCHED
    given = [tensor for tensor in tensors if tensor is not None]
    if any([type(tensor) not in _PLAIN_TYPES for tensor in given]):
        return WATCHED
    if not torch.is_grad_enabled():
        return PLAIN
    return RECORDED if any([tensor.requires_grad for tensor in given]) else PLAIN


_module = _loaded()
#: Whether the extension module is in use.
IS_DIRECT = _module is not None
state: Callable[..., int] = _state if _module is None else _module.state


def direct(op: str) -> Callable[..., Any]:
    """``fusedops::op`` as a function of all its arguments, by position, for calls that are not
    WATCHED.

    Arguments of other types than the schema's go by ``torch.ops``, and so does a call that fails,
    which then raises what ``torch.ops`` raises.
    """
    overload: torch._ops.OpOverload = getattr(torch.ops.fusedops, op).default
    schema = overload._schema
    kinds = [_KINDS.get(str(argument.real_type), "") for argument in schema.arguments]
    is_known = all(kinds) and {str(result.type) for result in schema.returns} == {"Tensor"}
    if _module is None or schema.is_mutable or not is_known:
        return overload._op
    bound: Callable[..., Any] = _module.bind(
        f"fusedops::{op}", "".join(kinds), len(schema.returns), overload._op
    )
    return bound
