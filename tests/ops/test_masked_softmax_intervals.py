"""The interval of columns that window, start and end leave a row: values against float64, bits
against the bool mask that hides the same, gradients, and what is not read."""

import math
import subprocess
import sys

import bounds
import pytest
import torch
from oracle import DTYPES, same_bits
from processes import run_python
from test_masked_softmax_grad import FUNCTIONS, doubles
from test_masked_softmax_values import bools
from torch.autograd import gradcheck, gradgradcheck

import fusedops
from fusedops import reference

ops = torch.ops.fusedops
INF = float("inf")


def lengths(shape, high):
    """Ends of rows: some see nothing, some all."""
    return torch.randint(-2, high + 3, shape)


#: For scores of [2, 3, queries, keys]: the keywords of masked_softmax.
INTERVALS = {
    "window": lambda q, k: {"window": 7, "causal": True},
    "window to the right": lambda q, k: {"window": 40, "causal": "bottom_right"},
    "window around": lambda q, k: {"window": (5, 70)},
    "causal window around": lambda q, k: {"window": (5, 70), "causal": True},
    "lengths": lambda q, k: {"end": lengths((2, 1, 1), k)},
    "left padding": lambda q, k: {"start": lengths((2, 1, 1), k).int(), "causal": "bottom_right"},
    "chunks": lambda q, k: {"start": torch.arange(q) * k // q // 64 * 64, "causal": "bottom_right"},
    "documents": lambda q, k: dict(zip(("start", "end"), bounds_of_rows(q, k), strict=True)),
    "every row": lambda q, k: {"start": lengths((2, 3, q), k), "end": lengths((2, 3, q), k).int()},
    "all": lambda q, k: {
        "start": lengths((3, q), k) // 2,
        "end": lengths((1,), k),
        "window": (90, k),
    },
}


def bounds_of_rows(queries, keys):
    start = torch.randint(0, keys, (2, 1, queries))
    return start, start + torch.randint(0, keys, (2, 1, queries)).int()


def shown(shape, causal=False, window=None, start=None, end=None):
    """The columns of [..., queries, keys] that the keywords leave visible."""
    queries, keys = shape[-2:]
    visible, column = torch.ones(shape, dtype=torch.bool), torch.arange(keys)
    diagonal = keys - queries if causal == "bottom_right" else 0
    left, right = window if isinstance(window, tuple) else ((window or keys + queries) - 1, keys)
    visible = visible.triu(diagonal - left).tril(diagonal if causal else right)
    visible = visible if start is None else visible & (column >= start[..., None])
    return visible if end is None else visible & (column < end[..., None])


@pytest.mark.parametrize("kind", INTERVALS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("queries, keys", [(5, 7), (40, 40), (6, 700), (2, 9001)])
def test_errors_are_within_their_bound(kind, dtype, queries, keys):
    torch.manual_seed(keys)
    x = torch.randn(2, 3, queries, keys).to(dtype)
    options = INTERVALS[kind](queries, keys)
    visible = shown(x.shape, **options)
    actual = fusedops.masked_softmax(x, scale=0.5, masked_rows="zero", **options)
    assert (actual[~visible] == 0).all()
    sees = visible.any(-1)
    assert sees.any()
    bound = bounds.softmax(bounds.masked_scores(x[sees], mask=visible[sees], scale=0.5), dtype)
    bounds.assert_within(actual[sees], bound)


@pytest.mark.parametrize("kind", INTERVALS)
def test_the_reference_defines_it(kind):
    x, options = torch.randn(2, 3, 6, 9), INTERVALS[kind](6, 9)
    causal, window = options.pop("causal", False), options.pop("window", None)
    base = 3 if causal == "bottom_right" else 0
    left, right = window if isinstance(window, tuple) else ((window or 99) - 1, 99)
    diagonals = {"diagonal": base if causal else right, "lower_diagonal": base - left}
    expected = reference.masked_softmax(x, **diagonals, **options).float()
    actual = fusedops.masked_softmax(x, causal=causal, window=window, **options)
    torch.testing.assert_close(actual, expected, equal_nan=True)


@pytest.mark.parametrize("mask_value", [-INF, -1e4, 0.5])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", INTERVALS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("queries, keys", [(7, 9), (6, 700), (2, 9001)])
def test_results_and_gradients_have_the_bits_of_a_bool_mask(
    kind, dtype, queries, keys, masked, mask_value
):
    torch.manual_seed(keys)
    scores = torch.randn(2, 3, queries, keys).to(dtype)
    mask, grad = bools(2, 1, 1, keys) if masked else None, torch.randn(scores.shape).to(dtype)
    options = INTERVALS[kind](queries, keys)
    visible = shown(scores.shape, **options)
    results = []
    for hidden in (
        {"mask": mask, **options},
        {"mask": visible if mask is None else visible & mask},
    ):
        x = scores.clone().requires_grad_()
        y = fusedops.masked_softmax(x, mask_value=mask_value, scale=0.3, **hidden)
        y.backward(grad)
        results.append((y.detach(), x.grad))
    for ours, theirs in zip(*results, strict=True):
        assert same_bits(ours.nan_to_num(7), theirs.nan_to_num(7))


@pytest.mark.parametrize("kind", INTERVALS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dropout_has_the_bits_of_a_bool_mask(kind, dtype):
    scores, grad = torch.randn(2, 2, 3, 6, 700).to(dtype)
    options, seed = INTERVALS[kind](6, 700), torch.tensor(3)
    results = []
    for hidden in (options, {"mask": shown(scores.shape, **options)}):
        x = scores.clone().requires_grad_()
        y = fusedops.masked_softmax_dropout(x, p=0.4, seed=seed, masked_rows="zero", **hidden)
        y.backward(grad)
        results.append((y.detach(), x.grad))
    assert all(same_bits(ours, theirs) for ours, theirs in zip(*results, strict=True))


@pytest.mark.parametrize("kind", INTERVALS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradcheck_and_gradgradcheck(kind, function):
    x, bias = doubles(2, 3, 4, 5), doubles(3, 4, 5)
    options = INTERVALS[kind](4, 5)

    def run(x, bias):
        return FUNCTIONS[function](x, bias=bias, scale=0.7, masked_rows="zero", **options)

    assert gradcheck(run, (x, bias))
    assert gradgradcheck(run, (x, bias))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("kind", INTERVALS)
def test_compiled_calls_give_the_same(kind, backend):
    x, options = torch.randn(2, 3, 6, 40, requires_grad=True), INTERVALS[kind](6, 40)
    compiled = torch.compile(fusedops.masked_softmax, backend=backend, fullgraph=True)
    grad, results = torch.randn(x.shape), []
    for function in (fusedops.masked_softmax, compiled):
        y = function(x, masked_rows="zero", **options)
        results.append((y, *torch.autograd.grad(y, x, grad)))
    assert all(same_bits(*pair) for pair in zip(*results, strict=True))


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


def test_out_and_in_place_have_the_bits_of_the_function():
    x, start = torch.randn(3, 5, 70), torch.randint(0, 60, (5,))
    expected = fusedops.masked_softmax(x, causal=True, window=(60, 0), start=start // 20)
    options = {"causal": True, "window": (60, 0), "start": start // 20}
    assert same_bits(fusedops.masked_softmax(x, out=torch.empty_like(x), **options), expected)
    own = x.clone()
    assert same_bits(fusedops.masked_softmax(own, out=own, **options), expected)
    own = x.clone()
    ops.masked_softmax_(own, None, 1.0, True, None, None, 0, False, -60, start // 20)
    assert same_bits(own, expected)
    grad = torch.randn(x.shape)
    hiding = {"lower_diagonal": -60, "start": start // 20}
    backward = ops.masked_softmax_backward(grad, expected, None, 1.0, True, x.dtype, **hiding)
    ops.masked_softmax_backward_(grad, expected, None, 1.0, True, **hiding)
    assert same_bits(grad, backward)


def test_a_bound_in_the_memory_of_the_result_is_read_before_it_is_written():
    memory = torch.zeros(4, 8)
    x, end = torch.randn(4, 8), memory.view(torch.int32)[:, 0]
    end.copy_(torch.tensor([1, 3, 5, 8]))
    expected = fusedops.masked_softmax(x, end=end.clone())
    assert same_bits(fusedops.masked_softmax(x, end=end, out=memory), expected)


def test_calls_without_the_new_arguments_are_what_they_were():
    x, mask, bias = torch.randn(2, 4, 6), bools(4, 6), torch.randn(6)
    expected = fusedops.masked_softmax(x, mask, scale=0.5, causal=True, bias=bias)
    given = (x, mask, 0.5, True, None, bias)
    assert same_bits(ops.masked_softmax(*given), expected)
    assert same_bits(ops.masked_softmax(*given, None, 0, False), expected)
    out = torch.empty_like(x)
    ops.masked_softmax_out(*given, 0, False, out)
    assert same_bits(out, expected)


@pytest.mark.parametrize("in_dim", [0, 1])
def test_vmap_is_the_loop_over_its_slices(in_dim):
    x, start, end = torch.randn(4, 3, 5, 9), torch.randint(0, 4, (4, 5)), torch.tensor([9, 6, 3])
    expected = torch.stack(
        [
            fusedops.masked_softmax(t, start=s, end=end[:, None], window=(3, 4))
            for t, s in zip(x, start, strict=True)
        ]
    )
    over_rows = torch.vmap(
        lambda t, s: fusedops.masked_softmax(t, start=s, end=end[:, None], window=(3, 4)),
        in_dims=(in_dim, in_dim),
    )
    actual = over_rows(x.movedim(0, in_dim), start.movedim(0, in_dim))
    assert same_bits(actual.nan_to_num(7), expected.nan_to_num(7))


def test_a_gradient_under_vmap_is_that_of_each_slice():
    x, end = torch.randn(4, 5, 9), torch.tensor([9, 6, 3, 1])

    def loss(t, e):
        return fusedops.masked_softmax(t, end=e, causal=True, window=4).pow(2).sum()

    actual = torch.vmap(torch.func.grad(loss))(x, end)
    expected = torch.stack([torch.func.grad(loss)(t, e) for t, e in zip(x, end, strict=True)])
    torch.testing.assert_close(actual, expected)


# Rows of three pages each. The first and the third cannot be read, and hold hidden columns only.
UNREADABLE = """
import ctypes, mmap, sys
import numpy, torch
import fusedops

page, rows = mmap.PAGESIZE, 6
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
bounds = dict(start=torch.tensor(width), end=torch.tensor(2 * width))
if sys.argv[1] == "nothing":
    print("reading", flush=True)
    scores.sum()
    print("read")
result = ops.masked_softmax(scores, None, 1.0, False, None, **bounds)
torch.testing.assert_close(result[:, width : 2 * width], expected)
assert result[:, :width].count_nonzero() == result[:, 2 * width :].count_nonzero() == 0
p, seed = 0.0, torch.tensor(3)
if sys.argv[1] == "dropout":
    p = 0.4
    hidden = (None, 1.0, False, p, seed, torch.float32)
    result = ops.masked_softmax_dropout_backward(gradient, result, *hidden, **bounds)
    wide = torch.zeros(rows, 3 * width)
    wide[:, width : 2 * width] = grad
    full = torch.zeros(rows, 3 * width)
    full[:, width : 2 * width] = expected
    wanted = ops.masked_softmax_dropout_backward(wide, full, *hidden, **bounds)
    torch.testing.assert_close(result, wanted)
else:
    hidden = (None, 1.0, False, torch.float32)
    result = ops.masked_softmax_backward(gradient, result, *hidden, **bounds)
    wanted = expected * (grad - (grad * expected).sum(-1, True))
    torch.testing.assert_close(result[:, width : 2 * width], wanted)
assert result[:, :width].count_nonzero() == result[:, 2 * width :].count_nonzero() == 0
"""


@pytest.mark.parametrize("kind", ["gradient", "dropout"])
def test_what_an_interval_hides_is_not_read_forward_and_backward(kind):
    """It lies in memory whose reading would end the process."""
    result = subprocess.run([sys.executable, "-c", UNREADABLE, kind], capture_output=True)
    assert result.returncode == 0, result.stderr.decode()


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


def test_the_module_takes_a_window_and_bounds():
    x, start, end = torch.randn(2, 3, 6, 9), torch.tensor([0, 1]), torch.tensor([[9], [4], [6]])
    module = fusedops.nn.MaskedSoftmax(scale=0.5, causal=True, window=3)
    assert "window=3" in repr(module)
    actual = module(x, start=start[:, None, None], end=end)
    expected = fusedops.masked_softmax(
        x, scale=0.5, causal=True, window=3, start=start[:, None, None], end=end
    )
    assert same_bits(actual.nan_to_num(7), expected.nan_to_num(7))
    with pytest.raises(ValueError, match="window is 3, a number of keys"):
        fusedops.nn.MaskedSoftmax(window=3)
