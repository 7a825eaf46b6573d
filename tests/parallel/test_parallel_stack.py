"""fusedops.parallel_stack gives the values, gradients and memory layout of torch.stack."""

from __future__ import annotations

import random

import pytest
import torch
from branches import in_turn, same
from torch import nn

import fusedops


@pytest.mark.parametrize(
    "shape", [(), (0,), (5,), (3, 4), (2, 0, 3), (2, 3, 4, 5), (1, 2, 1, 3, 2, 2)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64])
def test_the_result_is_torch_stacks_in_every_dim(shape, dtype):
    inputs = [(torch.randn(shape) * 9).to(dtype) for _ in range(3)]
    functions = [torch.neg, lambda x: x * x, lambda x: x]
    for dim in range(-len(shape) - 1, len(shape) + 1):
        same(fusedops.parallel_stack(functions, inputs, dim), in_turn(functions, inputs, dim))


def permuted(shape, numbers):
    """A dense tensor whose dimensions lie in memory in some order."""
    order = numbers.sample(range(len(shape)), len(shape))
    tensor = torch.randn([shape[i] for i in order])
    return tensor.permute([order.index(i) for i in range(len(shape))])


def test_strides_are_torch_stacks_whatever_the_results_are():
    numbers = random.Random(0)
    for _ in range(300):
        shape = [numbers.choice([1, 2, 3]) for _ in range(numbers.randint(1, 6))]
        first, other = (permuted(shape, numbers) for _ in range(2))
        results = [first, numbers.choice([first.clone(), other])]
        for dim in range(len(shape) + 1):
            same(
                fusedops.parallel_stack(torch.Tensor.detach, results, dim),
                torch.stack(results, dim),
            )


def test_a_stack_takes_no_memory_but_its_own():
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    with torch.profiler.profile(profile_memory=True) as profile:
        stack = fusedops.parallel_stack([torch.Tensor.detach], [x])
    allocated = sum(max(event.self_cpu_memory_usage, 0) for event in profile.events())
    assert allocated == stack.nbytes


@pytest.mark.parametrize(
    "results",
    [
        [torch.randn(3), torch.randn(3).double()],
        [torch.ones(3, dtype=torch.int32), torch.ones(3, dtype=torch.bfloat16)],
        [torch.randn(3, dtype=torch.complex64).conj(), torch.randn(3, dtype=torch.complex64)],
        [torch.eye(3).to_sparse(), torch.eye(3).to_sparse()],
        [nn.Parameter(torch.randn(3)), torch.randn(3)],
    ],
    ids=["float64", "bfloat16", "conjugated", "sparse", "parameter"],
)
def test_results_that_do_not_fit_one_buffer_are_stacked_by_torch(results):
    for given in (results, results[::-1]):
        actual = fusedops.parallel_stack(lambda x: x, given)
        expected = torch.stack(given)
        assert actual.layout == expected.layout and actual.requires_grad == expected.requires_grad
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gradients_are_torch_stacks_bit_for_bit(dim):
    models = [nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4)) for _ in range(2)]
    x = torch.randn(5, 6, requires_grad=True)
    leaves = [x, *(p for model in models for p in model.parameters())]
    ours = torch.autograd.grad(fusedops.parallel_stack(models, [x, x], dim).sin().sum(), leaves)
    theirs = torch.autograd.grad(in_turn(models, [x, x], dim).sin().sum(), leaves)
    assert all(map(torch.equal, ours, theirs))


def test_double_backward_is_right():
    x, y = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)

    def function(x, y):
        return fusedops.parallel_stack([torch.sin, torch.mul, torch.exp], [x, (x, y), y], 1)

    x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
    assert torch.autograd.gradcheck(function, (x, y))
    assert torch.autograd.gradgradcheck(function, (x, y))


def test_a_branch_without_a_gradient_gets_none():
    x = torch.randn(3, requires_grad=True)
    out = fusedops.parallel_stack([torch.sin, torch.detach, torch.cos], [x, x, torch.randn(3)])
    out.sum().backward()
    assert torch.equal(x.grad, x.cos())
    assert not fusedops.parallel_stack([torch.detach], [x]).requires_grad


def test_one_callable_serves_all_inputs_and_a_module_list_is_a_list():
    x = torch.randn(3, 4)
    same(fusedops.parallel_stack(torch.sin, x.unbind()), torch.stack(x.sin().unbind()))
    modules = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)])
    same(fusedops.parallel_stack(modules, [x, x]), in_turn(modules, [x, x]))
    same(
        fusedops.parallel_stack(nn.Sequential(modules[0]), [x, x]),
        in_turn([modules[0]] * 2, [x, x]),
    )


def test_a_tuple_is_positional_arguments():
    x = torch.randn(3)
    out = fusedops.parallel_stack([torch.add, lambda: x, torch.sin], [(x, 1), (), (x,)])
    same(out, torch.stack([x + 1, x, x.sin()]))


def test_the_result_may_be_written_to():
    x = torch.randn(3, requires_grad=True)
    out = fusedops.parallel_stack(torch.sin, [x, x])
    out[0].mul_(2)
    out.sum().backward()
    assert torch.equal(x.grad, 3 * x.cos())


def test_the_output_is_the_buffer_that_the_branches_filled(monkeypatch):
    buffers = []

    def empty_strided(*args, make=torch.empty_strided, **kwargs):
        buffers.append(make(*args, **kwargs))
        return buffers[-1]

    def stack(*args):
        raise AssertionError("a second copy")

    x = torch.randn(4, 4, requires_grad=True)
    monkeypatch.setattr(torch, "empty_strided", empty_strided)
    monkeypatch.setattr(torch, "stack", stack)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            out = fusedops.parallel_stack([torch.sin, torch.cos], [x, x], 1)
        (buffer,) = buffers
        assert out.data_ptr() == buffer.data_ptr()
        buffers.clear()
