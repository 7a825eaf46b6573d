"""The last process dies, while the others wait for it in a collective."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from distributed.placed import partial, world_mesh
from torch.distributed.tensor import Shard

import fusedops


def claim_the_others_get_an_error():
    x = partial(torch.randn(4, 6), world_mesh(), [Shard(1)])
    if dist.get_rank() == dist.get_world_size() - 1:
        os._exit(3)
    fusedops.softmax(x, -1)
