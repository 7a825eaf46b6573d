"""Divides the work of a call on DTensors among the ranks of their mesh.

Each family of ops describes a call by a :class:`Space`. It has the sizes of the tensor that the
call works on, which is usually the input, and says which dimension of the space each dimension of
an argument or result corresponds to. Where a dimension of the space is sharded, every tensor that
has this dimension is sharded alike, all others are replicated, and results that are sums over it
have the placement Partial.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.distributed._functional_collectives as collectives
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

#: For each dimension of a tensor, the dimension of the space that it corresponds to, or None.
Dims = tuple[int | None, ...]


class Result(NamedTuple):
    """Holds the dimensions of a result, and whether it is a sum over the space's other
    dimensions."""

    dims: Dims
    summed: bool = False


@dataclass(frozen=True)
class Space:
    """Describes the dimensions that a call works on.

    sizes: the size of each dimension.
    tensors: argument -> its dimensions, for each argument that may be sharded. All others are
        replicated.
    results: the dimensions of each result.
    deciding_tensors: the arguments whose placements decide the division, the most important first.
    reduced: the dimensions that a row consists of.
    undivided: dimensions that must not be divided, because every rank needs all of their indices.
    """

    sizes: tuple[int, ...]
    tensors: Mapping[str, Dims]
    results: tuple[Result, ...]
    deciding_tensors: tuple[str, ...]
    reduced: frozenset[int] = frozenset()
    undivided: frozenset[int] = field(default=frozenset())


def aligned(tensor: torch.Tensor | None, sizes: Sequence[int]) -> Dims:
    """Returns the dimensions of the space to which those of a tensor correspond. The tensor
    broadcasts to the first dimensions of the space, which have the sizes ``sizes``. A dimension
    that is broadcast corresponds to None. Returns () if there is no tensor."""
    if tensor is None:
        return ()
    first = len(sizes) - tensor.dim()
    return tuple(
        first + dim if first + dim >= 0 and size == sizes[first + dim] else None
        for dim, size in enumerate(tensor.shape)
    )


@dataclass(frozen=True)
class Partition:
    """Says which part of a space each rank computes. `divided` has for each dimension of the mesh
    the dimension of the space that it divides, or None if all ranks along it compute the same."""

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
        """Returns the first index of this rank's part of a dimension."""
        return self._extent(dim, self.mesh.get_coordinate() or ())[0]

    def _extent(self, dim: int, coordinates: Sequence[int]) -> tuple[int, int]:
        """Returns the first index and the size of a rank's part of a dimension. The dimension is
        divided as torch.chunk does. torch's own function for this is not used, because it reads the
        value of a tensor, which torch.compile cannot trace."""
        start, size = 0, self.sizes[dim]
        for mesh_dim, coordinate in enumerate(coordinates):
            if self.divided[mesh_dim] == dim:
                most = -(-size // self.mesh.size(mesh_dim))
                before = min(most * coordinate, size)
                start, size = start + before, min(most, size - before)
        return start, size

    def counts(self, dims: Sequence[int]) -> list[int]:
        """Returns how many elements of a row each of the ranks has that share the row, in the order
        in which :meth:`all_gather` returns the parts."""
        coordinate = self.mesh.get_coordinate() or ()
        sharing = [
            range(self.mesh.size(mesh_dim)) if divided in dims else (coordinate[mesh_dim],)
            for mesh_dim, divided in enumerate(self.divided)
        ]
        return [math.prod(self._extent(d, at)[1] for d in dims) for at in product(*sharing)]

    def all_reduce(self, partial: torch.Tensor, dims: Iterable[int]) -> torch.Tensor:
        """Returns the sum of ``partial`` over all ranks that share rows along ``dims``."""
        for mesh_dim in self._sharing(dims):
            partial = all_reduce(partial, "sum", self.mesh, mesh_dim)
        return partial

    def all_gather(self, partials: Sequence[torch.Tensor], dims: Iterable[int]) -> torch.Tensor:
        """Returns the ``partials`` of all ranks that share rows along ``dims``, in one tensor
        ``[len(partials), ranks, ...]``. Takes one collective for each dimension of the mesh that
        divides these rows."""
        gathered = torch.stack(tuple(partials)).unsqueeze(0)
        for mesh_dim in reversed(self._sharing(dims)):
            gathered = _all_gather(gathered, self.mesh, mesh_dim)
        return gathered.transpose(0, 1)

    def _sharing(self, dims: Iterable[int]) -> list[int]:
        """Returns the mesh dimensions that divide ``dims``. The ranks along them share rows."""
        wanted = tuple(dims)
        return [n for n, divided in enumerate(self.divided) if divided in wanted]


def sum_of_parts(parts: torch.Tensor) -> torch.Tensor:
    """Returns the sum over the first dimension. The order of the additions depends only on the size
    of this dimension. On a GPU torch.sum's order also depends on how many sums there are, so that a
    row would have other bits in another batch."""
    while (count := parts.shape[0]) > 1:
        half = count // 2
        pairs = parts[:half] + parts[half : 2 * half]
        parts = torch.cat([pairs, parts[2 * half :]]) if count % 2 else pairs
    return parts[0]


def all_reduce(partial: torch.Tensor, how: str, mesh: DeviceMesh, mesh_dim: int) -> torch.Tensor:
    reduced = collectives.all_reduce(partial.contiguous(), how, (mesh, mesh_dim))
    whole: torch.Tensor = collectives.wait_tensor(reduced)
    return whole


def _all_gather(part: torch.Tensor, mesh: DeviceMesh, mesh_dim: int) -> torch.Tensor:
    # From torch 2.13 on, all_gather_tensor is named all_gather_single.
    gather = getattr(collectives, "all_gather_single", None) or collectives.all_gather_tensor
    whole: torch.Tensor = collectives.wait_tensor(gather(part.contiguous(), 0, (mesh, mesh_dim)))
    return whole


def partition(
    space: Space, arguments: Mapping[str, Any], mesh: DeviceMesh, splits: bool
) -> Partition:
    """Returns the division of the space. The first of the deciding tensors that a mesh dimension
    shards says which dimension of the space this mesh dimension divides. Rows are divided only if
    ``splits`` is True.

    A replicated tensor decides nothing, because it can be sliced without communication. Nor does a
    strided shard, whose elements are not consecutive; such a tensor is gathered.
    """
    undivided = space.undivided if splits else space.undivided | space.reduced
    placed = [
        (space.tensors[name], tensor)
        for name in space.deciding_tensors
        for tensor in _as_sequence(arguments[name])
        if isinstance(tensor, DTensor)
    ]
    divided: list[int | None] = []
    for mesh_dim in range(mesh.ndim):
        wanted = (_divided_dim(dims, tensor, mesh_dim) for dims, tensor in placed)
        divided.append(next((d for d in wanted if d is not None and d not in undivided), None))
    return Partition(mesh, space.sizes, tuple(divided))


def _as_sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)


def _divided_dim(dims: Dims, tensor: DTensor, mesh_dim: int) -> int | None:
    """Returns the dimension of the space along which ``mesh_dim`` shards a tensor, or None if it
    does not shard the tensor."""
    placement = tensor.placements[mesh_dim]
    return dims[placement.dim] if type(placement) is Shard else None
