"""Divides the work of a call on DTensors among the ranks of their mesh.

Each family of ops describes a call by its :class:`Space`: the sizes of what it works on, usually
its input, and which of these dimensions each dimension of its tensors is. Where a dimension of the
space is sharded, every tensor that has it is sharded alike, all others are replicated, and results
that are sums over it are partial.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed._functional_collectives as collectives
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

#: For each dimension of a tensor the dimension of the space that it is; None where it is another.
Dims = tuple[int | None, ...]


class Result(NamedTuple):
    """The dimensions of a result; ``summed`` if it is a sum over the dimensions that it lacks."""

    dims: Dims
    summed: bool = False


@dataclass(frozen=True)
class Space:
    """What a call works on.

    sizes: the size of each dimension.
    tensors: the dimensions of each argument that is divided; every other is replicated.
    results: the dimensions of each result.
    leaders: the arguments whose placements decide, the most important first.
    reduced: the dimensions that a row consists of.
    whole: further dimensions of which every rank needs all.
    """

    sizes: tuple[int, ...]
    tensors: Mapping[str, Dims]
    results: tuple[Result, ...]
    leaders: tuple[str, ...]
    reduced: frozenset[int] = frozenset()
    whole: frozenset[int] = field(default=frozenset())


def aligned(tensor: torch.Tensor | None, sizes: Sequence[int]) -> Dims:
    """The dimensions of a tensor that broadcasts to the first ``len(sizes)`` of a space."""
    if tensor is None:
        return ()
    first = len(sizes) - tensor.dim()
    return tuple(
        first + dim if first + dim >= 0 and size == sizes[first + dim] else None
        for dim, size in enumerate(tensor.shape)
    )


@dataclass(frozen=True)
class Partition:
    """Which part of a space each rank computes: the dimension that each mesh dimension divides, or
    None where it computes the same on all ranks."""

    mesh: DeviceMesh
    sizes: tuple[int, ...]
    divided: tuple[int | None, ...]

    def placements(self, result: Result) -> list[Placement]:
        return [self._placement(result, dim) for dim in self.divided]

    @staticmethod
    def _placement(result: Result, divided: int | None) -> Placement:
        if divided is None:
            return Replicate()
        if divided in result.dims:
            return Shard(result.dims.index(divided))
        return Partial("sum") if result.summed else Replicate()

    def divides(self, dims: Iterable[int]) -> bool:
        return any(divided in dims for divided in self.divided if divided is not None)

    def start(self, dim: int) -> int:
        """The first index of this rank's part of a dimension, which is cut as by torch.chunk.
        torch's own function for it reads a tensor, which a compiler cannot do."""
        start, size = 0, self.sizes[dim]
        for mesh_dim, coordinate in enumerate(self.mesh.get_coordinate() or ()):
            if self.divided[mesh_dim] == dim:
                most = -(-size // self.mesh.size(mesh_dim))
                before = min(most * coordinate, size)
                start, size = start + before, min(most, size - before)
        return start

    def all_reduce(self, partial: torch.Tensor, how: str, dims: Iterable[int]) -> torch.Tensor:
        """Reduces ("sum", "max") over the ranks that share the rows that ``dims`` are part of."""
        for mesh_dim, divided in enumerate(self.divided):
            if divided is not None and divided in dims:
                partial = all_reduce(partial, how, self.mesh, mesh_dim)
        return partial


def all_reduce(partial: torch.Tensor, how: str, mesh: DeviceMesh, mesh_dim: int) -> torch.Tensor:
    reduced = collectives.all_reduce(partial.contiguous(), how, (mesh, mesh_dim))
    whole: torch.Tensor = collectives.wait_tensor(reduced)
    return whole


def partition(space: Space, given: Mapping[str, Any], mesh: DeviceMesh, splits: bool) -> Partition:
    """Divides what the first leader that is sharded divides; with ``splits`` rows too.

    Slicing a replicated tensor is free, so that a sharded one decides against it. A strided shard,
    whose elements are not consecutive, is gathered.
    """
    undivided = space.whole if splits else space.whole | space.reduced
    known = [
        (space.tensors[name], tensor)
        for name in space.leaders
        for tensor in _each(given[name])
        if isinstance(tensor, DTensor)
    ]
    divided: list[int | None] = []
    for mesh_dim in range(mesh.ndim):
        wanted = (_divides(dims, tensor, mesh_dim) for dims, tensor in known)
        divided.append(next((d for d in wanted if d is not None and d not in undivided), None))
    return Partition(mesh, space.sizes, tuple(divided))


def _each(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)


def _divides(dims: Dims, tensor: DTensor, mesh_dim: int) -> int | None:
    placement = tensor.placements[mesh_dim]
    return dims[placement.dim] if type(placement) is Shard else None
