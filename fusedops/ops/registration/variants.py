"""Registers fake kernels and vmap rules for an op and for its no-autograd variant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fusedops.ops.registration.libraries import with_variant
from fusedops.ops.registration.signature import Signature

_fakes: dict[str, Callable[..., Any]] = {}


def register_fake(op: str, fake: Callable[[Any], Any]) -> None:
    """Registers ``fake(call)``, which gets the arguments as a named tuple."""
    _fakes[op] = Signature(op).of_call(fake)
    for name in with_variant(op):
        torch.library.register_fake(f"fusedops::{name}", _fakes[op])


def check_and_make_fakes(op: str, args: Sequence[Any]) -> Any:
    """Checks the arguments and returns uninitialised tensors like the op's results."""
    return _fakes[op](*args)


def _fake_slice(arg: Any, batch_dim: Any) -> Any:
    """Returns one slice of a batched argument, as a meta tensor."""
    if isinstance(arg, (list, tuple)) and isinstance(batch_dim, (list, tuple)):  # lists of tensors
        return [_fake_slice(*item_and_dim) for item_and_dim in zip(arg, batch_dim, strict=True)]
    if not isinstance(arg, torch.Tensor):
        return arg
    shape = [size for dim, size in enumerate(arg.shape) if dim != batch_dim]
    return torch.empty(shape, dtype=arg.dtype, device="meta")


def check_and_make_slice(op: str, in_dims: tuple[Any, ...], args: Sequence[Any]) -> Any:
    """Checks one slice of batched arguments and returns meta tensors like the op's results."""
    return _fakes[op](*map(_fake_slice, args, in_dims))


def register_vmap(op: str, rule: Callable[..., Any]) -> None:
    """Registers a batching rule. The arguments are first checked slice by slice, so that errors are
    those of a single call: a ``dim`` that is out of range for a slice may be in range for the
    batch."""

    def checked(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        check_and_make_slice(op, in_dims, args)
        return rule(info, in_dims, *args)

    for name in with_variant(op):
        torch.library.register_vmap(f"fusedops::{name}", checked)
