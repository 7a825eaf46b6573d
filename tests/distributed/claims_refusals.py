"""Calls on DTensors that cannot be right are refused, on every rank, before anything is sent."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from distributed.placed import partial, world_mesh
from op_samples import ops
from torch.distributed.tensor import Partial, Replicate, Shard, init_device_mesh
from torch.distributed.tensor.experimental import implicit_replication

import fusedops
from fusedops.integrations.dtensor import cross_entropy


def _x(placement, mesh=None):
    return partial(torch.randn(4, 6), mesh or world_mesh(), [placement])


def claim_a_plain_tensor_is_refused():
    weight = torch.ones(6)
    with pytest.raises(RuntimeError, match="_layer_norm_output|layer_norm: weight is a plain") as e:
        fusedops.layer_norm(_x(Shard(0)), (6,), weight)
    assert "distribute_tensor(weight, mesh, [Replicate()] * mesh.ndim)" in str(e.value)
    with implicit_replication():
        fusedops.layer_norm(_x(Shard(0)), (6,), weight)


def claim_a_write_that_needs_other_placements_is_refused():
    for placement in (Partial("sum"),):
        with pytest.raises(RuntimeError, match="softmax_: input is written in place") as error:
            fusedops.softmax_(_x(placement), -1)
        assert repr(placement) in str(error.value) and "redistribute" in str(error.value)
    y, seed = _x(Shard(1)), torch.tensor(1)
    with pytest.raises(RuntimeError, match="backward_: grad_output is written in place"):
        ops.masked_softmax_dropout_backward_(_x(Shard(1)), y, None, 1.0, False, 0.5, seed)


def claim_two_meshes_are_refused():
    world = dist.get_world_size()
    other = init_device_mesh("cpu", (world, 1))
    weight = partial(torch.ones(6), other, [Replicate()] * 2)
    with pytest.raises(RuntimeError, match="weight is on DeviceMesh.*redistribute it"):
        fusedops.layer_norm(_x(Shard(0)), (6,), weight)


def claim_bad_arguments_are_refused_in_words_about_whole_tensors():
    with pytest.raises(RuntimeError, match=r"weight has shape \[5\]"):
        weight = partial(torch.ones(5), world_mesh(), [Replicate()])
        fusedops.layer_norm(_x(Shard(0)), (6,), weight)
    with pytest.raises(RuntimeError, match="dim"):
        fusedops.softmax(_x(Shard(0)), 2)


def claim_cross_entropy_says_what_it_wants():
    target = torch.zeros(4, dtype=torch.int64)
    with pytest.raises(TypeError, match="input is Tensor, wanted a DTensor"):
        cross_entropy(torch.randn(4, 6), target)
    with pytest.raises(RuntimeError, match=r"target has shape \[3\]"):
        cross_entropy(_x(Shard(1)), target[:3])
    with pytest.raises(ValueError, match="reduction is 'average'"):
        cross_entropy(_x(Shard(1)), target, reduction="average")
    other = partial(target, init_device_mesh("cpu", (dist.get_world_size(), 1)), [Replicate()] * 2)
    with pytest.raises(RuntimeError, match="target is on DeviceMesh"):
        cross_entropy(_x(Shard(1)), other)


def claim_linear_cross_entropy_names_what_takes_dtensors():
    head, target = torch.randn(5, 6), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(NotImplementedError, match="input is a DTensor, wanted plain tensors"):
        fusedops.linear_cross_entropy(_x(Shard(0)), head, target)
    heads = partial(torch.randn(5, 4, 6), world_mesh(), [Shard(1)])
    with pytest.raises(
        NotImplementedError, match="linear_weight is a DTensor, wanted plain tensors"
    ):
        fusedops.linear_cross_entropy(torch.randn(4, 6), heads, target.new_zeros(4, 4))
