"""Trains a small transformer with tensor parallelism and sequence-parallel norms:

    torchrun --nproc-per-node 4 examples/sequence_parallel.py

Attention is divided by heads, the feed-forward layers by columns, norms and residual connections by
positions in the sequence, and the logits by classes. The model is written with torch's own modules;
the rewriter replaces its norms and softmaxes, whose inputs are DTensors. Process 0 trains the same
model alone, eager and without a replacement, and prints both losses of each step.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch._dynamo.backends.registry import lookup_backend
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import fusedops
from fusedops.graph.passes import Pass
from fusedops.integrations.dtensor import cross_entropy

WIDTH, HEADS, LAYERS, LENGTH, CLASSES, BATCH = 64, 4, 2, 32, 50, 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        # Heads come first: torch 2.10 cannot multiply DTensors that are sharded between two others.
        q, k, v = (
            part(x).unflatten(-1, (-1, WIDTH // HEADS)).permute(2, 0, 1, 3)
            for part in (self.q, self.k, self.v)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(WIDTH // HEADS)
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
        mixed = (weights @ v).permute(1, 2, 0, 3).flatten(2)
        x = self.norm1(x + self.out(mixed))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, hidden)
        return self.head(self.norm(x))


def parallelized(model: Model, mesh) -> Model:
    columns = partial(ColwiseParallel, input_layouts=Shard(1), use_local_output=False)
    rows = partial(RowwiseParallel, output_layouts=Shard(1), use_local_output=False)
    plan = {
        "embed": rows(input_layouts=Replicate()),
        "norm": SequenceParallel(),
        "head": columns(output_layouts=Shard(-1)),
        **{f"blocks.*.{name}": columns() for name in ("q", "k", "v", "up")},
        **{f"blocks.*.{name}": rows() for name in ("out", "down")},
        **{f"blocks.*.{name}": SequenceParallel() for name in ("norm1", "norm2")},
    }
    return parallelize_module(model, mesh, plan)


def rewritten(graph_module, inputs):
    """The rewrites of backend="fusedops" without Inductor, whose C++ compiles for a minute."""
    Pass()(graph_module.graph)
    graph_module.recompile()
    return lookup_backend("aot_eager")(graph_module, inputs)


def batches(steps: int):
    """Sequences in which each token follows from the one before."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        tokens = [torch.randint(CLASSES, (BATCH,), generator=generator)]
        for _ in range(LENGTH):
            tokens.append((3 * tokens[-1] + 7) % CLASSES)
        sequence = torch.stack(tokens, 1)
        yield sequence[:, :-1], sequence[:, 1:].flatten()


def hidden_scores() -> torch.Tensor:
    return torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)


def train(model, steps: int, loss_of) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    losses = []
    for tokens, target in batches(steps):
        optimizer.zero_grad()
        loss = loss_of(tokens, target)
        loss.backward()
        optimizer.step()
        loss = loss.detach()
        losses.append((loss.full_tensor() if isinstance(loss, DTensor) else loss).item())
    return losses


def train_parallel(steps: int, inductor: bool) -> tuple[list[float], object]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = parallelized(Model(), mesh)
    hidden = distribute_tensor(hidden_scores(), mesh, [Replicate()], src_data_rank=None)
    with fusedops.config.patch(fuse="always"):  # at toy sizes no rewrite would pay
        tokens, _ = next(batches(1))
        report = fusedops.explain(model, tokens, hidden)
        compiled = torch.compile(model, backend="fusedops" if inductor else rewritten)

        def loss_of(tokens, target):
            return cross_entropy(compiled(tokens, hidden).flatten(0, 1), target)

        return train(model, steps, loss_of), report


def train_alone(steps: int) -> list[float]:
    torch.manual_seed(0)
    model, hidden = Model(), hidden_scores()

    def loss_of(tokens, target):
        return F.cross_entropy(model(tokens, hidden).flatten(0, 1), target)

    return train(model, steps, loss_of)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--inductor", action="store_true", help="compile with Inductor too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    losses, report = train_parallel(options.steps, options.inductor)
    if dist.get_rank() == 0:
        print(report)
        print(f"\n step  {dist.get_world_size()} processes  one process")
        for step, (ours, alone) in enumerate(zip(losses, train_alone(options.steps), strict=True)):
            print(f"{step:5}  {ours:11.6f}  {alone:11.6f}")
    dist.barrier()
    dist.destroy_process_group()
    # Exits without destructors, which can wait for Gloo's threads for ever.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
