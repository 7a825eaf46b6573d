"""Four processes in a mesh of two dimensions: FSDP2 over tensor and sequence parallelism."""

from __future__ import annotations

from distributed.claims_models import check_tensor_parallel
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import init_device_mesh


def claim_tensor_parallel_within_fsdp2():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    check_tensor_parallel("FSDP2 of TP + SP", mesh, lambda b: fully_shard(b, mesh=mesh["dp"]))
