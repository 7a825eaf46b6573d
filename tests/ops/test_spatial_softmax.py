"""A row of a spatial softmax has the bits of the same values as a contiguous row: alone, beside any
other rows, at any place, on any number of threads."""

import pytest
import torch
from oracle import DTYPES, assert_same_on_threads, same_bits
from with_gradients import softmax_with_gradient

#: On both sides of tiles, of pairs of them, and of the chunks of every instruction set.
LENGTHS = [1, 2, 3, 8, 15, 16, 17, 31, 33, 40, 64, 65, 100, 129, 513, 1025, 2050, 4100, 9001]
#: The sizes inside the dimension: whole and partial vectors and tiles, more than one group of them.
INNER = [2, 3, 15, 33, 64, 70, 130]
MOST_ELEMENTS = 80_000


def assert_bits_of(whole, op, x, grad, dim, dtype=None):
    """Output and gradient have these bits."""
    assert all(map(same_bits, softmax_with_gradient(op, x, grad, dim, dtype), whole))


def assert_bits_of_contiguous_rows(op, x, grad, dtype=None):
    """The tensor transposed has the same bits, and so have a few rows in tensors of their own."""
    whole = softmax_with_gradient(op, x, grad, 1, dtype)
    rows = (t.mT.contiguous() for t in (x, grad))
    assert_bits_of([t.mT for t in whole], op, *rows, 2, dtype)
    inner = x.shape[2]
    for begin, end in {(0, 1), (inner - 1, inner), (inner // 2, inner), (1, min(6, inner))}:
        some = [t[:, :, begin:end].contiguous() for t in (x, grad)]
        assert_bits_of([t[:, :, begin:end] for t in whole], op, *some, 1, dtype)
        one = [t[0, :, begin] for t in (x, grad)]
        assert_bits_of([t[0, :, begin] for t in whole], op, *one, 0, dtype)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize("inner", INNER)
def test_a_row_of_a_spatial_softmax_has_the_bits_of_a_contiguous_row(op, dtype, inner):
    for length in LENGTHS:
        if length * inner > MOST_ELEMENTS:
            continue
        x, grad = (torch.randn(2, 2, length, inner) * 3).to(dtype)
        assert_bits_of_contiguous_rows(op, x, grad)
        if dtype in (torch.bfloat16, torch.float16):
            assert_bits_of_contiguous_rows(op, x, grad, torch.float32)


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
# Long rows, several segments, and results that bypass the cache.
@pytest.mark.parametrize("shape", [(1, 70_001, 3), (1, 5, 3000), (1, 1300, 1400)])
def test_large_spatial_softmaxes_have_the_bits_of_contiguous_rows(op, dtype, shape):
    x, grad = (torch.randn(2, *shape) * 3).to(dtype)
    assert_bits_of_contiguous_rows(op, x, grad)


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("offset", [1, 3, 17])
def test_where_the_memory_of_rows_begins_changes_no_bit(op, dtype, offset):
    wide = torch.randn(2, 40, 100).to(dtype)
    x, grad = wide[:, :, offset : offset + 50]
    whole = softmax_with_gradient(op, x.contiguous(), grad.contiguous(), 0)
    assert_bits_of(whole, op, x, grad, 0)


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize("special", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("length", [2, 40, 5000])
def test_rows_with_special_values_have_the_bits_of_contiguous_rows(op, special, length):
    x = torch.randn(1, length, 7)
    x[0, length // 2, 1] = float(special)
    x[0, -1, 4] = float(special)
    x[0, :, 6] = -torch.inf
    assert_bits_of_contiguous_rows(op, x, torch.randn(1, length, 7))


def test_the_number_of_threads_changes_no_bit_of_a_spatial_softmax():
    x, grad = torch.randn(2, 4, 300, 500)
    for op in ("softmax", "log_softmax"):
        assert_same_on_threads(lambda op=op: softmax_with_gradient(op, x, grad, 1))
