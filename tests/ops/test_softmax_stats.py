"""softmax_stats, merge_softmax_stats and softmax_apply: a softmax whose rows come in parts."""

import bounds
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from oracle import DTYPES, relative_error

import fusedops


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_statistics_are_the_maximum_and_the_sum_of_exponentials(dtype, dim):
    x = randn(5, 7, 33, dtype=dtype)
    max, sum = fusedops.softmax_stats(x, dim)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert max.dtype == sum.dtype == wide and max.is_contiguous() and sum.is_contiguous()
    assert torch.equal(max, x.amax(dim, keepdim=True).to(wide))
    rows = x.movedim(dim, -1)
    bounds.assert_typical(sum.movedim(dim, -1), bounds.softmax_sum(rows, wide))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_statistics_of_16_bit_rows_are_as_exact_as_those_of_float32_ones(dtype):
    """An exponential meant for 16-bit results is off by 7e-6, which the bound would show."""
    x = 3 * randn(200, 300, dtype=dtype)
    max, sum = fusedops.softmax_stats(x, 1)
    assert torch.equal(max, x.float().amax(1, keepdim=True))
    bounds.assert_typical(sum, bounds.softmax_sum(x, torch.float32))
    with pytest.raises(AssertionError, match="are wrong"):
        bounds.assert_within(sum * (1 + 7e-6), bounds.softmax_sum(x, torch.float32))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cols", [1, 31, 4097, 70001])
def test_applied_to_their_rows_they_give_the_softmax(dtype, cols):
    x = randn(64, cols, dtype=dtype)
    y = fusedops.softmax_apply(x, *fusedops.softmax_stats(x, -1), -1)
    # The sum is rounded, and so is its reciprocal.
    own = bounds.Softmax.of(x, dtype).with_more_roundings_of_the_sum(2, dtype)
    bounds.assert_typical(y, bounds.softmax(own, dtype))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_row_in_parts_gives_the_softmax_of_the_row(dim):
    x = randn(6, 8, 10)
    parts = x.split([1, 2, 3] if dim == 0 else [5, x.shape[dim] - 5], dim)
    stats = fusedops.merge_softmax_stats([fusedops.softmax_stats(part, dim) for part in parts])
    y = torch.cat([fusedops.softmax_apply(part, *stats, dim) for part in parts], dim)
    assert relative_error(y, torch.softmax(x.double(), dim)) < 2e-7


def softmax_of_shards(rank, file, results):
    """Runs in one of two processes, each with half of the columns."""
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    part = randn(5, 1000).chunk(2, 1)[rank]
    max, sum = fusedops.softmax_stats(part, 1)
    row_max = max.clone()
    dist.all_reduce(row_max, dist.ReduceOp.MAX)
    row_sum = sum * (max - row_max).exp()
    dist.all_reduce(row_sum)
    results[rank] = fusedops.softmax_apply(part, row_max, row_sum, 1)
    dist.destroy_process_group()


def test_rows_may_be_spread_over_processes(tmp_path):
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(softmax_of_shards, (tmp_path / "store", results), nprocs=2)
        y = torch.cat([results[0], results[1]], 1)
    assert relative_error(y, torch.softmax(randn(5, 1000).double(), 1)) < 2e-7


def test_parts_may_be_hidden_and_rows_too():
    x = randn(3, 8)
    x[0, :4] = x[1] = -torch.inf
    x[2, 6] = torch.nan
    parts = x.split(4, 1)
    stats = fusedops.merge_softmax_stats([fusedops.softmax_stats(part, 1) for part in parts])
    assert stats[1][1] == 0
    y = torch.cat([fusedops.softmax_apply(part, *stats, 1) for part in parts], 1)
    torch.testing.assert_close(y, torch.softmax(x, 1), equal_nan=True)


def test_the_logarithm_of_the_sum_and_the_maximum_are_the_logsumexp():
    x = randn(4, 50, dtype=torch.float64).requires_grad_()
    max, sum = fusedops.softmax_stats(x, 1)
    ours = (max + sum.log()).squeeze(1)
    torch.testing.assert_close(ours, x.logsumexp(1))
    grad = randn(4, dtype=torch.float64, seed=1)
    torch.testing.assert_close(
        torch.autograd.grad(ours, x, grad), torch.autograd.grad(x.logsumexp(1), x, grad)
    )


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_the_gradient_of_a_logsumexp_is_within_the_bound_of_its_softmax(dtype):
    x = (4 * randn(64, 1000)).to(dtype).requires_grad_()
    grad = randn(64, 1, seed=1).to(torch.float64 if dtype == torch.float64 else torch.float32)
    grad[3] = 0
    max, sum = fusedops.softmax_stats(x, 1)
    (ours,) = torch.autograd.grad(max + sum.log(), x, grad)
    # The sum is rounded before its logarithm is taken, and its gradient to what exponentials are
    # stored as.
    own = bounds.Softmax.of(x, dtype).with_more_roundings_of_the_sum(4, dtype)
    wanted = bounds.softmax(own, dtype).scaled(grad, dtype).rounded_to(dtype)
    bounds.assert_typical(ours, wanted)
    assert ours.dtype == dtype and not ours[3].any()


def in_parts(x):
    parts = x.split(3, 1)
    stats = fusedops.merge_softmax_stats([fusedops.softmax_stats(part, 1) for part in parts])
    return torch.cat([fusedops.softmax_apply(part, *stats, 1) for part in parts], 1)


def test_derivatives_go_through_all_parts():
    x = randn(3, 8, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(in_parts, x)
    assert torch.autograd.gradgradcheck(in_parts, x)


@pytest.mark.parametrize("transform", [torch.compile, torch.vmap, lambda function: function])
def test_statistics_compile_and_map_under_vmap(transform):
    x = randn(5, 4, 8) if transform is torch.vmap else randn(4, 8)
    assert relative_error(transform(in_parts)(x), torch.softmax(x.double(), -1)) < 2e-7


def test_scalars_and_empty_batches_have_statistics():
    max, sum = fusedops.softmax_stats(torch.tensor(3.0), 0)
    assert max == 3 and sum == 1 and fusedops.softmax_apply(torch.tensor(3.0), max, sum, 0) == 1
    max, sum = fusedops.softmax_stats(torch.empty(0, 4), 1)
    assert max.shape == sum.shape == (0, 1)
