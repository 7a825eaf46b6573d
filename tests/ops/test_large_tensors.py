"""Tensors of more than 2^31 elements repeat the results of one block. Each test needs 9 to 18 GB;
`pytest -m large` runs them."""

from pathlib import Path

import pytest
import torch
from oracle import same_bits

import fusedops

ops = torch.ops.fusedops
pytestmark = pytest.mark.large

COLS, BLOCK = 4096, 1024
ROWS = 2**31 // COLS + BLOCK


def needs(tensors):
    """Skips the test without memory for so many tensors of 16 bits, and a little more."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    available, wanted = int(lines["MemAvailable"].split()[0]) << 10, tensors * ROWS * COLS * 2.1
    if available < wanted:
        pytest.skip(f"{wanted / 2**30:.0f} GiB of memory wanted, {available / 2**30:.0f} available")


def large():
    """A block, and the tensor that repeats it."""
    block = torch.randn(BLOCK, COLS).to(torch.bfloat16)
    return block, block.repeat(ROWS // BLOCK, 1)


def assert_repeats(whole, block):
    assert whole.numel() > 2**31
    assert same_bits(whole[:BLOCK], block) and same_bits(whole[-BLOCK:], block)


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize("dim", [1, 0])
def test_a_large_softmax_in_place_and_its_gradient_repeat_the_block(op, dim):
    needs(2)
    block, x = large()
    x = x if dim == 1 else x.view(ROWS // BLOCK, BLOCK, COLS)  # a spatial softmax
    getattr(ops, f"{op}_")(x, 1)
    y = getattr(ops, op)(block, dim)
    assert_repeats(x.view(-1, COLS), y)
    grad = torch.ones(1, dtype=torch.bfloat16).expand(x.shape).clone()
    of_block = getattr(ops, f"{op}_backward")(torch.ones_like(y), y, dim, y.dtype)
    getattr(ops, f"{op}_backward_")(grad, x, 1)
    assert_repeats(grad.view(-1, COLS), of_block)


def test_a_large_masked_softmax_repeats_the_block():
    needs(2)
    block, x = large()
    mask = torch.rand(COLS) < 0.7
    ops.masked_softmax_(x, mask, 0.5, False, None)
    assert_repeats(x, ops.masked_softmax(block, mask, 0.5, False, None))


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm", "std_norm"])
def test_a_large_norm_repeats_the_block(op):
    needs(2)
    block, x = large()
    norm = getattr(fusedops, op)
    assert_repeats(norm(x, [COLS]), norm(block, [COLS]))


def test_the_gradients_of_a_large_norm_repeat_the_block():
    needs(3)
    block, x = large()
    w, b = torch.randn(2, COLS).to(torch.bfloat16)
    _, mean, rstd = ops.layer_norm(block, [COLS], w, b, 1e-5)
    statistics = [t.repeat(ROWS // BLOCK, 1) for t in (mean, rstd)]
    mask = [True, True, True]
    whole = ops.layer_norm_backward(x, x, [COLS], *statistics, w, b, mask)
    of_block = ops.layer_norm_backward(block, block, [COLS], mean, rstd, w, b, mask)
    assert_repeats(whole[0], of_block[0])
    for summed, part in zip(whole[1:], of_block[1:], strict=True):
        torch.testing.assert_close(
            summed.double(), part.double() * (ROWS // BLOCK), rtol=2**-6, atol=2**-6 * ROWS / BLOCK
        )


def test_a_large_sum_and_its_norm_repeat_the_block():
    needs(4)
    block, x = large()
    y, sum = fusedops.add_rms_norm(x, x, [COLS])
    of_block = fusedops.add_rms_norm(block, block, [COLS])
    assert_repeats(y, of_block[0])
    assert_repeats(sum, of_block[1])
