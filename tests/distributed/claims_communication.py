"""Which collectives run, and how many bytes they move: the formulas of docs/distributed.md."""

from __future__ import annotations

from collections import Counter

import torch
from distributed.formulas import exchanged
from distributed.placed import partial, world_mesh
from op_samples import ops
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.utils._python_dispatch import TorchDispatchMode

import fusedops
from fusedops.integrations.dtensor import cross_entropy

#: Rows, columns and classes of the calls.
ROWS, COLS = 24, 40


class Counted(TorchDispatchMode):
    """Counts the bytes of a rank's result of each collective."""

    def __init__(self):
        super().__init__()
        self.bytes = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented  # to see what its rule calls
        result = func(*args, **(kwargs or {}))
        namespace, name = func._schema.name.split("::")
        if namespace == "_c10d_functional" and name.startswith(("all_", "reduce_", "broadcast")):
            self.bytes[name] += result.numel() * result.element_size()
        return result


def _counted(function):
    with Counted() as counted:
        function()
    return dict(counted.bytes)


def _distributed(mesh, placement, *shape, dtype=torch.float32):
    tensor = torch.randn(shape or (ROWS, COLS), dtype=dtype)
    return partial(tensor, mesh, [placement]).requires_grad_()


def _forward_and_backward(function, *tensors):
    """The bytes of both passes; the gradient of the result is placed as the result."""
    results = []
    forward = _counted(lambda: results.append(function(*tensors)))
    (result,) = results
    gradient = torch.ones_like(result.detach())
    return forward, _counted(lambda: result.backward(gradient))


def claim_sharded_rows_move_nothing():
    mesh = world_mesh()
    x, w = _distributed(mesh, Shard(0)), _distributed(mesh, Replicate(), COLS)
    assert _forward_and_backward(lambda x: fusedops.softmax(x, -1), x) == ({}, {})
    assert _forward_and_backward(lambda x, w: fusedops.layer_norm(x, (COLS,), w), x, w) == ({}, {})
    scores = _distributed(mesh, Shard(1), 2, 4, 5, 6)
    causal = _forward_and_backward(lambda x: fusedops.masked_softmax(x, causal=True), scores)
    assert causal == ({}, {})


def claim_divided_rows_with_their_statistics_move_nothing():
    x = _distributed(world_mesh(), Shard(1)).detach()
    statistics = ops.softmax_stats(x, 1)
    assert _counted(lambda: ops.softmax_apply(x, *statistics, 1)) == {}


def claim_a_rank_without_columns_sends_numbers_of_the_same_dtype():
    x = _distributed(world_mesh(), Shard(1), ROWS, 1)
    assert fusedops.softmax(x, -1).full_tensor().eq(1).all()


def claim_divided_rows_move_numbers_of_a_row():
    mesh = world_mesh()
    for dtype in (torch.float32, torch.float64):
        x, w = (_distributed(mesh, Shard(dim), *shape, dtype=dtype) for dim, shape in _SHAPES)
        for call, function in _CALLS.items():
            moved = _forward_and_backward(function, x, w)
            assert moved == exchanged(call, ROWS, mesh.size(), x.element_size()), (call, moved)


_SHAPES = ((1, (ROWS, COLS)), (0, (COLS,)))
_CALLS = {
    "softmax": lambda x, w: fusedops.softmax(x, -1),
    "log_softmax": lambda x, w: fusedops.log_softmax(x, -1),
    "masked_softmax": lambda x, w: fusedops.masked_softmax(x, causal=True),
    "layer_norm": lambda x, w: fusedops.layer_norm(x, (COLS,), w),
    "std_norm": lambda x, w: fusedops.std_norm(x, (COLS,), w),
    "rms_norm": lambda x, w: fusedops.rms_norm(x, (COLS,), w),
    "l2_norm": lambda x, w: fusedops.l2_norm(x, (COLS,), w),
    "cross_entropy": lambda x, w: cross_entropy(
        x, torch.zeros(ROWS, dtype=torch.int64), reduction="none"
    ),
}


def claim_a_partial_input_is_scattered_to_its_residual():
    mesh = world_mesh()
    branch, residual = _distributed(mesh, Partial("sum")), _distributed(mesh, Shard(0))
    with torch.no_grad():
        moved = _counted(lambda: fusedops.add_layer_norm(branch, residual, (COLS,)))
    assert moved == {"reduce_scatter_tensor": 4 * ROWS * COLS // mesh.size()}, moved


def claim_a_seed_is_agreed_on_by_8_bytes():
    mesh = world_mesh()
    with torch.no_grad():
        x = _distributed(mesh, Replicate())
        moved = _counted(lambda: fusedops.masked_softmax_dropout(x, p=0.5))
    assert moved == {"all_reduce": 8}, moved
