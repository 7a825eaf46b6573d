"""Functions and modules on DTensors: results and gradients are those of one process."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from distributed.placed import partial, world_mesh
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
)

import fusedops
from fusedops.integrations.dtensor import cross_entropy


def _randn(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype)


def _agrees(function, reference, tensors, placements, mesh, tolerance=1e-11):
    """`function` of DTensors against `reference` of plain float64 tensors, with all gradients."""
    plain = [tensor.clone().double().requires_grad_() for tensor in tensors]
    ours = [
        partial(tensor, mesh, placement).requires_grad_()
        for tensor, placement in zip(tensors, placements, strict=True)
    ]
    exact, output = reference(*plain), function(*ours)
    cotangent = _randn(*exact.shape)
    exact.backward(cotangent)
    whole = partial(cotangent.to(output.dtype), mesh, [Replicate()] * mesh.ndim)
    output.backward(whole)
    pairs = [(output, exact), *((a.grad, b.grad) for a, b in zip(ours, plain, strict=True))]
    for got, wanted in pairs:
        difference = (got.full_tensor().double() - wanted).abs().max().item()
        assert difference <= tolerance, (function, got.placements, difference)
    return output


def claim_a_norm_is_sequence_parallel_without_communication():
    mesh = world_mesh()
    x, w, b = _randn(2, 7, 6), _randn(6), _randn(6)
    rows, same = [Shard(1)], [Replicate()]
    y = _agrees(
        lambda x, w, b: fusedops.layer_norm(x, (6,), w, b),
        lambda x, w, b: F.layer_norm(x, (6,), w, b),
        (x, w, b),
        (rows, same, same),
        mesh,
    )
    assert list(y.placements) == rows
    given = partial(x, mesh, rows), *(partial(t, mesh, same).requires_grad_() for t in (w, b))
    fusedops.layer_norm(given[0], (6,), *given[1:]).sum().backward()
    assert [list(t.grad.placements) for t in given[1:]] == [[Partial("sum")]] * 2


def claim_every_function_has_the_gradients_of_one_process():
    mesh, same = world_mesh(), [Replicate()]
    x, r, w = _randn(3, 5, 6), _randn(3, 5, 6), _randn(6)

    def dropped(x):
        return fusedops.dropout(x, p=0.3, seed=torch.tensor(5))

    for rows in ([Shard(0)], [Shard(1)], [Shard(2)], [Replicate()], [Partial("sum")]):
        for ours, exact, tensors in (
            (lambda x: fusedops.softmax(x, -1), lambda x: x.softmax(-1), (x,)),
            (lambda x: fusedops.log_softmax(x, 1), lambda x: x.log_softmax(1), (x,)),
            (dropped, dropped, (x,)),
            (
                lambda x, w: fusedops.rms_norm(x, (6,), w),
                lambda x, w: F.rms_norm(x, (6,), w, torch.finfo(torch.float64).eps),
                (x, w),
            ),
            (
                lambda x, w: fusedops.l2_norm(x, (6,), w),
                lambda x, w: F.normalize(x, dim=-1) * w,
                (x, w),
            ),
            (
                lambda x, r, w: torch.stack(fusedops.add_layer_norm(x, r, (6,), w)),
                lambda x, r, w: torch.stack([F.layer_norm(x + r, (6,), w), x + r]),
                (x, r, w),
            ),
            (
                lambda x, r: fusedops.stack_softmax([x, r], -1),
                lambda x, r: torch.stack([x, r]).softmax(-1),
                (x, r),
            ),
        ):
            placements = [rows if t.dim() > 1 else same for t in tensors]
            _agrees(ours, exact, tensors, placements, mesh)


def _causal(x, bias):
    hidden = torch.ones(x.shape[-2:], dtype=torch.bool).triu(1)
    return (0.5 * x + bias).masked_fill(hidden, -torch.inf).softmax(-1)


def claim_masked_softmax_follows_heads_queries_and_keys():
    mesh, scores = world_mesh(), (_randn(2, 3, 5, 7), _randn(3, 5, 7))
    for of_scores, of_bias in (
        ([Shard(1)], [Shard(0)]),
        ([Shard(2)], [Replicate()]),
        ([Shard(0)], [Replicate()]),
        ([Shard(3)], [Shard(2)]),
    ):
        y = _agrees(
            lambda x, bias: fusedops.masked_softmax(x, scale=0.5, causal=True, bias=bias),
            _causal,
            scores,
            (of_scores, of_bias),
            mesh,
        )
        assert list(y.placements) == of_scores


def claim_learned_sinks_get_their_gradient():
    mesh = world_mesh()

    def exact(x, sinks):
        column = sinks.expand(2, 3, 5).unsqueeze(-1)
        return torch.cat([x, column], -1).softmax(-1)[..., :-1]

    def ours(x, sinks):
        return fusedops.masked_softmax(x, sinks=sinks)

    tensors = _randn(2, 3, 5, 7), _randn(3, 1)
    for of_scores, of_sinks in ((1, Shard(0)), (0, Replicate()), (3, Replicate())):
        placements = [Shard(of_scores)], [of_sinks]
        _agrees(ours, exact, tensors, placements, mesh)


def claim_dropout_is_the_same_on_any_placement():
    mesh, x = world_mesh(), _randn(4, 5, 7)
    seed = torch.tensor(5)
    for function in (fusedops.masked_softmax_dropout, fusedops.dropout):
        wanted = function(x, p=0.5, seed=seed)
        for placement in (Replicate(), Shard(0), Shard(1)):
            ours = function(partial(x, mesh, [placement]), p=0.5, seed=seed)
            assert ours.placements == (placement,)
            assert torch.allclose(ours.full_tensor(), wanted, rtol=1e-13)


def claim_dropout_in_16_bits_is_rounded_once():
    mesh, seed = world_mesh(), torch.tensor(5)
    x, residual = (_randn(4, 5, 7).bfloat16() for _ in range(2))
    rows = [Shard(1)]
    ours = fusedops.masked_softmax_dropout(partial(x, mesh, rows), p=0.5, seed=seed)
    exact = fusedops.masked_softmax_dropout(x.double(), p=0.5, seed=seed)
    error = (ours.full_tensor().double() - exact).abs()
    assert (error <= exact * 0.51 * torch.finfo(x.dtype).eps).all()
    ours = fusedops.dropout(partial(x, mesh, rows), p=0.3, seed=seed)
    assert torch.equal(ours.full_tensor(), fusedops.dropout(x, p=0.3, seed=seed))
    for added in (residual, _randn(4, 5, 7, dtype=torch.float32)):
        given = [partial(t, mesh, rows) for t in (x, added)]
        _, ours = fusedops.add_layer_norm(*given, (7,), p=0.5, seed=seed)
        _, wanted = fusedops.add_layer_norm(x, added, (7,), p=0.5, seed=seed)
        assert torch.equal(ours.full_tensor(), wanted)


def claim_replicas_drop_the_same_elements_though_their_seeds_differ():
    mesh, x = world_mesh(), _randn(4, 7)
    torch.manual_seed(dist.get_rank())
    ours = fusedops.masked_softmax_dropout(partial(x, mesh, [Replicate()]), p=0.5)
    torch.manual_seed(0)
    others = [torch.empty_like(x) for _ in range(mesh.size())]
    dist.all_gather(others, ours.to_local())
    assert all(torch.equal(own, others[0]) for own in others)


def claim_16_bits_stay_within_their_rounding():
    mesh, x = world_mesh(), _randn(4, 64).bfloat16()
    for placement in (Shard(0), Shard(1)):
        ours = fusedops.softmax(partial(x, mesh, [placement]), -1).full_tensor().double()
        exact = x.double().softmax(-1)
        # Half a unit in the last place, and float32's errors before it.
        assert ((ours - exact).abs() <= exact * 0.51 * torch.finfo(x.dtype).eps).all()


def claim_rows_of_infinity_and_nan_are_those_of_one_process():
    mesh, x = world_mesh(), _randn(4, 9)
    x[0], x[1, 2], x[2, 3:] = -torch.inf, torch.nan, -torch.inf
    for function in (fusedops.softmax, fusedops.log_softmax):
        ours = function(partial(x, mesh, [Shard(1)]), -1).full_tensor()
        torch.testing.assert_close(ours, function(x, -1), equal_nan=True, rtol=1e-12, atol=1e-14)


def claim_a_divided_row_has_the_same_bits_in_any_batch():
    mesh, row = world_mesh(), _randn(1, 999, dtype=torch.float32)
    target = torch.tensor([7])
    for function in (
        lambda x: fusedops.softmax(x, -1),
        lambda x: fusedops.log_softmax(x, -1),
        lambda x: fusedops.masked_softmax(x, scale=0.3),
        lambda x: cross_entropy(x, target.expand(len(x)), reduction="none"),
    ):
        alone, batch = (
            function(partial(x, mesh, [Shard(1)])).full_tensor() for x in (row, row.expand(65, -1))
        )
        assert torch.equal(batch, alone.expand_as(batch))


def claim_ranks_without_an_element_take_part():
    mesh, x = world_mesh(), _randn(1, 3, 1)
    for dim in range(3):
        _agrees(
            lambda x: fusedops.softmax(x, 1), lambda x: x.softmax(1), (x,), ([Shard(dim)],), mesh
        )


def claim_a_rank_outside_of_the_mesh_takes_part_in_name():
    mesh, x = DeviceMesh("cpu", [0]), _randn(4, 6)
    given = distribute_tensor(x, mesh, [Shard(0)], src_data_rank=None)
    output, total = fusedops.add_layer_norm(given, given, (6,))
    assert output.shape == (4, 6) and total.placements == (Shard(0),)
    if dist.get_rank() == 0:
        assert torch.equal(total.to_local(), x + x)
    else:
        assert output.to_local().numel() == 0


def claim_second_derivatives_are_those_of_one_process():
    mesh, x, g = world_mesh(), _randn(4, 6), _randn(4, 6)

    def second(function, x, g):
        (first,) = torch.autograd.grad(function(x), x, g, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    for ours, exact in (
        (lambda x: fusedops.softmax(x, -1), lambda x: x.softmax(-1)),
        (lambda x: fusedops.layer_norm(x, (6,)), lambda x: F.layer_norm(x, (6,))),
    ):
        given = (partial(t, mesh, [Shard(0)]) for t in (x, g))
        found = second(ours, *(t.requires_grad_() for t in given)).full_tensor()
        wanted = second(exact, x.clone().requires_grad_(), g)
        assert torch.allclose(found, wanted, rtol=1e-11, atol=1e-12)


def claim_cross_entropy_divides_the_classes():
    mesh = world_mesh()
    logits, target = _randn(6, 11), torch.tensor([0, 10, -100, 5, 6, 3])
    for reduction in ("mean", "sum", "none"):
        for placement in (Shard(1), Shard(0), Replicate(), Partial("sum")):
            _agrees(
                lambda x, how=reduction: cross_entropy(x, target, reduction=how),
                lambda x, how=reduction: F.cross_entropy(x, target, reduction=how),
                (logits,),
                ([placement],),
                mesh,
            )
