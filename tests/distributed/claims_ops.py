"""Every op, for arguments with any placements, has the results of one process."""

from __future__ import annotations

import random

import torch
import torch.distributed as dist
from distributed.placed import anyhow, partial, world_mesh
from op_samples import ops, samples
from torch.distributed.tensor import Replicate, Shard, init_device_mesh


def _meshes():
    """(mesh, how many placements are drawn for each sample)"""
    world = dist.get_world_size()
    yield world_mesh(), 3 if world == 2 else 1
    if world == 4:
        yield init_device_mesh("cpu", (2, 2)), 1


def _mapped(function, args):
    return tuple(
        [function(each) for each in arg] if isinstance(arg, list) else function(arg) for arg in args
    )


def _written(overload, args):
    """The number of the argument that an op writes into; None if there is none."""
    arguments = overload._schema.arguments
    written = (n for n, a in enumerate(arguments) if a.alias_info and a.alias_info.is_write)
    return next(written, None)


def _distributed(overload, args, mesh, draw):
    def make(arg):
        if not isinstance(arg, torch.Tensor) or arg.dim() == 0:
            return arg
        return anyhow(arg.clone(), mesh, draw)

    made, written = list(_mapped(make, args)), _written(overload, args)
    if written is not None:  # it keeps its placements; with dropout each rank must have whole rows
        dims = range(args[written].dim() - ("dropout" in overload._schema.name))
        wanted = draw.choices([Replicate(), *map(Shard, dims)], k=mesh.ndim)
        made[written] = partial(args[written].clone(), mesh, wanted)
    return made


def _results(overload, args):
    """What an op returns or writes, as a list."""
    results = overload(*args)
    written = _written(overload, args)
    if written is not None:
        assert results is None
        return [args[written]]
    return list(results) if isinstance(results, (list, tuple)) else [results]


def _check(op, args, mesh, draw):
    overload = getattr(ops, op).default
    given = _distributed(overload, args, mesh, draw)
    placements = _mapped(lambda a: getattr(a, "placements", None), given)
    wanted = _results(overload, _mapped(lambda a: a.clone() if _is_tensor(a) else a, args))
    for ours, exact in zip(_results(overload, given), wanted, strict=True):
        message = f"{op} on {mesh} of {placements} gives {ours.placements}"
        assert ours.shape == exact.shape and ours.dtype == exact.dtype, message
        assert _strides(ours) == _strides(exact), message
        torch.testing.assert_close(
            ours.full_tensor(),
            exact,
            rtol=1e-11,
            atol=1e-12,
            equal_nan=True,
            msg=message,
        )


def _strides(tensor):
    """Those that matter: a dimension of size 1 may have any."""
    return [s for s, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1]


def _is_tensor(value):
    return isinstance(value, torch.Tensor)


def claim_every_op_with_any_placements_is_that_of_one_process():
    draw = random.Random(0)
    for mesh, draws in _meshes():
        for op, args in samples():
            for _ in range(draws):
                _check(op, args, mesh, draw)


def claim_samples_cover_every_op_that_takes_dtensors():
    from fusedops.ops.registration.libraries import OPS

    covered = {sample.op.removeprefix("_") for sample in samples()}
    # Every op of linear_cross_entropy is refused.
    taken = {op.removeprefix("_") for op in OPS if "linear_cross_entropy" not in op}
    assert taken == covered
