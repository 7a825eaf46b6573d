"""DTensors made of plain tensors."""

from __future__ import annotations

import random

import torch.distributed as dist
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
)


def world_mesh():
    """All processes, in a row."""
    return init_device_mesh("cpu", (dist.get_world_size(),))


def partial(tensor, mesh, placements):
    """A DTensor; where it is partial, the ranks have different parts of the sum."""
    local = tensor
    for dim, placement in enumerate(placements):
        if placement.is_partial():
            part = 0.25 if mesh.get_local_rank(dim) == 0 else 0.75 / max(mesh.size(dim) - 1, 1)
            local = local * (part if mesh.size(dim) > 1 else 1.0)
    whole = [Replicate() if p.is_partial() else p for p in placements]
    own = distribute_tensor(local, mesh, whole, src_data_rank=None).to_local()
    shape, stride = tensor.shape, tensor.stride()
    return DTensor.from_local(own, mesh, placements, run_check=False, shape=shape, stride=stride)


def anyhow(tensor, mesh, draw: random.Random):
    """A DTensor with placements drawn from all that there are."""
    shards = [Shard(dim) for dim in range(tensor.dim())]
    sums = [Partial("sum")] if tensor.dtype.is_floating_point else []
    drawn = [draw.choice([Replicate(), *shards, *shards, *sums]) for _ in range(mesh.ndim)]
    return partial(tensor, mesh, drawn)
