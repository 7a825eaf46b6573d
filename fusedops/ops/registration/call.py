"""The fast path of calls: :func:`by_path` calls the layer that has to see an eager call, and
:func:`direct` and :func:`in_compiled_code` the kernel, without a schema match, and on the CPU
without the dispatcher.

``torch.ops`` matches the arguments of each call against the op's schema, which takes as long as
the rest of a small call. Here the types are known beforehand. All of this is in the extension
module ``op_call``; where it cannot be loaded, Python and ``torch.ops`` do the same, a few
microseconds slower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch._C import (
    _are_functorch_transforms_active,
    _is_any_autocast_enabled,
    _is_tracing,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
)
from torch._C._functorch import is_gradtrackingtensor
from torch.autograd import forward_ad, profiler
from torch.utils._python_dispatch import _disable_current_modes

from fusedops.ops.registration.libraries import cpu_kernel, function_name, load_op_call
from fusedops.ops.registration.saved import Saved
from fusedops.ops.registration.schema_errors import explained

#: A call runs in one of three ways. PLAIN: only the kernel runs. RECORDED: autograd records it.
#: WATCHED: a mode, a trace, a transform, forward mode or a subclass of Tensor has to see the op, or
#: autograd records a call on a tensor that is nested, that autocast may convert, or that an ended
#: transform has left wrapped (:func:`_needs_dispatcher`).
PLAIN, RECORDED, WATCHED = range(3)

_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)

#: Functions that return whether a mode, a trace or a transform is active.
_WATCHERS = (
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
    _is_tracing,
    _are_functorch_transforms_active,
)

#: The letters by which ``op_call`` knows the types of a schema. It does not convert a list of
#: tensors: it finds the path of such a call (PLAIN, ...), which then goes through ``torch.ops``.
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


#: The attributes of an autograd function's context that ``op_call`` sets.
_CONTEXT = {"to_save", "non_differentiable", "materialize_grads"}


def _set_up_op_call() -> ModuleType | None:
    """Sets up and returns the extension module; returns None where this Python or this torch cannot
    use it."""
    conversions = getattr(torch._C, "_aoti", None)
    handle_of = getattr(conversions, "unsafe_alloc_void_ptr_from_tensor", None)
    tensor_of = getattr(conversions, "alloc_tensor_by_stealing_from_void_ptr", None)
    op_call = load_op_call()
    if op_call is None or handle_of is None or tensor_of is None:
        return None
    tensor: Any = torch.empty(0, device="cpu")
    tensor_of(handle_of(tensor))
    takes_handle = tensor._use_count() == 1  # False in torch 2.13: the caller deletes the handle
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    conversions = (handle_of, tensor_of, takes_handle)
    queries = (_WATCHERS, vars(forward_ad), _is_any_autocast_enabled, is_gradtrackingtensor)
    kernel_queries = (vars(profiler), torch.Tensor.is_neg)
    op_call.setup(*_PLAIN_TYPES, *conversions, dtypes, *queries, *kernel_queries)
    return op_call


def _needs_dispatcher(tensor: torch.Tensor) -> bool:
    """Whether a tensor needs the dispatcher: it is nested, autocast may convert it, or it is a
    wrapper from a transform of ``torch.func`` that has ended."""
    is_converted = tensor.is_cuda and _is_any_autocast_enabled()
    return tensor.is_nested or is_converted or is_gradtrackingtensor(tensor)


def _call_path(*tensors: Any) -> int:
    """Returns how a call on these tensors (or None) runs: PLAIN, RECORDED or WATCHED.

    Transforms are looked for first, because a tensor that does not require grad may wrap one that
    does.
    """
    if any([watches() for watches in _WATCHERS]) or forward_ad._current_level >= 0:
        return WATCHED
    present = [tensor for tensor in tensors if tensor is not None]
    if any([type(tensor) not in _PLAIN_TYPES for tensor in present]):
        return WATCHED
    if not torch.is_grad_enabled() or not any([tensor.requires_grad for tensor in present]):
        return PLAIN
    return WATCHED if any(map(_needs_dispatcher, present)) else RECORDED


_module = _set_up_op_call()
#: Whether the extension module is in use.
IS_DIRECT = _module is not None
call_path: Callable[..., int] = _call_path if _module is None else _module.state


def _kinds_of(schema: Any) -> str:
    """Returns a letter for the type of each argument, a question mark for one that is unknown."""
    return "".join(_KINDS.get(str(argument.real_type), "?") for argument in schema.arguments)


def first(count: int | None, run: Callable[..., Any]) -> Callable[..., Any]:
    """Returns ``run``, reduced to its first result (``count`` is 1), the first few, or all
    (None)."""
    if count is None:
        return run
    if count == 1:
        return lambda *args: run(*args)[0]
    return lambda *args: run(*args)[:count]


def direct(op: str, returned: int | None = None) -> Callable[..., Any]:
    """Returns ``fusedops::op`` as a function of all its arguments, by position, for calls that are
    not WATCHED. It returns the first ``returned`` results, as :func:`first` does.

    A call whose arguments have other types than the schema's, or that fails, is passed on to
    ``torch.ops``.

    Raises:
        TypeError: an argument has a type that the schema does not take.
    """
    overload: torch._ops.OpOverload = getattr(torch.ops.fusedops, op).default
    schema, results = overload._schema, len(overload._schema.returns)
    by_schema = explained(function_name(op), overload, overload._op)
    by_schema = first(None if results == 1 else returned, by_schema)
    if schema.is_mutable:  # the dispatcher tells autograd that an argument was written
        return by_schema
    return _bound(op, returned or results, by_schema)


def in_compiled_code(op: str) -> Callable[..., Any]:
    """Returns ``fusedops::op`` as a function of all its arguments, by position, for compiled code,
    in which neither autograd nor a mode has to see a call.

    A call whose arguments have other types than the schema's, or that fails, is passed on to
    ``torch.ops``, which has to see no mode either: at its first run, compiled code runs in one that
    refuses custom ops on subclasses of Tensor.
    """
    overload: torch._ops.OpOverload = getattr(torch.ops.fusedops, op).default

    def by_schema(*args: Any) -> Any:
        if not _len_torch_dispatch_stack():
            return overload(*args)
        with _disable_current_modes():
            return overload(*args)

    return _bound(op, len(overload._schema.returns), by_schema)


def _bound(op: str, returned: int, by_schema: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls ``fusedops::op`` and returns its first ``returned`` results;
    ``by_schema`` if the module cannot call that op."""
    schema = getattr(torch.ops.fusedops, op).default._schema
    kinds = _kinds_of(schema)
    is_known = not set(kinds) & {"?", "L"} and {str(r.type) for r in schema.returns} <= {"Tensor"}
    if _module is None or not is_known:
        return by_schema
    results = len(schema.returns)
    bound: Callable[..., Any] = _module.bind(
        f"fusedops::{op}", kinds, results, returned, by_schema, cpu_kernel(op)
    )
    return bound


