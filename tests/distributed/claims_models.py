"""A block trained by DDP, FSDP2, tensor and sequence parallelism, eager and compiled, has the loss
and the gradients of one process."""

from __future__ import annotations

import torch
import torch.distributed as dist
from distributed.models import LENGTH, WIDTH, Block, Norms, OurNorms
from torch._dynamo.backends.registry import lookup_backend
from torch._dynamo.utils import counters
from torch._inductor import config as inductor
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DTensor,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import fusedops
from fusedops.backend import backend
from fusedops.graph.passes import Pass


def _hidden():
    return torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)


def _block(parts):
    torch.manual_seed(0)
    return Block(parts).double()


def _batch():
    torch.manual_seed(1)
    return torch.randn(4, LENGTH, WIDTH, dtype=torch.float64)


def _one_process():
    """The loss and the gradients of torch's own modules."""
    block = _block(Norms)
    loss = block(_batch(), _hidden()).square().mean()
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in block.named_parameters()}


def _whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _agrees(what, model, loss):
    exact, gradients = _one_process()
    assert abs(_whole(loss.detach()) - exact) < 1e-12, (what, loss)
    for name, parameter in model.named_parameters():
        difference = (_whole(parameter.grad) - gradients[name.removeprefix("module.")]).abs().max()
        assert difference < 1e-12, (what, name, difference)


def _runs():
    """The modules, compilers and numbers of sites: what to run each kind of parallelism with."""
    yield OurNorms, lambda model: model, {}
    yield Norms, compiled, {"masked_softmax": 1, "add_layer_norm": 1, "add_rms_norm": 1}


def compiled(model):
    """Compiled with our rewrites and derivatives traced, but without Inductor's code, whose C++
    takes a minute to compile."""
    torch._dynamo.reset()
    return torch.compile(model, backend=_rewritten)


def _rewritten(graph_module, inputs):
    Pass()(graph_module.graph)
    graph_module.recompile()
    return lookup_backend("aot_eager")(graph_module, inputs)


def _step(model, x, hidden):
    counters.clear()
    with fusedops.config.patch(fuse="always"):
        loss = model(x, hidden).square().mean()
        loss.backward()
    return loss


def _own_rows(mesh):
    return distribute_tensor(_batch(), mesh, [Shard(0)], src_data_rank=None).to_local()


def _mean(loss, mesh):
    whole = loss.detach().clone()
    dist.all_reduce(whole, group=mesh.get_group())
    return whole / mesh.size()


def _check_data_parallel(what, parallelize):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for parts, compiler, sites in _runs():
        model = parallelize(_block(parts), mesh)
        loss = _step(compiler(model), _own_rows(mesh), _hidden())
        assert dict(counters["fusedops"]) == sites, (what, counters["fusedops"])
        _agrees((what, parts), model, _mean(loss, mesh))


def claim_ddp():
    _check_data_parallel("DDP", lambda block, mesh: DistributedDataParallel(block))


def claim_fsdp2():
    _check_data_parallel("FSDP2", lambda block, mesh: fully_shard(block, mesh=mesh))


def tensor_parallel(block, mesh):
    """Attention by heads, feed-forward by columns, and norms by positions in the sequence."""
    split = ColwiseParallel(input_layouts=Shard(1), use_local_output=False)
    joined = RowwiseParallel(output_layouts=Shard(1), use_local_output=False)
    plan = dict.fromkeys(("q", "k", "v", "up"), split) | dict.fromkeys(("out", "down"), joined)
    norms = dict.fromkeys(("norm1", "norm2"), SequenceParallel())
    return parallelize_module(block, mesh, plan | norms)


def check_tensor_parallel(what, mesh, wrap=lambda block: block):
    whole = mesh["tp"]
    for parts, compiler, sites in _runs():
        block = wrap(tensor_parallel(_block(parts), whole))
        x = _batch() if mesh.ndim == 1 else _own_rows(mesh["dp"])
        x = distribute_tensor(x, whole, [Shard(1)], src_data_rank=None)
        hidden = distribute_tensor(_hidden(), whole, [Replicate()], src_data_rank=None)
        loss = _whole(_step(compiler(block), x, hidden))
        # In torch 2.10 the mask stays a step of its own before the softmax.
        assert sum(counters["fusedops"].values()) == sum(sites.values()), counters["fusedops"]
        _agrees((what, parts), block, loss if mesh.ndim == 1 else _mean(loss, mesh["dp"]))


def claim_tensor_and_sequence_parallel():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    check_tensor_parallel("TP + SP", mesh)


def _writes_between(x, w):
    y = x * 1.0
    view = y.view(-1, WIDTH)
    total = y + x
    view.mul_(2.0)
    return torch.nn.functional.layer_norm(total, (WIDTH,), w)


def claim_a_write_through_a_view_of_a_dtensor_is_seen():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    x = distribute_tensor(_batch(), mesh, [Shard(0)], src_data_rank=None)
    w = distribute_tensor(torch.rand(WIDTH).double(), mesh, [Replicate()], src_data_rank=None)
    exact = _writes_between(x.full_tensor(), w.full_tensor())
    with fusedops.config.patch(fuse="always"):
        ours = compiled(_writes_between)(x, w).full_tensor()
    assert torch.allclose(ours, exact, rtol=1e-12)


def _residual_norm(x, residual, w):
    return torch.nn.functional.layer_norm(x + residual, (WIDTH,), w)


def claim_what_depends_on_a_rows_position_compiles():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    seed, x = torch.tensor(3), _batch()
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


def claim_the_backend_compiles_dtensors():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    exact = _batch(), _batch().sin(), torch.rand(WIDTH).double()
    shards = [Shard(1)], [Shard(1)], [Replicate()]
    given = [
        distribute_tensor(t, mesh, p, src_data_rank=None).requires_grad_()
        for t, p in zip(exact, shards, strict=True)
    ]
    torch._dynamo.reset()
    counters.clear()
    # A warm cache would count nothing.
    with fusedops.config.patch(fuse="always"), inductor.patch(force_disable_caches=True):
        ours = torch.compile(_residual_norm, backend=backend)(*given)
        ours.backward(torch.ones_like(ours))
    assert dict(counters["fusedops"]) == {"add_layer_norm": 1}
    plain = [t.clone().requires_grad_() for t in exact]
    wanted = _residual_norm(*plain)
    wanted.sum().backward()
    pairs = [(ours, wanted), *((a.grad, b.grad) for a, b in zip(given, plain, strict=True))]
    for got, want in pairs:
        assert torch.allclose(got.full_tensor(), want, rtol=1e-11, atol=1e-12)
