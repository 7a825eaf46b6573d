"""Any strides, offsets and alignments on a GPU."""

import pytest
import torch
from oracle import DTYPES, same_bits
from test_ops_layout import LAYOUTS, close, source

import fusedops
from fusedops import reference


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_softmax_of_any_layout_over_any_dim(layout, dtype):
    x = LAYOUTS[layout](source(dtype).cuda())
    for dim in range(x.dim()):
        y = fusedops.softmax(x, dim)
        assert y.is_contiguous()
        close(y, reference.softmax(x, dim), dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_layer_norm_of_any_layout_over_any_shape(layout, dtype):
    x = LAYOUTS[layout](source(dtype).cuda())
    for rank in range(1, x.dim() + 1):
        shape = list(x.shape[-rank:])
        y = fusedops.layer_norm(x, shape)
        assert y.is_contiguous()
        close(y, reference.layer_norm(x, shape), dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_any_layout(layout):
    x = LAYOUTS[layout](source(torch.float64).cuda()).detach().requires_grad_()
    grad = torch.randn(2, *x.shape, dtype=torch.float64, device="cuda")[1]
    for ours, theirs in (
        (fusedops.softmax(x, -1), torch.softmax(x, -1)),
        (fusedops.log_softmax(x, 0), torch.log_softmax(x, 0)),
        (fusedops.layer_norm(x, [x.shape[-1]]), torch.layer_norm(x, [x.shape[-1]])),
    ):
        actual, expected = (torch.autograd.grad(y, x, grad)[0] for y in (ours, theirs))
        # One column has no variance: its zero gradient is the difference of numbers of order rstd.
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


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


def test_inputs_are_left_as_they_are():
    x, w, b = torch.randn(6, 40), torch.randn(40), torch.randn(40)
    given = [t.cuda() for t in (x, w, b)]
    fusedops.softmax(given[0], 0)
    fusedops.layer_norm(given[0], [40], *given[1:])
    assert all(same_bits(a, t.cpu()) for a, t in zip((x, w, b), given, strict=True))
