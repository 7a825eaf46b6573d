"""DistributedDataParallel: two processes, each compiled, agree with eager's gradients."""

import os
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from agreement import trained
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel

import fusedops
from fusedops.backend import backend

WORLD = 2


class _Block(nn.Module):
    """Decomposed attention, and two residual norms."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        hidden = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(-2, -1) / 4).masked_fill(hidden, -torch.inf)
        x = self.norm1(x + scores.softmax(-1) @ v)
        return self.norm2(x + F.gelu(self.out(x)))


def _worker(rank, port, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    torch.manual_seed(0)
    model = DistributedDataParallel(_Block().double())
    torch.manual_seed(rank)
    x = torch.randn(3, 5, 16, dtype=torch.double)
    eager = trained(model, x)
    with (
        fusedops.config.patch(fuse="always"),
        torch._inductor.config.patch(
            force_disable_caches=True  # a warm cache would count nothing
        ),
    ):
        ours = trained(torch.compile(model, backend=backend), x)
    difference = max((a - b).abs().max().item() for a, b in zip(ours, eager, strict=True))
    results[rank] = (difference, dict(counters["fusedops"]))
    dist.destroy_process_group()
    # Without destructors: torch 2.13's reducer holds the interpreter lock while it joins Gloo's
    # thread, which may need that lock to drop its last all-reduce, and then neither goes on.
    os._exit(0)


@pytest.mark.exhaustive
def test_two_processes_give_eagers_gradients():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(_worker, (port, results), nprocs=WORLD)
        results = dict(results)
    assert set(results) == {0, 1}
    for difference, counts in results.values():
        assert difference < 1e-12
        assert counts == {"masked_softmax": 1, "add_layer_norm": 2}
