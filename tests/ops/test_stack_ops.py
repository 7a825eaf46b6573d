"""Stacks of softmaxes and norms are the stacks of the single ops, bit for bit."""

import pytest
import torch
from oracle import DTYPES, assert_same_on_threads, same_bits

import fusedops

SOFTMAXES = {
    fusedops.stack_softmax: fusedops.softmax,
    fusedops.stack_log_softmax: fusedops.log_softmax,
}
every_softmax = pytest.mark.parametrize("stack", SOFTMAXES, ids=lambda f: f.__name__)


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def tensors(count, *shape, dtype=torch.float32, seed=0):
    return [randn(*shape, dtype=dtype, seed=seed + 100 * i) for i in range(count)]


def leaves(given):
    return [t.detach().clone().requires_grad_() for t in given]


def assert_bits_of_each(stack, single, stack_dim, *given):
    """A stack of the inputs and parameters that are given, and all gradients."""
    ours, theirs = ([leaves(each) for each in given] for _ in range(2))
    found = stack(*ours, stack_dim)
    wanted = torch.stack([single(*own) for own in zip(*theirs, strict=True)], stack_dim)
    assert same_bits(found, wanted) and found.is_contiguous()
    grad = randn(*found.shape, dtype=found.dtype, seed=9)
    gradients = (
        torch.autograd.grad(y, sum(all_of_them, []), grad)
        for y, all_of_them in ((found, ours), (wanted, theirs))
    )
    assert all(map(same_bits, *gradients))


def assert_bits_of_each_norm(stack_dim, inputs, *parameters):
    shape = inputs[0].shape[-1:]

    def stack(inputs, *rest):
        *parameters, stack_dim = rest
        return fusedops.stack_layer_norm(inputs, shape, *parameters, stack_dim=stack_dim)

    def single(x, *parameters):
        return fusedops.layer_norm(x, shape, *parameters)

    assert_bits_of_each(stack, single, stack_dim, inputs, *parameters)


@every_softmax
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("stack_dim", [-4, -3, -2, -1, 0, 1, 2, 3])
@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_a_stack_of_softmaxes_has_the_bits_of_each(stack, dim, stack_dim, dtype):
    inputs = tensors(3, 4, 5, 33, dtype=dtype)

    def stacked(inputs, stack_dim):
        return stack(inputs, dim, stack_dim)

    assert_bits_of_each(stacked, lambda x: SOFTMAXES[stack](x, dim), stack_dim, inputs)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("stack_dim", [0, 1, 2, -1])
@pytest.mark.parametrize("rows", [5, 200])
@pytest.mark.parametrize("parameters", [0, 1, 2])
def test_a_stack_of_norms_has_the_bits_of_each(rows, stack_dim, parameters, dtype):
    inputs = tensors(3, rows, 33, dtype=dtype)
    for of in {dtype, torch.float64 if dtype == torch.float64 else torch.float32}:
        own = [tensors(3, 33, dtype=of, seed=seed) for seed in (1, 2)[:parameters]]
        assert_bits_of_each_norm(stack_dim, inputs, *own)


@pytest.mark.parametrize("count", [1, 31, 32, 33, 70, 1000])
def test_there_may_be_any_number_of_inputs(count):
    inputs = tensors(count, 3, 8)
    assert_bits_of_each_norm(0, inputs, tensors(count, 8, seed=1), tensors(count, 8, seed=2))
    for stack_dim in (0, 1, 2):
        wanted = torch.stack([fusedops.softmax(x, -1) for x in inputs], stack_dim)
        assert same_bits(fusedops.stack_softmax(inputs, -1, stack_dim), wanted)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (0, 5), (5, 0), (0, 0), (2, 70001)])
def test_inputs_may_have_any_shape(shape):
    inputs = tensors(3, *shape)
    for stack, single in SOFTMAXES.items():
        assert_bits_of_each(
            lambda inputs, dim, stack=stack: stack(inputs, -1, dim),
            lambda x, single=single: single(x, -1),
            0,
            inputs,
        )
    if shape:
        assert_bits_of_each_norm(0, inputs)
        biases = tensors(1, *shape[-1:], seed=2)
        assert_bits_of_each_norm(0, inputs[:1], tensors(1, *shape[-1:], seed=1), biases)


def test_one_tensor_may_be_stacked_with_itself():
    x, w = (randn(*shape, dtype=torch.float64).requires_grad_() for shape in ((3, 7), (7,)))

    def stacks(x, w):
        return fusedops.stack_softmax([x] * 3, -1), fusedops.stack_layer_norm([x] * 3, [7], [w] * 3)

    assert torch.autograd.gradcheck(stacks, (x, w))


def test_gradients_reach_the_inputs_that_require_one():
    inputs, weights = tensors(3, 4, 8), tensors(3, 8, seed=1)
    weights[1].requires_grad_()
    fusedops.stack_layer_norm(inputs, (8,), weights).square().sum().backward()
    assert weights[1].grad is not None and inputs[0].grad is None and weights[0].grad is None
    inputs[2].requires_grad_()
    fusedops.stack_softmax(inputs, -1).square().sum().backward()
    assert inputs[2].grad is not None and inputs[0].grad is None


def test_bits_do_not_depend_on_the_number_of_threads():
    inputs, weights = leaves(tensors(16, 64, 512)), leaves(tensors(16, 512, seed=1))

    def results():
        y = fusedops.stack_layer_norm(inputs, (512,), weights)
        grads = torch.autograd.grad(y, [*inputs, *weights], randn(16, 64, 512))
        return [fusedops.stack_softmax(inputs, -1), y, *grads]

    assert_same_on_threads(results, counts=(1, 2, 5))
