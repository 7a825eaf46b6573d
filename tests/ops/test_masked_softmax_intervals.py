"""The interval of columns that window, start and end leave a row: the bits of the bool mask that
hides the same, and what is not read."""

import math
from functools import partial

import pytest
import torch
from oracle import DTYPES, same_bits
from processes import run_python
from test_masked_softmax_options import INTERVALS, shown
from test_masked_softmax_values import bools

import fusedops

ops = torch.ops.fusedops
INF = float("inf")


@pytest.mark.parametrize(
    "options",
    [{}, {"mask_value": -1e4}, {"mask_value": 0.5}, {"softcap": 9.0}, {"p": 0.4}],
    ids=str,
)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", INTERVALS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("queries, keys", [(7, 9), (6, 700), (2, 9001)])
def test_results_and_gradients_have_the_bits_of_a_bool_mask(
    kind, dtype, queries, keys, masked, options
):
    torch.manual_seed(keys)
    scores, grad = (torch.randn(2, 2, 3, queries, keys) * 4).to(dtype)
    softmax = fusedops.masked_softmax
    if "p" in options:
        softmax = partial(fusedops.masked_softmax_dropout, seed=torch.tensor(3))
    interval = INTERVALS[kind](queries, keys)
    mask = bools(2, 1, 1, keys) if masked else None
    visible = shown(scores.shape, mask=mask, **interval)
    results = []
    for hidden in ({"mask": mask, **interval}, {"mask": visible}):
        x = scores.clone().requires_grad_()
        y = softmax(x, scale=0.3, **hidden, **options)
        y.backward(grad)
        results.append((y.detach(), x.grad))
    for ours, theirs in zip(*results, strict=True):
        assert same_bits(ours.nan_to_num(7), theirs.nan_to_num(7))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_bounds_may_have_any_strides_and_any_value(dtype):
    x, info = torch.randn(2, 3, 5, 70), torch.iinfo(dtype)
    start = torch.randint(0, 40, (5, 3, 2)).to(dtype).permute(2, 1, 0)
    start[0, 0, 0], start[0, 0, 1] = info.min, info.max
    end = torch.randint(0, 90, (3, 10)).to(dtype)[:, ::2]
    end[1, 0], end[1, 1] = info.min, info.max
    actual = fusedops.masked_softmax(x, start=start, end=end)
    expected = fusedops.masked_softmax(x, start=start.contiguous(), end=end.contiguous())
    assert same_bits(actual, expected)
    by_mask = fusedops.masked_softmax(x, shown(x.shape, start=start, end=end))
    assert same_bits(actual.nan_to_num(7), by_mask.nan_to_num(7))


def test_bounds_that_broadcast_over_every_other_dimension_are_right():
    x = torch.randn(2, 3, 2, 3, 2, 3, 8)
    start, end = torch.randint(0, 4, (2, 1, 2, 1, 2, 1)), torch.randint(4, 9, (3, 1, 3, 1, 3))
    expected = fusedops.masked_softmax(x, shown(x.shape, start=start, end=end))
    assert same_bits(fusedops.masked_softmax(x, start=start, end=end), expected)


@pytest.mark.parametrize("diagonal", [-(2**63), -9, 9, 2**63 - 1])
def test_a_lower_diagonal_may_be_any_number(diagonal):
    x = torch.randn(2, 4, 6)
    actual = ops.masked_softmax(x, None, 1.0, False, None, lower_diagonal=diagonal)
    expected = torch.softmax(x, -1) if diagonal < 0 else torch.full_like(x, math.nan)
    torch.testing.assert_close(actual, expected, equal_nan=True)


@pytest.mark.parametrize(
    "options",
    [{"window": (1, 2**63)}, {"window": 2**64, "causal": "bottom_right"}],
    ids=str,
)
def test_a_window_may_have_any_number_of_keys(options):
    x = torch.randn(2, 6, 4)
    window = (1, 6) if isinstance(options["window"], tuple) else 6
    expected = fusedops.masked_softmax(x, **options | {"window": window})
    assert same_bits(fusedops.masked_softmax(x, **options), expected)


def test_a_bound_in_the_memory_of_the_result_is_read_before_it_is_written():
    memory = torch.zeros(4, 8)
    x, end = torch.randn(4, 8), memory.view(torch.int32)[:, 0]
    end.copy_(torch.tensor([1, 3, 5, 8]))
    expected = fusedops.masked_softmax(x, end=end.clone())
    assert same_bits(fusedops.masked_softmax(x, end=end, out=memory), expected)


