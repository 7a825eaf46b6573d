"""The same row gives the same bits on a GPU in any batch and at every call."""

import pytest
import torch
from lengths import ONE_OF_EACH_KERNEL
from oracle import DTYPES, same_bits
from with_gradients import backward

import fusedops


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cols", ONE_OF_EACH_KERNEL)
def test_a_row_alone_and_in_a_batch_has_equal_bits(dtype, cols):
    # 1061 is a prime: the last block is not full, and layer_norm's backward has fewer blocks than
    # rows.
    x, grad = torch.randn(2, 1061, cols, device="cuda").to(dtype)
    w, b = torch.randn(2, cols, device="cuda").to(dtype)
    softmax, log_softmax = fusedops.softmax(x, 1), fusedops.log_softmax(x, 1)
    norm, grad_x = fusedops.layer_norm(x, [cols], w, b), backward(x, w, b, grad)[0]
    softmax_grad = torch.ops.fusedops.softmax_backward(grad, softmax, 1, dtype)
    for row in (0, 3, 17, 263, 264, 1060):
        one = slice(row, row + 1)
        assert same_bits(softmax[one], fusedops.softmax(x[one], 1))
        assert same_bits(log_softmax[one], fusedops.log_softmax(x[one], 1))
        assert same_bits(norm[one], fusedops.layer_norm(x[one], [cols], w, b))
        assert same_bits(grad_x[one], backward(x[one], w, b, grad[one])[0])
        alone = torch.ops.fusedops.softmax_backward(grad[one], softmax[one], 1, dtype)
        assert same_bits(softmax_grad[one], alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cols", ONE_OF_EACH_KERNEL)
def test_twenty_repeats_give_the_same_bits(dtype, cols):
    x, grad = torch.randn(2, 2000, cols, device="cuda").to(dtype)
    w, b = torch.randn(2, cols, device="cuda").to(dtype)

    def results():
        y = fusedops.softmax(x, 1)
        return [y, torch.ops.fusedops.softmax_backward(grad, y, 1, dtype), *backward(x, w, b, grad)]

    first = results()
    for _ in range(20):
        assert all(map(same_bits, first, results()))
