"""softmax and log_softmax over a dimension that is not the last: exact, and without a copy."""

import bounds
import pytest
import torch
from oracle import DTYPES, assert_same_on_threads, same_bits
from test_softmax_grad import GRADIENT_BOUNDS
from test_softmax_values import OPS, SPECIAL_ROWS

import fusedops

# Pairs of length and inner: one and few of either, odd numbers, whole and partial tiles, several
# segments.
SIZES = [(1, 7), (2, 1), (5, 16), (31, 33), (64, 64), (200, 3), (1000, 40), (33, 1030), (9001, 9)]


def last(tensor):
    """The middle dimension moved last."""
    return tensor.movedim(1, -1).contiguous()


@pytest.mark.parametrize("length, inner", SIZES)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_errors_are_within_their_bound_and_typical(op, dtype, length, inner):
    ours, _, bound = OPS[op]
    torch.manual_seed(length)
    outer = max(2, 200_000 // (length * inner))
    x = (torch.randn(outer, length, inner) * 3).to(dtype)
    actual = ours(x, 1)
    assert actual.is_contiguous()
    bounds.assert_typical(last(actual), bound(last(x)))


@pytest.mark.parametrize("length, inner", SIZES)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_gradients_are_within_their_bound_and_typical(op, dtype, length, inner):
    torch.manual_seed(length)
    outer = max(2, 200_000 // (length * inner))
    output = getattr(torch, op)(torch.randn(outer, length, inner) * 2, 1).to(dtype)
    grad = torch.randn(outer, length, inner).to(dtype)
    actual = getattr(torch.ops.fusedops, f"{op}_backward")(grad, output, 1, dtype)
    wanted = GRADIENT_BOUNDS[op](last(output), last(grad), dtype)
    bounds.assert_typical(last(actual), wanted.rounded_to(dtype))


@pytest.mark.parametrize("source", [torch.bfloat16, torch.float16])
def test_an_upcast_happens_inside_and_its_gradient_comes_back_narrow(source):
    x = torch.randn(3, 20, 37).to(source).requires_grad_()
    y = fusedops.softmax(x, 1, torch.float32)
    grad = torch.randn(3, 20, 37)
    y.backward(grad)
    assert x.grad.dtype == source
    bounds.assert_typical(last(y), bounds.softmax(last(x).float()))
    wanted = bounds.softmax_gradient(last(y), last(grad), torch.float32)
    bounds.assert_typical(last(x.grad), wanted.rounded_to(source))


@pytest.mark.parametrize("name", SPECIAL_ROWS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("inner", [2, 35])
def test_inf_and_nan_come_out_as_in_eager_and_stay_in_their_row(op, dtype, name, inner):
    ours, eager, bound = OPS[op]
    column = torch.tensor(SPECIAL_ROWS[name]).to(dtype)
    x = torch.zeros(2, len(column), inner, dtype=dtype)
    x[1, :, inner // 2] = column
    expected, actual = eager(x, 1), ours(x, 1)
    assert torch.equal(actual.isnan(), expected.isnan())
    assert torch.equal(actual.isinf(), expected.isinf())
    bounds.assert_within(last(actual), bound(last(x)))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("length, inner", [(7, 3), (100, 70), (3000, 40)])
def test_a_row_has_the_same_bits_whatever_lies_beside_it(dtype, length, inner):
    x, grad = torch.randn(3, length, inner).to(dtype), torch.randn(3, length, inner).to(dtype)
    y, log_y = fusedops.softmax(x, 1), fusedops.log_softmax(x, 1)
    backward = torch.ops.fusedops.softmax_backward
    grad_x = backward(grad, y, 1, dtype)
    for first in (0, inner // 2, inner - 2):
        own = (slice(1, 2), slice(None), slice(first, first + 2))
        assert same_bits(y[own], fusedops.softmax(x[own], 1))
        assert same_bits(log_y[own], fusedops.log_softmax(x[own], 1))
        assert same_bits(grad_x[own], backward(grad[own], y[own], 1, dtype))


def test_the_number_of_threads_changes_no_bit():
    x = torch.randn(5, 300, 200)
    assert_same_on_threads(lambda: [fusedops.softmax(x, dim) for dim in (0, 1)])


def test_nothing_is_transposed_or_copied():
    """The profiler counts one output, and no other allocation."""
    x = torch.randn(16, 500, 64)
    backward = torch.ops.fusedops.softmax_backward
    for call in (
        lambda: fusedops.softmax(x, 1),
        lambda: fusedops.log_softmax(x[:, 3:300], 1),
        lambda: fusedops.softmax(x[..., :48], 1),
        lambda: backward(x, x, 1, x.dtype),
        lambda: fusedops.softmax(x, 0),
    ):
        with torch.profiler.profile(profile_memory=True) as profile:
            result = call()
        allocated = sum(max(event.self_cpu_memory_usage, 0) for event in profile.events())
        assert allocated == result.nbytes
