"""Softmaxes and norms of nested tensors: their rows are those of the tensors that they hold.

A jagged tensor keeps its tensors in one buffer. If the buffer has no gaps, an op over a dimension
that is not the ragged one runs once, on that buffer; in all other cases it runs once for each
tensor. Dimension 0 counts the tensors, and an op over it is refused, as by torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fusedops.ops import checks
from fusedops.ops.norm_kinds import KINDS
from fusedops.ops.registration.libraries import LIBRARY, OPS, argument_names, refuse

#: The type of functions that take an op's name and its arguments, of which the first is a nested
#: tensor. They return the dimensions of that tensor that are normalised, and the arguments after
#: the first for a call of the op on one of the tensors that it holds, or on its buffer
#: (``values()``). These have one dimension less than the nested tensor, so a ``dim`` is decreased
#: by 1.
Inner = Callable[[str, tuple[Any, ...]], tuple[set[int], tuple[Any, ...]]]


def _of_dim(op: str, args: tuple[Any, ...]) -> tuple[set[int], tuple[Any, ...]]:
    """Does what :data:`Inner` says, for ops whose second argument is ``dim``."""
    input, dim, *rest = args
    rank = input.dim()
    checks.check(
        -rank <= dim < rank and dim % rank > 0,
        f"{op}: dim is {dim}, wanted one after the first of a nested input of {rank} dimensions, "
        "which counts its tensors",
    )
    return {dim % rank}, (dim % rank - 1, *rest)


def _of_shape(op: str, args: tuple[Any, ...]) -> tuple[set[int], tuple[Any, ...]]:
    """Does what :data:`Inner` says, for ops whose second argument is ``normalized_shape``."""
    input, shape, *rest = args
    rank = input.dim()
    checks.check(
        0 < len(shape) < rank,
        f"{op}: normalized_shape is {list(shape)}, wanted at least one dimension, and fewer than "
        f"the {rank} of the nested input, whose first counts its tensors",
    )
    return set(range(rank - len(shape), rank)), (shape, *rest)


def _rule(name: str, op: str, inner: Inner) -> Callable[..., Any]:
    """Returns the kernel of ``name``, a variant of ``op``, for nested tensors."""
    overload, names = getattr(torch.ops.fusedops, name).default, argument_names(name)

    def run(*args: Any) -> Any:
        _check_alone(op, names, args)
        input: Any = args[0]
        dims, rest = inner(op, args)
        covers_ragged = input.layout == torch.jagged and input._ragged_idx in dims
        checks.check(
            not covers_ragged or inner is _of_dim,
            f"{op}: normalized_shape covers the ragged dimension of input, wanted those after it",
        )
        if _is_whole(input) and not covers_ragged:
            return _map(overload(input.values(), *rest), lambda t: _jagged_like(input, t))
        parts = [overload(tensor, *rest) for tensor in input.unbind()]
        if isinstance(parts[0], torch.Tensor):
            return _joined(input, parts)
        return tuple(_joined(input, list(part)) for part in zip(*parts, strict=True))

    return run


def _check_alone(op: str, names: list[str], args: tuple[Any, ...]) -> None:
    """Checks that no argument but the first is nested."""
    for name, argument in zip(names[1:], args[1:], strict=False):
        if isinstance(argument, torch.Tensor):
            checks.check_plain(op, name, argument)


def _is_whole(input: Any) -> bool:
    """Whether a tensor is jagged and its buffer has no gaps."""
    return input.layout == torch.jagged and input.lengths() is None


def _map(results: Any, make: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return make(results) if isinstance(results, torch.Tensor) else tuple(map(make, results))


def _joined(input: Any, parts: list[torch.Tensor]) -> torch.Tensor:
    """Returns one nested tensor of the results for the tensors of ``input``."""
    if _is_whole(input):
        return _jagged_like(input, torch.cat(parts, input._ragged_idx - 1))
    nested: torch.Tensor = torch.nested.as_nested_tensor(parts, layout=input.layout)
    return nested


def _jagged_like(input: Any, values: torch.Tensor) -> torch.Tensor:
    """Returns the buffer ``values`` as a jagged tensor, divided as ``input`` is."""
    nested: torch.Tensor = torch.nested.nested_tensor_from_jagged(
        values, input.offsets(), jagged_dim=input._ragged_idx
    )
    return nested


#: Says for each op which variants its eager calls use, and how to read the normalised dimensions
#: from its arguments.
SUPPORTED: dict[str, tuple[tuple[str, ...], Inner]] = {
    "softmax": (("softmax", "_softmax"), _of_dim),
    "log_softmax": (("log_softmax", "_log_softmax"), _of_dim),
    **{norm: ((norm, f"_{norm}", f"_{norm}_output"), _of_shape) for norm in KINDS},
}
# These are the dispatch keys of nested tensors. A strided one has AutogradNestedTensor at the level
# of autograd, and NestedTensorCPU below it. A jagged one has AutogradNestedTensor or, where
# autograd is off, CompositeImplicitAutogradNestedTensor.
_KEYS = ("NestedTensorCPU", "AutogradNestedTensor", "CompositeImplicitAutogradNestedTensor")

_supported = set()
for _op, (_names, _inner) in SUPPORTED.items():
    _supported |= {*_names}
    for _name in _names:
        for _key in _KEYS:
            LIBRARY.impl(_name, _rule(_name, _op, _inner), _key)
for _op in OPS:
    if _op not in _supported:
        for _key in _KEYS:
            LIBRARY.impl(_op, refuse(_op), _key)
