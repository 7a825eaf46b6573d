"""Few long rows on a GPU: those that clusters hold, and those that are cut into segments."""

import bounds
import pytest
import torch
import torch.nn.functional as F
from oracle import DTYPES, same_bits
from with_gradients import backward

import fusedops

# Lengths around the longest rows of a block, of clusters of two, four and eight blocks, and of 64
# segments; lengths that wide vectors do not divide; and rows with as many segments as a block of
# the second kernel has threads, and more.
LENGTHS = [
    *(8193, 16_392, 20_001, 32_776, 65_536, 65_544),
    *(131_072, 131_080, 262_144, 262_152, 1_000_003, 4_500_000),
]
ROWS = [1, 5]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("cols", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_softmax_and_layer_norm_are_within_their_bounds(dtype, cols, rows):
    x = (torch.randn(rows, cols) * 3 + 1).to(dtype)
    on_gpu = x.cuda()
    bounds.assert_typical(fusedops.softmax(on_gpu, -1), bounds.softmax(x))
    bounds.assert_typical(fusedops.log_softmax(on_gpu, -1), bounds.log_softmax(x))
    w, b = torch.randn(2, cols).to(dtype)
    ours = fusedops.layer_norm(on_gpu, [cols], w.cuda(), b.cuda())
    bounds.assert_typical(ours, bounds.norm("layer_norm", x, w, b))


@pytest.mark.parametrize("cols", LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_gradients_agree_with_float64(dtype, cols):
    x, grad = torch.randn(2, 3, cols, device="cuda").to(dtype)
    w, b = torch.randn(2, cols, device="cuda").to(dtype)
    tolerance = 20 * torch.finfo(dtype).eps
    y = fusedops.softmax(x, -1)
    ours = torch.ops.fusedops.softmax_backward(grad, y, -1, dtype).double()
    wide_y, wide_grad = y.double(), grad.double()
    right = wide_y * (wide_grad - (wide_grad * wide_y).sum(-1, keepdim=True))
    assert (ours - right).abs().max() <= tolerance * right.abs().max()
    found = backward(x, w, b, grad)
    exact = backward(x.double(), w.double(), b.double(), grad.double(), F.layer_norm)
    for ours, right in zip(found, exact, strict=True):
        assert (ours.double() - right).abs().max() <= tolerance * right.abs().max()


@pytest.mark.parametrize("cols", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_equal_bits_alone_in_a_batch_and_at_every_call(dtype, cols):
    x, grad = torch.randn(2, 7, cols, device="cuda").to(dtype)
    w, b = torch.randn(2, cols, device="cuda").to(dtype)

    def results(rows):
        y = fusedops.softmax(x[rows], -1)
        slope = torch.ops.fusedops.softmax_backward(grad[rows], y, -1, dtype)
        norm = fusedops.layer_norm(x[rows], [cols], w, b)
        return y, slope, norm, backward(x[rows], w, b, grad[rows])[0]

    batch = results(slice(None))
    for _ in range(10):
        assert all(map(same_bits, batch, results(slice(None))))
    for row in (0, 3, 6):
        one = slice(row, row + 1)
        assert all(same_bits(all_[one], own) for all_, own in zip(batch, results(one), strict=True))


@pytest.mark.parametrize("cols", [33_000, 40_001, 300_000])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_segments_of_nothing_but_minus_inf_do_not_touch_the_rest(dtype, cols):
    x = torch.full((5, cols), -torch.inf, dtype=dtype, device="cuda")
    x[1, 0], x[2, -1], x[3, cols // 2] = 2.0, -3.0, 1.0
    x[4, : cols // 2] = torch.linspace(-1, 1, cols // 2, device="cuda").to(dtype)
    actual, eager = fusedops.softmax(x, -1), torch.softmax(x, -1)
    assert torch.equal(actual.isnan(), eager.isnan())
    tolerance = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(actual, eager, equal_nan=True, rtol=tolerance, atol=1e-30)
