"""Collects the results of branches in one stack. The slot of a branch is its part of the stack."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def checked_dim(results: list[torch.Tensor], dim: int) -> int:
    """Returns ``dim`` as a number that is not negative. Raises RuntimeError if the results cannot
    be stacked, and IndexError if ``dim`` is out of range."""
    first = results[0]
    for index, result in enumerate(results):
        if result.shape != first.shape:
            raise RuntimeError(
                f"parallel_stack: branch {index} returned shape {list(result.shape)}, wanted "
                f"{list(first.shape)} as branch 0 returned"
            )
        if result.device != first.device:
            raise RuntimeError(
                f"parallel_stack: branch {index} returned a tensor on {result.device}, wanted "
                f"{first.device} as branch 0 returned"
            )
    bound = first.dim() + 1
    if not -bound <= dim < bound:
        raise IndexError(
            f"parallel_stack: dim is {dim}, wanted a value in [{-bound}, {bound - 1}] "
            f"for results of shape {list(first.shape)}"
        )
    return dim % bound


class Slots:
    """Collects the results of all branches in one stack. The stack is allocated when the first
    result arrives; :meth:`put` copies each result into its slot.

    allocating: a function that returns the context manager in which the stack is allocated.
    """

    def __init__(
        self,
        count: int,
        dim: int,
        allocating: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._results: list[Any] = [None] * count
        self._dim = dim
        self._allocating = allocating
        self._lock = threading.Lock()
        self._stack: torch.Tensor | None = None
        self._metadata: tuple[Any, ...] = ()
        self._complete = True

    def put(self, index: int, result: torch.Tensor) -> None:
        """Copies a result into its slot. The first result determines the stack's shape, dtype,
        device and strides. A result that does not have these is kept, and :meth:`stacked` calls
        torch.stack. One that requires grad is copied, and kept for autograd."""
        bound = result.dim() + 1
        fits = _is_plain(result) and -bound <= self._dim < bound
        if fits and result.numel() and not result.untyped_storage().nbytes():
            raise RuntimeError(
                f"parallel_stack: branch {index} returned a tensor of shape {list(result.shape)} "
                "whose memory has been freed; return a clone that is made before"
            )
        with self._lock:
            if self._stack is None and fits:
                self._allocate(result)
        if not fits or self._stack is None or self._metadata != _metadata(result):
            self._complete = False
            self._results[index] = result
            return
        with torch.no_grad():
            slot = self._stack.select(self._dim, index)
            slot.copy_(result)
        self._results[index] = result if result.requires_grad else slot

    def _allocate(self, result: torch.Tensor) -> None:
        dim = self._dim % (result.dim() + 1)
        shape, strides = _stack_layout(result, len(self._results), dim)
        with self._allocating():
            self._stack = torch.empty_strided(
                shape, strides, dtype=result.dtype, device=result.device
            )
        self._metadata = _metadata(result)

    def stacked(self) -> torch.Tensor:
        """Returns the stack. Every result has to have been :meth:`put` before."""
        dim = checked_dim(self._results, self._dim)
        if not self._complete or self._stack is None:
            # torch.stack also takes results of different dtypes or layouts.
            return torch.stack(self._results, dim)
        if torch.is_grad_enabled() and any(result.requires_grad for result in self._results):
            recorded: torch.Tensor = _Stacked.apply([self._stack], dim, *self._results)
            return recorded
        return self._stack


def _is_plain(result: torch.Tensor) -> bool:
    """Whether a result is a strided tensor, neither of a subclass nor quantized."""
    return (
        type(result) in (torch.Tensor, torch.nn.Parameter)
        and result.layout == torch.strided
        and not result.is_quantized
    )


def _metadata(result: torch.Tensor) -> tuple[Any, ...]:
    """Returns the properties in which results must agree to be copied into one stack. Strides are
    among them only if the strides of the stack depend on them."""
    strides = result.stride() if _may_be_channels_last(result) else None
    return result.shape, result.dtype, result.device, strides


def _may_be_channels_last(result: torch.Tensor) -> bool:
    """Whether torch.stack may return a stack that is not contiguous.

    torch.stack preserves channels_last, which exists for 3 to 5 dimensions. A tensor with
    dimensions of size 1 can be both channels_last and contiguous. Its strides decide which of the
    two the stack is."""
    return (
        _is_plain(result)
        and 3 <= result.dim() <= 5
        and result.stride() != _contiguous_strides(result.shape)
    )


def _contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides = itertools.accumulate(reversed(shape[1:]), lambda n, size: n * max(size, 1), initial=1)
    return tuple(strides)[::-1] if shape else ()


def _stack_layout(
    result: torch.Tensor, count: int, dim: int
) -> tuple[Sequence[int], Sequence[int]]:
    """Returns shape and strides of a stack of ``count`` tensors like ``result``."""
    if _may_be_channels_last(result):
        like = torch.empty_strided(result.shape, result.stride(), device="meta")
        # This takes 0.1 ms, so that contiguous results are handled below.
        stack = torch.stack([like] * count, dim)
        return stack.shape, stack.stride()
    shape = (*result.shape[:dim], count, *result.shape[dim:])
    return shape, _contiguous_strides(shape)


class _Stacked(torch.autograd.Function):
    """Returns the stack, into which the results have been copied already, and gives it the
    derivative of torch.stack."""

    @staticmethod
    def forward(
        ctx: Any, stack: list[torch.Tensor], dim: int, *results: torch.Tensor
    ) -> torch.Tensor:
        ctx.dim = dim
        # The stack is passed in a list because autograd would return a view of a tensor argument.
        return stack[0]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return None, None, *grad.unbind(ctx.dim)
