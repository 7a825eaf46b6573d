"""Forward mode: an op runs as its composite if one of its arguments has a tangent.

The composite of an op computes the same results from torch's own operators. They carry the
tangents, and reverse mode or another forward level records them like those of any function, so that
derivatives of every order and in every nesting follow from them. A formula on top of our kernels
would not do: what the kernels save for reverse mode would lose its tangents.

The composites are in softmax_composites.py, norm_composites.py, cross_entropy_composites.py,
linear_cross_entropy.py, dropout.py and stack.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch._C import _are_functorch_transforms_active
from torch._C._functorch import TransformType
from torch.autograd import forward_ad

from fusedops.ops.registration.signature import Signature
from fusedops.ops.registration.variants import check_and_make_fakes

#: Holds the composite of each op.
_COMPOSITES: dict[str, Callable[..., Any]] = {}


def register_composite(op: str, composite: Callable[[Any], Any]) -> None:
    """Registers what ``fusedops::op`` runs in forward mode. ``composite(call)`` gets the arguments
    as a named tuple, and returns the op's results in any floating dtype and layout. It may compute
    those that the op leaves empty."""
    _COMPOSITES[op] = Signature(op).of_call(composite)


def _is_dual(value: Any) -> bool:
    # Forward mode has a single level in torch, 0.
    return isinstance(value, torch.Tensor) and forward_ad.unpack_dual(value, level=0)[1] is not None


def has_tangent(values: Iterable[Any]) -> bool:
    """Whether one of the values has a forward-mode tangent."""
    # _is_dual takes 1 us, and dispatch modes see its calls.
    return is_forward_mode_on() and any(map(_is_dual, values))


def is_forward_mode_on() -> bool:
    """Whether a value may have a tangent, be it of an outer level of torch.func, where
    :func:`has_tangent` does not see it."""
    # In a traced graph torch.func.jvp is on torch.func's stack, but not in Python's forward_ad.
    return forward_ad._current_level >= 0 or (
        _are_functorch_transforms_active() and _is_jvp_on_stack()
    )


def _is_jvp_on_stack() -> bool:
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return any(transform.key() == TransformType.Jvp for transform in stack)


def composite_results(op: str, args: Sequence[Any]) -> Any:
    """Runs the op's composite, and converts the results to the op's own dtypes and layouts."""
    fakes = check_and_make_fakes(op, args)
    results = _COMPOSITES[op](*args)
    if isinstance(fakes, torch.Tensor):
        return _made_like(fakes, results)
    return tuple(map(_made_like, fakes, results))


def _made_like(fake: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    if result.shape != fake.shape:  # not asked for: the op returns an empty tensor instead
        return fake
    cast = result.to(fake.dtype)
    return cast.contiguous() if fake.is_contiguous() else cast
