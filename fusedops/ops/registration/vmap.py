"""Helpers for batching rules, by which torch.vmap runs an op on a batch."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from fusedops.ops.registration.libraries import argument_names, function_name, written_arguments
from fusedops.ops.registration.variants import check_and_make_slice, register_vmap

BatchDims = tuple[int | None, ...]


def in_front(tensor: torch.Tensor, batch_dim: int | None, batch: int) -> torch.Tensor:
    """Makes the batch the first dimension of a tensor, which is expanded if it has none."""
    if batch_dim is None:
        return tensor.expand(batch, *tensor.shape)
    return tensor.movedim(batch_dim, 0)


def written(op: str, name: str, tensor: torch.Tensor, batch_dim: int | None) -> torch.Tensor:
    """Makes the batch the first dimension of an argument that an op writes. The argument must have
    a batch dimension, because an expanded one has the same place for all slices."""
    if batch_dim is None:
        raise RuntimeError(
            f"{op}: {name} has no batch dimension for vmap, but another argument has: the slices "
            f"would all be written to one place; pass {name} to the vmapped function, or make it "
            "there with torch.empty_like"
        )
    return tensor.movedim(batch_dim, 0)


def aligned(tensor: torch.Tensor | None, batch_dim: int | None, rank: int) -> torch.Tensor | None:
    """Reshapes a tensor whose slices broadcast to ``rank`` dimensions, so that it broadcasts to the
    batch. Returns None, or a tensor without a batch dimension, as it is."""
    if tensor is None or batch_dim is None:
        return tensor
    front = tensor.movedim(batch_dim, 0)
    missing = rank + 1 - front.dim()
    return front.reshape(front.shape[0], *[1] * missing, *front.shape[1:])


def shifted_dim(dim: int, rank: int) -> int:
    """Returns the dimension of the batch that is ``dim`` in its slices, which have ``rank``
    dimensions. The batch's first dimension numbers the slices."""
    return dim % rank + 1


def register_loop(op: str) -> None:
    """Registers a rule that makes one call per slice, for an op that cannot compute the rows of all
    slices in one call."""

    def rule(info: Any, in_dims: BatchDims, *args: Any) -> tuple[Any, Any]:
        return loop(op, info.batch_size, in_dims, args)

    register_vmap(op, rule)


def register_rows(op: str, **missing: int) -> None:
    """Registers a rule that makes one call for the batch, to which each slice adds rows. The batch
    becomes the first dimension of the tensors. Where the op has an argument ``dim``, slices that
    are scalars get a dimension of size 1.

    missing: the names of tensors that broadcast to the first one, and how many of its last
        dimensions they lack.
    """
    overload = getattr(torch.ops.fusedops, op).default
    all_names, targets = argument_names(op), written_arguments(op)

    def rule(info: Any, in_dims: BatchDims, *args: Any) -> tuple[Any, Any]:
        names = all_names[: len(args)]
        named, dims = dict(zip(names, args, strict=True)), dict(zip(names, in_dims, strict=True))
        fronts = {
            name: written(function_name(op), name, value, dims[name])
            if name in targets
            else in_front(value, dims[name], info.batch_size)
            for name, value in named.items()
            if isinstance(value, torch.Tensor) and name not in missing
        }
        rank = next(iter(fronts.values())).dim() - 1
        are_scalars = rank == 0 and "dim" in named
        for name, front in fronts.items():
            named[name] = front.unsqueeze(1) if are_scalars else front
        for name in missing.keys() & named.keys():
            named[name] = aligned(named[name], dims[name], rank - missing[name])
        if "dim" in named:
            named["dim"] = shifted_dim(named["dim"], max(rank, 1))
        return _batched(overload(*named.values()), are_scalars)

    register_vmap(op, rule)


def _batched(results: Any, are_scalars: bool) -> tuple[Any, Any]:
    """Returns results, without the dimension that scalars got, and their batch dimensions."""
    if results is None:
        return None, None
    if isinstance(results, torch.Tensor):
        return results.squeeze(1) if are_scalars else results, 0
    return tuple(_batched(result, are_scalars)[0] for result in results), (0,) * len(results)


def loop(op: str, batch: int, in_dims: BatchDims, args: tuple[Any, ...]) -> tuple[Any, Any]:
    """Calls the op once per slice and stacks the results."""
    overload = getattr(torch.ops.fusedops, op).default

    def of_slice(arg: Any, dim: Any, index: int) -> Any:
        if isinstance(dim, (list, tuple)):  # lists of tensors
            return [of_slice(*item_and_dim, index) for item_and_dim in zip(arg, dim, strict=True)]
        return arg.select(dim, index) if isinstance(dim, int) else arg

    if batch == 0:
        return _of_no_slices(check_and_make_slice(op, in_dims, args), args)
    results = [
        overload(*(of_slice(arg, dim, index) for arg, dim in zip(args, in_dims, strict=True)))
        for index in range(batch)
    ]
    if isinstance(results[0], torch.Tensor):
        return torch.stack(results), 0
    return tuple(map(torch.stack, zip(*results, strict=True))), (0,) * len(results[0])


def _of_no_slices(fakes: Any, args: tuple[Any, ...]) -> tuple[Any, Any]:
    """Returns the results of an empty batch, from those of a slice as meta tensors."""
    # They consist of no elements of the arguments, so that autograd gives these gradients of zeros.
    nothing = [
        arg.unsqueeze(0)[:0].flatten()
        for arg in tree_leaves(args)
        if isinstance(arg, torch.Tensor) and arg.is_floating_point()
    ]

    def empty(fake: torch.Tensor) -> torch.Tensor:
        return torch.cat(nothing).to(fake.dtype).view(0, *fake.shape)

    return _batched(tree_map(empty, fakes), are_scalars=False)
