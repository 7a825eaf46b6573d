"""Offsets beyond 2^31: tensors of more elements, and rows nearly as long."""

import gc
import math

import pytest
import torch

import fusedops

GB = 10**9
ROWS, COLS = 2**16 + 1, 2**15 + 8  # 2.15e9 elements, with the last row beyond 2^31


@pytest.fixture(autouse=True)
def memory():
    """Four bfloat16 tensors of that size, whose memory is freed afterwards."""
    free, _ = torch.cuda.mem_get_info()
    if free < 20 * GB:
        pytest.skip(f"{free / GB:.0f} GB of GPU memory are free, these tests take 20")
    yield
    gc.collect()
    torch.cuda.empty_cache()


@pytest.fixture
def x():
    x = torch.randn(1, COLS, device="cuda").bfloat16().repeat(ROWS, 1)
    x[-1] += 1
    return x


def same_in_the_first_and_last_rows(output, function, *inputs):
    for rows in (slice(0, 3), slice(ROWS - 3, ROWS)):
        assert torch.equal(output[rows], function(*(t[rows].clone() for t in inputs)))


def test_softmax(x):
    y = fusedops.softmax(x, -1)
    same_in_the_first_and_last_rows(y, lambda x: fusedops.softmax(x, -1), x)

    def backward(y):
        return torch.ops.fusedops.softmax_backward(y, y, -1, y.dtype)

    same_in_the_first_and_last_rows(backward(y), backward, y)


def test_layer_norm(x):
    y, mean, rstd = torch.ops.fusedops.layer_norm(x, [COLS], None, None, 1e-5)
    same_in_the_first_and_last_rows(y, lambda x: fusedops.layer_norm(x, [COLS]), x)

    def backward(x, mean, rstd):
        return torch.ops.fusedops.layer_norm_backward(
            x, x, [COLS], mean, rstd, None, None, [True, False, False]
        )[0]

    same_in_the_first_and_last_rows(backward(x, mean, rstd), backward, x, mean, rstd)


def test_more_rows_than_a_32_bit_count():
    x = torch.randn(8, 2, device="cuda").bfloat16().repeat(2**28, 1)  # 2^31 rows of 2
    y = fusedops.softmax(x, -1)
    assert torch.equal(y[:8], y[-8:]) and torch.equal(y[:8], fusedops.softmax(x[:8], -1))


def test_one_row_of_nearly_2_to_the_31_elements():
    cols = 2**31 - 8
    x = torch.zeros(cols, device="cuda", dtype=torch.bfloat16)
    x[-1] = 20.0
    largest = math.exp(20.0)
    # bfloat16 rounds by up to 2^-9; a thread's 512 additions add an error of 2^-15 together.
    assert fusedops.softmax(x, 0)[-1].item() == pytest.approx(
        largest / (cols - 1 + largest), rel=2**-8
    )


def test_a_row_of_2_to_the_31_elements_is_refused():
    x = torch.zeros(1, device="cuda", dtype=torch.bfloat16).expand(2**31)
    with pytest.raises(RuntimeError, match=r"at most 2\^31 - 1 are supported"):
        fusedops.softmax(x, 0)
