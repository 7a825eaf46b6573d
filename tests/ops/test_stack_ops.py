"""Stacks of softmaxes and norms are the stacks of the single ops, bit for bit."""

import pytest
import torch
from oracle import DTYPES, assert_same_on_threads, relative_error, same_bits

import fusedops

ops = torch.ops.fusedops

SOFTMAXES = {
    fusedops.stack_softmax: fusedops.softmax,
    fusedops.stack_log_softmax: fusedops.log_softmax,
}


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def tensors(count, *shape, dtype=torch.float32, seed=0):
    return [randn(*shape, dtype=dtype, seed=seed + 100 * i) for i in range(count)]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("stack_dim", [-4, -3, -2, -1, 0, 1, 2, 3])
@pytest.mark.parametrize("dim", [0, 1, 2, -1])
@pytest.mark.parametrize("stack", SOFTMAXES, ids=lambda f: f.__name__)
def test_a_stack_of_softmaxes_has_the_bits_of_each(stack, dim, stack_dim, dtype):
    inputs = tensors(3, 4, 5, 33, dtype=dtype)
    want = torch.stack([SOFTMAXES[stack](x, dim) for x in inputs], stack_dim)
    result = stack(inputs, dim, stack_dim)
    assert same_bits(result, want) and result.is_contiguous()


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("stack_dim", [0, 1, 2, 3, -1])
@pytest.mark.parametrize("with_parameters", [True, False])
def test_a_stack_of_norms_has_the_bits_of_each(with_parameters, stack_dim, dtype):
    inputs = tensors(3, 4, 5, 33, dtype=dtype)
    weights = tensors(3, 33, dtype=dtype, seed=1) if with_parameters else None
    biases = tensors(3, 33, dtype=dtype, seed=2) if with_parameters else None
    each = [
        fusedops.layer_norm(x, (33,), weights and weights[i], biases and biases[i])
        for i, x in enumerate(inputs)
    ]
    result = fusedops.stack_layer_norm(inputs, (33,), weights, biases, stack_dim=stack_dim)
    assert same_bits(result, torch.stack(each, stack_dim)) and result.is_contiguous()


@pytest.mark.parametrize("count", [1, 31, 32, 33, 70])
def test_there_may_be_any_number_of_inputs(count):
    inputs, weights = tensors(count, 3, 8), tensors(count, 8, seed=1)
    want = torch.stack([fusedops.softmax(x, -1) for x in inputs])
    assert same_bits(fusedops.stack_softmax(inputs, -1), want)
    want = torch.stack(
        [fusedops.layer_norm(x, (8,), w) for x, w in zip(inputs, weights, strict=True)]
    )
    assert same_bits(fusedops.stack_layer_norm(inputs, (8,), weights), want)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (0, 5), (5, 0), (2, 70001)])
def test_inputs_may_have_any_shape(shape):
    inputs = tensors(3, *shape)
    for stack, single in SOFTMAXES.items():
        assert same_bits(stack(inputs, -1), torch.stack([single(x, -1) for x in inputs]))
    if shape and shape[-1]:
        want = torch.stack([fusedops.layer_norm(x, shape[-1:]) for x in inputs])
        assert same_bits(fusedops.stack_layer_norm(inputs, shape[-1:]), want)


def test_inputs_may_lie_anywhere_in_memory():
    wide = randn(4, 6, 9)
    inputs = [wide[:, 0, 1:], wide[:, 3, :-1], randn(8, 4).t(), randn(1, 8).expand(4, 8)]
    want = torch.stack([fusedops.softmax(x, -1) for x in inputs], 1)
    assert same_bits(fusedops.stack_softmax(inputs, -1, 1), want)
    want = torch.stack([fusedops.layer_norm(x, (8,)) for x in inputs], 1)
    assert same_bits(fusedops.stack_layer_norm(inputs, (8,), stack_dim=1), want)


def test_one_tensor_may_be_stacked_with_itself():
    x = randn(4, 8).requires_grad_()
    fusedops.stack_softmax([x, x], -1)[0].square().sum().backward()
    want = x.detach().clone().requires_grad_()
    fusedops.softmax(want, -1).square().sum().backward()
    assert torch.allclose(x.grad, want.grad)


def leaves(given):
    return [t.detach().clone().requires_grad_() for t in given]


