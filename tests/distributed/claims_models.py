"""A block trained by DDP, FSDP2, tensor and sequence parallelism, eager and compiled, has the loss
and the gradients of one process."""

from __future__ import annotations

import torch
import torch.distributed as dist
from distributed.models import LENGTH, WIDTH, Block, Norms, OurNorms
from distributed.placed import world_mesh
from torch._dynamo.backends.registry import lookup_backend
from torch._dynamo.utils import counters
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
from fusedops.graph.passes import Pass


def _hidden():
    return torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)


def _block(parts):
    torch.manual_seed(0)
    return Block(parts).double()


def batch():
    torch.manual_seed(1)
    return torch.randn(4, LENGTH, WIDTH, dtype=torch.float64)


def _one_process():
    """The loss and the gradients of torch's own modules."""
    block = _block(Norms)
    loss = block(batch(), _hidden()).square().mean()
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
    return torch.compile(model, backend=rewritten)


def rewritten(graph_module, inputs):
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
    return distribute_tensor(batch(), mesh, [Shard(0)], src_data_rank=None).to_local()


def _mean(loss, mesh):
    whole = loss.detach().clone()
    dist.all_reduce(whole, group=mesh.get_group())
    return whole / mesh.size()


def _check_data_parallel(what, parallelize):
    mesh = world_mesh()
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
        x = batch() if mesh.ndim == 1 else _own_rows(mesh["dp"])
        x = distribute_tensor(x, whole, [Shard(1)], src_data_rank=None)
        hidden = distribute_tensor(_hidden(), whole, [Replicate()], src_data_rank=None)
        loss = _whole(_step(compiler(block), x, hidden))
        # In torch 2.10 the mask stays a step of its own before the softmax.
        assert sum(counters["fusedops"].values()) == sum(sites.values()), counters["fusedops"]
        _agrees((what, parts), block, loss if mesh.ndim == 1 else _mean(loss, mesh["dp"]))


def claim_tensor_and_sequence_parallel():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    check_tensor_parallel("TP + SP", mesh)