def saving(
    run: Callable[..., Any], op: str, saved: Saved, returned: int | None
) -> Callable[..., Any] | None:
    """Returns ``forward(ctx, args, *tensors)`` of an autograd function, in the extension module: it
    returns the first ``returned`` results of ``run(*args)``, as :func:`first` does, and stores in
    ``ctx`` what the formula of ``fusedops::op`` needs. Returns None where the module cannot do
    that, or ``run`` is not one of its functions."""
    if _module is None or not _CONTEXT <= vars(torch._C._FunctionBase).keys():
        return None
    results = len(getattr(torch.ops.fusedops, op).default._schema.returns)
    forward: Callable[..., Any] | None = _module.saving(
        run, returned or results, *saved.indices(op)
    )
    return forward


def tensors_among(op: str) -> Callable[[Sequence[Any]], list[Any]]:
    """Returns a function that finds the tensors among the arguments of ``fusedops::op``, with the
    elements of its lists. An optional tensor that is None is among them."""
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


def by_path(
    op: str,
    plain: Callable[..., Any],
    recorded: Callable[..., Any],
    watched: Callable[..., Any],
) -> Callable[..., Any]:
    """Returns a function of all arguments of ``fusedops::op``, by position. It calls
    ``plain(*args)``, ``watched(*args)``, or ``recorded`` with the tuple of arguments and the
    tensors among them, according to ``call_path``."""
    if _module is not None:
        kinds = _kinds_of(getattr(torch.ops.fusedops, op).default._schema)
        bound: Callable[..., Any] = _module.eager(kinds, plain, recorded, watched)
        return bound
    tensors_of = tensors_among(op)

    def run(*args: Any) -> Any:
        tensors = tensors_of(args)
        path = _call_path(*tensors)
        if path == RECORDED:
            return recorded(args, *tensors)
        return plain(*args) if path == PLAIN else watched(*args)

    return run