@pytest.mark.parametrize("stack", SOFTMAXES, ids=lambda f: f.__name__)
def test_gradients_of_softmaxes_stacked_behind_their_dim_are_right(stack):
    inputs, grad = leaves(tensors(3, 5, 33)), randn(5, 33, 3, seed=9)
    exact = leaves([x.double() for x in inputs])
    single = getattr(torch, SOFTMAXES[stack].__name__)
    found = torch.autograd.grad(stack(inputs, -1, 2), inputs, grad)
    stacked = torch.stack([single(x, -1) for x in exact], 2)
    for ours, want in zip(found, torch.autograd.grad(stacked, exact, grad.double()), strict=True):
        assert relative_error(ours, want) < 2e-7


@pytest.mark.parametrize("shape, stack_dim", [((5, 33), 0), ((5, 33), 1), ((), 0)])
@pytest.mark.parametrize("stack", SOFTMAXES, ids=lambda f: f.__name__)
def test_gradients_of_softmaxes_have_the_bits_of_each(stack, shape, stack_dim):
    ours, theirs = leaves(tensors(3, *shape)), leaves(tensors(3, *shape))
    result = stack(ours, -1, stack_dim)
    grad = randn(*result.shape, seed=9)
    want = torch.stack([SOFTMAXES[stack](x, -1) for x in theirs], stack_dim)
    for a, b in zip(
        torch.autograd.grad(result, ours, grad),
        torch.autograd.grad(want, theirs, grad),
        strict=True,
    ):
        assert same_bits(a, b)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("stack_dim", [0, 1, 2])
@pytest.mark.parametrize("rows", [5, 200])
def test_gradients_of_norms_have_the_bits_of_each(rows, stack_dim, dtype):
    given = [
        tensors(3, rows, 33, dtype=dtype),
        *(tensors(3, 33, dtype=dtype, seed=s) for s in (1, 2)),
    ]
    ours, theirs = ([leaves(own) for own in given] for _ in range(2))
    result = fusedops.stack_layer_norm(ours[0], (33,), ours[1], ours[2], stack_dim=stack_dim)
    grad = randn(*result.shape, dtype=dtype, seed=9)
    each = [fusedops.layer_norm(x, (33,), w, b) for x, w, b in zip(*theirs, strict=True)]
    found = torch.autograd.grad(result, [*ours[0], *ours[1], *ours[2]], grad)
    want = torch.autograd.grad(
        torch.stack(each, stack_dim), [*theirs[0], *theirs[1], *theirs[2]], grad
    )
    assert all(map(same_bits, found, want))


def test_gradients_reach_the_inputs_that_require_one():
    inputs, weights = tensors(3, 4, 8), tensors(3, 8, seed=1)
    weights[1].requires_grad_()
    fusedops.stack_layer_norm(inputs, (8,), weights).square().sum().backward()
    assert weights[1].grad is not None and inputs[0].grad is None and weights[0].grad is None
    inputs[2].requires_grad_()
    fusedops.stack_softmax(inputs, -1).square().sum().backward()
    assert inputs[2].grad is not None and inputs[0].grad is None


def test_derivatives_of_both_orders_are_right():
    x = [t.double().requires_grad_() for t in tensors(2, 3, 5)]
    w, b = ([t.double().requires_grad_() for t in tensors(2, 5, seed=s)] for s in (1, 2))

    def softmaxes(*inputs):
        return fusedops.stack_softmax(inputs, -1, 1)

    def norms(*given):
        return fusedops.stack_layer_norm(given[:2], (5,), given[2:4], given[4:], stack_dim=1)

    for function, given in ((softmaxes, x), (norms, [*x, *w, *b])):
        assert torch.autograd.gradcheck(function, given)
        assert torch.autograd.gradgradcheck(function, given)


def test_weights_may_be_float32_beside_16_bit_inputs():
    inputs, weights = tensors(2, 4, 8, dtype=torch.bfloat16), tensors(2, 8, seed=1)
    want = torch.stack(
        [fusedops.layer_norm(x, (8,), w) for x, w in zip(inputs, weights, strict=True)]
    )
    weights = leaves(weights)
    result = fusedops.stack_layer_norm(inputs, (8,), weights)
    assert same_bits(result.detach(), want)
    assert torch.autograd.grad(result.sum(), weights[0])[0].dtype == torch.float32


def test_bits_do_not_depend_on_the_number_of_threads():
    inputs, weights = leaves(tensors(16, 64, 512)), leaves(tensors(16, 512, seed=1))

    def results():
        y = fusedops.stack_layer_norm(inputs, (512,), weights)
        grads = torch.autograd.grad(y, [*inputs, *weights], randn(16, 64, 512))
        return [fusedops.stack_softmax(inputs, -1), y, *grads]

    assert_same_on_threads(results, counts=(1, 2, 5))
