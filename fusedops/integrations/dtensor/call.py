"""Runs one call of an op on DTensors. It redistributes the arguments where necessary, computes each
rank's part, by the op itself or by a function of the op's family, and wraps the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement
from torch.utils._python_dispatch import _disable_current_modes

from fusedops.integrations.dtensor.partition import (
    Dims,
    Partition,
    Result,
    Space,
    all_reduce,
    partition,
)

#: The type of functions that compute a rank's results from its part of the arguments. The results
#: are converted to the dtypes of the op's, and those that the caller does not need are dropped.
Compute = Callable[["Call", Partition, dict[str, Any]], Any]


@dataclass(frozen=True)
class Rule:
    """Says how a family of ops runs its calls.

    space: a function that returns the Space that describes a call.
    compute: a function that computes a rank's part; None if the op itself does.
    compute_split_rows: a function that computes a rank's part where a row is divided among ranks;
        None if such rows are gathered.
    written: the argument that the op writes into, or None. The result of ``compute_split_rows`` is
        copied into this argument.
    """

    space: Callable[[Call], Space]
    compute: Compute | None = None
    compute_split_rows: Compute | None = None
    written: str | None = None


@dataclass(frozen=True)
class Call:
    """Holds the arguments of a call of an op by name, and the mesh of its DTensors."""

    overload: Any
    named: dict[str, Any]
    mesh: DeviceMesh

    @classmethod
    def of(cls, overload: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Call:
        """Returns the call of these arguments, which must be on one mesh."""
        arguments = overload._schema.arguments
        named = {argument.name: argument.default_value for argument in arguments}
        named.update(zip(named, args, strict=False))
        named.update(kwargs)
        mesh = _common_mesh(overload, named)
        seed = named.get("seed")
        if isinstance(seed, torch.Tensor) and not isinstance(seed, DTensor):
            named["seed"] = _common_seed(seed, mesh)
        return cls(overload, named, mesh)

    def __getitem__(self, name: str) -> Any:
        return self.named[name]

    def __contains__(self, name: str) -> bool:
        """Whether the call has the argument, with a value other than None."""
        return self.named.get(name) is not None

    @property
    def results(self) -> list[str]:
        """Returns the names of the op's results."""
        return [result.name for result in self.overload._schema.returns]

    def reduced_dims(self, rank: int) -> tuple[int, ...]:
        """Returns the dimensions of an input that a row consists of: ``dim``, or the last ones."""
        if "dim" in self:
            return (self["dim"] % rank,) if rank else ()
        return tuple(range(rank - len(self["normalized_shape"]), rank))

    def run(self, local: dict[str, Any]) -> Any:
        """Calls the op itself."""
        return self.overload(*local.values())

    def results_meta(self) -> Any:
        """Returns meta tensors with the shapes of the results for the whole tensors. The op's fake
        kernel makes them, which refuses bad arguments with the messages for plain tensors."""
        with _disable_current_modes():
            return self.run({name: _map(_meta, value) for name, value in self.named.items()})


def run(call: Call, rule: Rule) -> Any:
    """Returns the results of a call, as DTensors."""
    space = rule.space(call)
    # An argument that is written must not be redistributed, so that it decides the division.
    if rule.written is not None:
        space = replace(space, deciding_tensors=(rule.written,))
    part = partition(space, call.named, call.mesh, splits=rule.compute_split_rows is not None)
    if rule.written is not None:
        _check_written(call, rule.written, part.placements(Result(space.tensors[rule.written])))
    meta = call.results_meta()
    splits = part.divides(space.reduced)
    compute = rule.compute_split_rows if splits else rule.compute
    local = {
        name: _map(partial(_local, part, space.tensors.get(name, ())), value)
        for name, value in call.named.items()
    }
    results = None
    if call.mesh.get_coordinate() is not None:  # a rank outside of the mesh computes nothing
        results = compute(call, part, local) if compute else call.run(local)
        if splits and rule.written is not None:
            local[rule.written].copy_(results)
    if meta is None:
        return None
    if isinstance(meta, torch.Tensor):
        return _wrapped(part, results, meta, space.results[0])
    each = zip(results or [None] * len(meta), meta, space.results, strict=True)
    return tuple(_wrapped(part, *result_and_spec) for result_and_spec in each)


