"""Helpers for batching rules, by which torch.vmap runs an op on a batch."""

from __future__ import annotations

from typing import Any

import torch

from fusedops.ops.registration.variants import register_vmap

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
    batch."""
    if tensor is None or batch_dim is None:
        return tensor
    front = tensor.movedim(batch_dim, 0)
    missing = rank + 1 - front.dim()
    return front.reshape(front.shape[0], *[1] * missing, *front.shape[1:])


def shifted_dim(dim: int, rank: int) -> int:
    """Returns which dimension of the batch is ``dim`` of its slices of ``rank`` dimensions. The
    batch's first dimension numbers the slices."""
    return dim % rank + 1


def register_loop(op: str) -> None:
    """Registers a rule that makes one call per slice, for an op that cannot compute the slices of a
    batch as further rows."""
    overload = getattr(torch.ops.fusedops, op).default

    def rule(info: Any, in_dims: BatchDims, *args: Any) -> tuple[Any, Any]:
        return loop(overload, info.batch_size, in_dims, args)

    register_vmap(op, rule)


def register_along_dim(op: str) -> None:
    """Registers a rule that makes one call for the batch, for an op over the dimension ``dim`` of
    its tensors. Slices that are scalars get a dimension of size 1."""
    overload = getattr(torch.ops.fusedops, op).default
    arguments = overload._schema.arguments
    is_written = {
        argument.name: argument.alias_info is not None and argument.alias_info.is_write
        for argument in arguments
        if argument.type.kind() == "TensorType"
    }

    def rule(info: Any, in_dims: BatchDims, *args: Any) -> tuple[Any, Any]:
        names = [argument.name for argument in arguments[: len(args)]]
        named, dims = dict(zip(names, args, strict=True)), dict(zip(names, in_dims, strict=True))
        fronts = {
            name: written(op.removesuffix("_out"), name, named[name], dims[name])
            if writes
            else in_front(named[name], dims[name], info.batch_size)
            for name, writes in is_written.items()
        }
        rank = next(iter(fronts.values())).dim() - 1
        for name, front in fronts.items():
            named[name] = front if rank else front.unsqueeze(1)
        named["dim"] = shifted_dim(named["dim"], max(rank, 1))
        return _batched(overload(*named.values()), are_scalars=rank == 0)

    register_vmap(op, rule)


def _batched(results: Any, are_scalars: bool) -> tuple[Any, Any]:
    """Returns results, without the dimension that scalars got, and their batch dimensions."""
    if results is None:
        return None, None
    if isinstance(results, torch.Tensor):
        return results.squeeze(1) if are_scalars else results, 0
    return tuple(_batched(result, are_scalars)[0] for result in results), (0,) * len(results)


def loop(overload: Any, batch: int, in_dims: BatchDims, args: tuple[Any, ...]) -> tuple[Any, Any]:
    """Calls the op once per slice and stacks the results."""

    def of_slice(arg: Any, dim: Any, index: int) -> Any:
        if isinstance(dim, (list, tuple)):  # lists of tensors
            return [of_slice(*item_and_dim, index) for item_and_dim in zip(arg, dim, strict=True)]
        return arg.select(dim, index) if isinstance(dim, int) else arg

    results = [
        overload(*(of_slice(arg, dim, index) for arg, dim in zip(args, in_dims, strict=True)))
        for index in range(batch)
    ]
    if isinstance(results[0], torch.Tensor):
        return torch.stack(results), 0
    return tuple(map(torch.stack, zip(*results, strict=True))), (0,) * len(results[0])
