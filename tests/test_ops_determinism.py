"""The same row gives the same bits: in any batch, on any number of threads, at every call."""

import pytest
import torch
from oracle import DTYPES, same_bits

import fusedops


@pytest.fixture
def threads():
    """Restores the number of threads."""
    count = torch.get_num_threads()
    yield
    torch.set_num_threads(count)


def backward(x, w, b, grad):
    leaves = [t.detach().clone().requires_grad_() for t in (x, w, b)]
    fusedops.layer_norm(leaves[0], w.shape, leaves[1], leaves[2]).backward(grad)
    return [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cols", [1, 33, 128, 1000, 5000])
def test_a_row_alone_and_in_a_batch_has_equal_bits(dtype, cols):
    torch.manual_seed(0)
    x = torch.randn(37, cols).to(dtype)
    grad = torch.randn(37, cols).to(dtype)
    w, b = torch.randn(cols).to(dtype), torch.randn(cols).to(dtype)
    softmax, log_softmax = fusedops.softmax(x, 1), fusedops.log_softmax(x, 1)
    norm, grad_x = fusedops.layer_norm(x, [cols], w, b), backward(x, w, b, grad)[0]
    softmax_grad = torch.ops.fusedops.softmax_backward(grad, softmax, 1, dtype)
    for row in (0, 3, 17, 36):
        one = slice(row, row + 1)
        assert same_bits(softmax[one], fusedops.softmax(x[one], 1))
        assert same_bits(log_softmax[one], fusedops.log_softmax(x[one], 1))
        assert same_bits(norm[one], fusedops.layer_norm(x[one], [cols], w, b))
        assert same_bits(grad_x[one], backward(x[one], w, b, grad[one])[0])
        alone = torch.ops.fusedops.softmax_backward(grad[one], softmax[one], 1, dtype)
        assert same_bits(softmax_grad[one], alone)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_the_number_of_threads_changes_no_bit(dtype, threads):
    torch.manual_seed(0)
    x, grad = torch.randn(1000, 300).to(dtype), torch.randn(1000, 300).to(dtype)
    w, b = torch.randn(300).to(dtype), torch.randn(300).to(dtype)

    def results(count):
        torch.set_num_threads(count)
        return [fusedops.softmax(x, 1), fusedops.layer_norm(x, [300], w, b)] + backward(
            x, w, b, grad
        )

    one, two, three = results(1), results(2), results(3)
    assert all(map(same_bits, one, two)) and all(map(same_bits, one, three))


def test_twenty_repeats_give_the_same_bits():
    x, grad = torch.randn(500, 200), torch.randn(500, 200)
    w, b = torch.randn(200), torch.randn(200)
    first = backward(x, w, b, grad)
    for _ in range(20):
        assert all(map(same_bits, first, backward(x, w, b, grad)))