def _map(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_map(function, each) for each in value]
    return function(value) if isinstance(value, torch.Tensor) else value


def _local(part: Partition, dims: Dims, tensor: torch.Tensor) -> torch.Tensor:
    """Returns this rank's part of a DTensor, after redistributing it if the partition needs other
    placements. A plain tensor, which is the same on all ranks, is returned unchanged."""
    if not isinstance(tensor, DTensor):
        return tensor
    distributed: Any = tensor  # Any, because torch annotates DTensor's methods to return a Tensor
    wanted = part.placements(Result(dims))
    if list(distributed.placements) != wanted:
        # Under no_grad, torch 2.10 cannot redistribute a tensor that requires grad.
        distributed = distributed.detach().redistribute(part.mesh, wanted)
    part_of_rank: torch.Tensor = distributed.to_local()
    return part_of_rank


def _meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _wrapped(
    part: Partition, local: torch.Tensor | None, meta: torch.Tensor, result: Result
) -> DTensor:
    """Returns a result as a DTensor with the dtype, shape and strides of ``meta``. ``local``, this
    rank's part, is None on a rank outside of the mesh."""
    if local is None:
        local = torch.empty(0, device=part.mesh.device_type)
    if meta.shape == (0,):  # the caller does not need the result; it has this shape on every rank
        local, result = local.new_empty(0), Result(())
    return DTensor.from_local(
        local.to(meta.dtype),
        part.mesh,
        part.placements(result),
        run_check=False,
        shape=meta.shape,
        stride=meta.stride(),
    )


# --- refusals -----------------------------------------------------------------------------------


def _common_mesh(overload: Any, arguments: dict[str, Any]) -> DeviceMesh:
    """Returns the mesh of all DTensors among the arguments. Raises an error if they are on
    different meshes. A plain tensor of one element is taken to be the same on all ranks; a larger
    one raises an error, unless torch's implicit replication is on."""
    op, tensors = overload._schema.name, dict(_tensors(arguments))
    meshes = {name: t.device_mesh for name, t in tensors.items() if isinstance(t, DTensor)}
    (first, mesh), *others = meshes.items()
    for name, other in others:
        if other != mesh:
            raise RuntimeError(
                f"{op}: {name} is on {other}, wanted {mesh}, which {first} is on; redistribute it "
                "through .full_tensor() and distribute_tensor"
            )
    replicates = getattr(DTensor._op_dispatcher, "_allow_implicit_replication", False)
    for name, tensor in tensors.items():
        if not (isinstance(tensor, DTensor) or tensor.numel() == 1 or replicates):
            raise RuntimeError(
                f"{op}: {name} is a plain tensor, wanted a DTensor as {first} is, on {mesh}; make "
                f"it with distribute_tensor({name}, mesh, [Replicate()] * mesh.ndim)"
            )
    return mesh


def _tensors(arguments: dict[str, Any]) -> Any:
    """Yields the name and value of each tensor; in a list of tensors the name is "inputs[0]"."""
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, (list, tuple)):
            numbered = ((f"{name}[{index}]", each) for index, each in enumerate(value))
            yield from (pair for pair in numbered if isinstance(pair[1], torch.Tensor))


def _check_written(call: Call, name: str, wanted: list[Placement]) -> None:
    placements = list(call[name].placements)
    if placements != wanted:
        raise RuntimeError(
            f"{call.overload._schema.name}: {name} is written in place and has placements "
            f"{placements}, wanted {wanted}, in which each rank has whole rows; redistribute it "
            "first, or use the function that returns a new tensor"
        )


def _common_seed(seed: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """Returns one seed for all ranks, which is the greatest of theirs. Each rank has drawn a seed
    of its own, but replicas of a row must drop the same elements."""
    if mesh.get_coordinate() is None:
        return seed
    for mesh_dim in range(mesh.ndim):
        seed = all_reduce(seed, "max", mesh, mesh_dim)
    return seed