# Rows of three pages each. The first and the third cannot be read, and hold hidden columns only.
UNREADABLE = """
import ctypes, mmap, sys
import numpy, torch
import fusedops

page, rows, kind = mmap.PAGESIZE, 6, sys.argv[1]
width = page // 4
ops, libc = torch.ops.fusedops, ctypes.CDLL(None, use_errno=True)

def half_hidden(values):
    memory = mmap.mmap(-1, 3 * rows * page)
    own = torch.from_numpy(numpy.frombuffer(memory, numpy.float32)).view(rows, 3 * width)
    own[:, width : 2 * width] = values
    for row in range(rows):
        for hidden in (0, 2):
            at = ctypes.c_void_p(own.data_ptr() + (3 * row + hidden) * page)
            assert libc.mprotect(at, ctypes.c_size_t(page), 0) == 0
    return own

inside, grad = torch.randn(2, rows, width)
scores, gradient = half_hidden(inside), half_hidden(grad)
expected = torch.softmax(inside, -1)
if kind == "nothing":
    print("reading", flush=True)
    scores.sum()
    print("read")
if kind in ("padding", "mask"):
    mask = torch.arange(2 * width) < width
    mask = mask.repeat(rows, 1) if kind == "mask" else mask
    result = fusedops.masked_softmax(scores[:, width:], mask)
    torch.testing.assert_close(result[:, :width], expected)
    assert result[:, width:].count_nonzero() == 0
    sys.exit()
bounds = dict(start=torch.tensor(width), end=torch.tensor(2 * width))
result = ops.masked_softmax(scores, None, 1.0, False, None, **bounds)
torch.testing.assert_close(result[:, width : 2 * width], expected)
assert result[:, :width].count_nonzero() == result[:, 2 * width :].count_nonzero() == 0
if kind == "dropout":
    hidden = (None, 1.0, False, 0.4, torch.tensor(3), torch.float32)
    result = ops.masked_softmax_dropout_backward(gradient, result, *hidden, **bounds)
    wide = torch.zeros(2, rows, 3 * width)
    wide[:, :, width : 2 * width] = torch.stack([grad, expected])
    wanted = ops.masked_softmax_dropout_backward(*wide, *hidden, **bounds)
    torch.testing.assert_close(result, wanted)
else:
    hidden = (None, 1.0, False, torch.float32)
    result = ops.masked_softmax_backward(gradient, result, *hidden, **bounds)
    wanted = expected * (grad - (grad * expected).sum(-1, True))
    torch.testing.assert_close(result[:, width : 2 * width], wanted)
assert result[:, :width].count_nonzero() == result[:, 2 * width :].count_nonzero() == 0
"""


@pytest.mark.parametrize("kind", ["gradient", "dropout", "padding", "mask"])
def test_what_is_hidden_is_not_read(kind):
    """Columns outside of an interval, and behind the last one that a mask shows: they lie in
    memory whose reading would end the process."""
    result = run_python("-c", UNREADABLE, kind)
    assert result.returncode == 0, result.stderr


def test_memory_that_cannot_be_read_ends_a_process_that_reads_it():
    result = run_python("-c", UNREADABLE, "nothing")
    assert result.stdout == "reading\n" and result.returncode != 0


def test_what_is_hidden_may_be_anything():
    x, grad = torch.randn(2, 3, 40, 300)
    options = {"causal": "bottom_right", "window": 50, "start": torch.arange(40) * 7}
    visible = shown(x.shape, **options)
    results = []
    for value in (0.0, math.nan, INF):
        leaf = x.masked_fill(~visible, value).requires_grad_()
        y = fusedops.masked_softmax(leaf, **options)
        y.backward(grad)
        results.append((y.detach(), leaf.grad))
    for result in results[1:]:
        assert all(same_bits(*pair) for pair in zip(result, results[0], strict=True))


def test_packed_sequences_do_not_see_each_other():
    """By their ids and by where they begin; each is its own softmax."""
    sizes = [3, 1, 5, 2]
    ids = torch.repeat_interleave(torch.arange(4), torch.tensor(sizes))
    cu_seqlens = torch.tensor([0, 3, 4, 9, 11], dtype=torch.int32)
    x = torch.randn(2, 11, 11)
    bounds_by_ids = fusedops.segment_bounds(ids)
    bounds_by_starts = fusedops.segment_bounds(cu_seqlens=cu_seqlens, length=11)
    for one, other in zip(bounds_by_ids, bounds_by_starts, strict=True):
        assert torch.equal(one, other) and one.dtype == torch.int64
    y = fusedops.masked_softmax(
        x, start=bounds_by_ids[0], end=bounds_by_ids[1], causal=True, window=2
    )
    at = 0
    for size in sizes:
        own = slice(at, at + size)
        alone = fusedops.masked_softmax(x[:, own, own], causal=True, window=2)
        torch.testing.assert_close(y[:, own, own], alone)
        assert y[:, own].sum() == pytest.approx(2 * size, rel=1e-5)
        at += size


def test_positions_after_the_last_sequence_see_nothing():
    start, end = fusedops.segment_bounds(cu_seqlens=torch.tensor([0, 2, 2, 4]), length=6)
    assert start.tolist() == [0, 0, 2, 2, 4, 4] and end.tolist() == [2, 2, 4, 4, 4, 4]


def test_a_compiled_call_does_not_compare_a_length_that_is_data():
    @torch.compile(backend="eager", fullgraph=True)
    def bounds(cu_seqlens):
        return fusedops.segment_bounds(cu_seqlens=cu_seqlens, length=cu_seqlens[-1].item())

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        assert bounds(torch.tensor([0, 2, 3]))[1].tolist() == [2, 2, 3]


def test_segment_ids_of_a_batch_have_bounds_of_a_batch():
    ids = torch.tensor([[5, 5, 7], [1, 2, 2]], dtype=torch.int32)
    start, end = fusedops.segment_bounds(ids)
    assert start.tolist() == [[0, 0, 2], [0, 1, 1]] and end.tolist() == [[2, 2, 3], [1, 3, 3]]


def test_a_window_needs_queries():
    for options in ({"window": (1, 1)}, {"window": 2, "causal": True}):
        with pytest.raises(RuntimeError, match="needs queries and keys"):
            fusedops.masked_softmax(torch.randn(5), **options)
    with pytest.raises(RuntimeError, match="lower_diagonal needs queries and keys"):
        ops.masked_softmax(torch.randn(5), None, 1.0, False, None, lower_diagonal=0)
