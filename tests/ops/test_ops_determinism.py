"""The same row gives the same bits in any batch, on any number of threads and at every call."""

import pytest
import torch
from oracle import DTYPES, assert_same_on_threads, same_bits

import fusedops


def backward(x, w, b, grad, norm=fusedops.layer_norm):
    leaves = [t.detach().clone().requires_grad_() for t in (x, w, b)]
    norm(leaves[0], w.shape, leaves[1], leaves[2]).backward(grad)
    return [leaf.grad for leaf in leaves]


def add_norm(add, x, r, w, b, grad):
    """Outputs and gradients, without dropout, whose numbers depend on the place in the batch."""
    leaves = [t.detach().clone().requires_grad_() for t in (x, r, w, b)]
    parameters = leaves[2:] if add is fusedops.add_layer_norm else leaves[2:3]
    outputs = add(*leaves[:2], w.shape, *parameters, eps=1e-5)
    gradients = torch.autograd.grad(outputs, [*leaves[:2], *parameters], [grad, grad])
    return [*outputs, *gradients]


ADDS = [fusedops.add_layer_norm, fusedops.add_rms_norm]


@pytest.mark.parametrize("add", ADDS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cols", [1, 33, 128, 1000, 5000])
def test_a_row_after_a_residual_alone_and_in_a_batch_has_equal_bits(add, dtype, cols):
    x, r, grad = torch.randn(3, 37, cols).to(dtype)
    w, b = torch.randn(2, cols).to(dtype)
    of_rows = slice(0, 4)  # without the gradients of weight and bias
    whole = add_norm(add, x, r, w, b, grad)[of_rows]
    for row in (0, 3, 17, 36):
        one = slice(row, row + 1)
        alone = add_norm(add, x[one], r[one], w, b, grad[one])[of_rows]
        assert all(same_bits(a[one], t) for a, t in zip(whole, alone, strict=True))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cols", [31, 1000, 2500, 70000])
def test_a_row_has_equal_bits_however_many_rows_are_normalised_with_it(dtype, cols):
    x, r = torch.randn(2, 7, cols).to(dtype)
    w, b = torch.randn(2, cols).to(dtype)

    def outputs(rows):
        return [
            fusedops.layer_norm(x[:rows], [cols], w, b),
            fusedops.std_norm(x[:rows], [cols], w, b),
            fusedops.rms_norm(x[:rows], [cols], w),
            *fusedops.add_layer_norm(x[:rows], r[:rows], [cols], w, b, return_sum=True),
            *fusedops.add_rms_norm(x[:rows], r[:rows], [cols], w, return_sum=True),
        ]

    all_rows = outputs(7)
    for count in range(1, 7):
        assert all(map(same_bits, outputs(count), [t[:count] for t in all_rows]))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cols", [1, 33, 128, 1000, 5000])
def test_a_row_alone_and_in_a_batch_has_equal_bits(dtype, cols):
    x = torch.randn(37, cols).to(dtype)
    grad = torch.randn(37, cols).to(dtype)
    w, b = torch.randn(cols).to(dtype), torch.randn(cols).to(dtype)
    softmax, log_softmax = fusedops.softmax(x, 1), fusedops.log_softmax(x, 1)
    norm, grad_x = fusedops.layer_norm(x, [cols], w, b), backward(x, w, b, grad)[0]
    of_std = backward(x, w, b, grad, fusedops.std_norm)[0]
    softmax_grad = torch.ops.fusedops.softmax_backward(grad, softmax, 1, dtype)
    for row in (0, 3, 17, 36):
        one = slice(row, row + 1)
        assert same_bits(softmax[one], fusedops.softmax(x[one], 1))
        assert same_bits(log_softmax[one], fusedops.log_softmax(x[one], 1))
        assert same_bits(norm[one], fusedops.layer_norm(x[one], [cols], w, b))
        assert same_bits(grad_x[one], backward(x[one], w, b, grad[one])[0])
        assert same_bits(of_std[one], backward(x[one], w, b, grad[one], fusedops.std_norm)[0])
        alone = torch.ops.fusedops.softmax_backward(grad[one], softmax[one], 1, dtype)
        assert same_bits(softmax_grad[one], alone)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_the_number_of_threads_changes_no_bit(dtype):
    x, grad = torch.randn(1000, 300).to(dtype), torch.randn(1000, 300).to(dtype)
    w, b = torch.randn(300).to(dtype), torch.randn(300).to(dtype)

    def results():
        norms = [fusedops.layer_norm, fusedops.std_norm]
        outputs = [fusedops.softmax(x, 1), *(norm(x, [300], w, b) for norm in norms)]
        return outputs + [t for norm in norms for t in backward(x, w, b, grad, norm)]

    assert_same_on_threads(results)


@pytest.mark.parametrize("add", ADDS)
def test_the_number_of_threads_changes_no_bit_after_a_residual(add):
    x, r, grad = torch.randn(3, 1000, 300)
    w, b = torch.randn(2, 300)
    assert_same_on_threads(lambda: add_norm(add, x, r, w, b, grad))


def test_twenty_repeats_give_the_same_bits():
    x, grad = torch.randn(500, 200), torch.randn(500, 200)
    w, b = torch.randn(200), torch.randn(200)
    first = backward(x, w, b, grad)
    for _ in range(20):
        assert all(map(same_bits, first, backward(x, w, b, grad)))
