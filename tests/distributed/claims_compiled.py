"""Compiled functions of DTensors: one graph, as few of them as without rewrites, and the results of
one process."""

from __future__ import annotations

import torch
from distributed.claims_models import batch, compiled, rewritten
from distributed.models import LENGTH, WIDTH
from distributed.placed import world_mesh
from torch._dynamo.backends.registry import lookup_backend
from torch._dynamo.utils import counters
from torch._inductor import config as inductor
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication

import fusedops
from fusedops.backend import backend


def _writes_between(x, w):
    y = x * 1.0
    view = y.view(-1, WIDTH)
    total = y + x
    view.mul_(2.0)
    return torch.nn.functional.layer_norm(total, (WIDTH,), w)


def claim_a_write_through_a_view_of_a_dtensor_is_seen():
    mesh = world_mesh()
    x = distribute_tensor(batch(), mesh, [Shard(0)], src_data_rank=None)
    w = distribute_tensor(torch.rand(WIDTH).double(), mesh, [Replicate()], src_data_rank=None)
    exact = _writes_between(x.full_tensor(), w.full_tensor())
    with fusedops.config.patch(fuse="always"):
        ours = compiled(_writes_between)(x, w).full_tensor()
    assert torch.allclose(ours, exact, rtol=1e-12)


def _residual_norm(x, residual, w):
    return torch.nn.functional.layer_norm(x + residual, (WIDTH,), w)


def _with_gradients(norm, terms, weight):
    output = norm(*terms, weight)
    return output, *torch.autograd.grad(output.square().sum(), (*terms, weight))


def _graphs_of_batches(backend, shard):
    """How many graphs batches of 4, 8, 12 and 16 take; each has the results of one process."""
    mesh, graphs = world_mesh(), []

    def counting(graph_module, inputs):
        graphs.append(graph_module)
        return backend(graph_module, inputs)

    torch._dynamo.reset()
    norm = torch.compile(_residual_norm, backend=counting)
    weight = torch.rand(WIDTH).double().requires_grad_()
    for size in (4, 8, 12, 16):
        terms = [torch.randn(size, LENGTH, WIDTH).double().requires_grad_() for _ in range(2)]
        wanted = _with_gradients(_residual_norm, terms, weight)
        placements = ([shard], [shard], [Replicate()])
        given = [
            distribute_tensor(tensor.detach(), mesh, placement, src_data_rank=None).requires_grad_()
            for tensor, placement in zip((*terms, weight), placements, strict=True)
        ]
        ours = _with_gradients(norm, given[:2], given[2])
        for got, want in zip(ours, wanted, strict=True):
            assert torch.allclose(got.full_tensor(), want, rtol=1e-11, atol=1e-12), size
    return len(graphs)


def claim_one_graph_serves_all_batches_but_the_first():
    for shard in map(Shard, range(3)):
        with fusedops.config.patch(fuse="always"):
            counters.clear()
            graphs = _graphs_of_batches(rewritten, shard)
        assert graphs == counters["fusedops"]["add_layer_norm"] == 2, shard
    # torch's own norms compile for rows that are sharded by the batch alone.
    assert _graphs_of_batches(lookup_backend("aot_eager"), Shard(0)) == 2


def claim_what_depends_on_a_rows_position_compiles():
    mesh = world_mesh()
    seed, x = torch.tensor(3), batch()
    given = distribute_tensor(x, mesh, [Shard(1)], src_data_rank=None).requires_grad_()

    def drop(x):
        return fusedops.masked_softmax_dropout(x, p=0.5, causal=True, seed=seed)

    torch._dynamo.reset()
    ours = torch.compile(drop, backend="aot_eager", fullgraph=True)(given)
    ours.sum().backward()
    exact = x.clone().requires_grad_()
    wanted = drop(exact)
    wanted.sum().backward()
    for got, want in ((ours, wanted), (given.grad, exact.grad)):
        assert torch.allclose(got.full_tensor(), want, rtol=1e-11, atol=1e-12)


def _softmax_of_norm(x, residual, w):
    hidden = torch.ones(LENGTH, WIDTH, dtype=torch.bool).triu(1)
    scores = _residual_norm(x, residual, w).masked_fill(hidden, -torch.inf)
    return scores.softmax(-1)


def claim_the_backend_compiles_dtensors():
    mesh, whole = world_mesh(), [Replicate()]
    exact, cotangent = (batch(), batch().sin(), torch.rand(WIDTH).double()), batch().cos()
    for function, shards, sites in (
        (_residual_norm, ([Shard(1)], [Shard(1)], whole), {"add_layer_norm": 1}),
        (
            _softmax_of_norm,
            ([Shard(2)], [Shard(2)], [Shard(0)]),
            {"add_layer_norm": 1, "masked_softmax": 1},
        ),
    ):
        given = [
            distribute_tensor(t, mesh, p, src_data_rank=None).requires_grad_()
            for t, p in zip(exact, shards, strict=True)
        ]
        torch._dynamo.reset()
        counters.clear()
        # A warm cache would count nothing.
        with fusedops.config.patch(fuse="always"), inductor.patch(force_disable_caches=True):
            with implicit_replication():  # of the mask
                ours = torch.compile(function, backend=backend)(*given)
                ours.backward(distribute_tensor(cotangent, mesh, shards[0], src_data_rank=None))
        assert dict(counters["fusedops"]) == sites
        plain = [t.clone().requires_grad_() for t in exact]
        wanted = function(*plain)
        wanted.backward(cotangent)
        pairs = [(ours, wanted), *((a.grad, b.grad) for a, b in zip(given, plain, strict=True))]
        for got, want in pairs:
            assert torch.allclose(got.full_tensor(), want, rtol=1e-11, atol=1e-12)
