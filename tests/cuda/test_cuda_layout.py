"""Any strides, offsets and alignments on a GPU, also by the tests in tests/ops."""

import pytest
import torch
from test_ops_layout import (  # noqa: F401
    close,
    test_a_layer_norm_over_any_shape_takes_any_layout,
    test_a_softmax_over_any_dim_takes_any_layout,
    test_gradients_may_have_any_layout,
    test_inputs_are_left_as_they_are,
)

import fusedops
from fusedops import reference

pytestmark = pytest.mark.usefixtures("tensors_on_gpu")


@pytest.mark.parametrize("offset", range(1, 9))
@pytest.mark.parametrize("cols", [64, 1000, 9000, 40000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_at_any_address_has_right_values(dtype, cols, offset):
    memory = torch.randn(4 * cols + 8, device="cuda").to(dtype)
    x = memory[offset : offset + 4 * cols].view(4, cols)
    w = torch.randn(cols + 8, device="cuda").to(dtype)[offset : offset + cols]
    close(fusedops.softmax(x, -1), reference.softmax(x, -1), dtype)
    close(fusedops.layer_norm(x, [cols], w), reference.layer_norm(x, [cols], w), dtype)


@pytest.mark.parametrize("stride", [1000, 1001, 1004, 1008])
def test_rows_with_gaps_between_them(stride):
    x = torch.randn(50, stride, device="cuda").bfloat16()[:, :1000]
    close(fusedops.softmax(x, -1), reference.softmax(x, -1), torch.bfloat16)
    close(fusedops.layer_norm(x, [1000]), reference.layer_norm(x, [1000]), torch.bfloat16)


def test_gradient_of_a_sum_has_stride_zero():
    x = torch.randn(30, 40, dtype=torch.float64, device="cuda", requires_grad=True)
    (actual,) = torch.autograd.grad(fusedops.layer_norm(x, [40]).square().sum(), x)
    (expected,) = torch.autograd.grad(torch.layer_norm(x, [40]).square().sum(), x)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    (actual,) = torch.autograd.grad(fusedops.log_softmax(x, -1).sum(), x)
    (expected,) = torch.autograd.grad(torch.log_softmax(x, -1).sum(), x)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
